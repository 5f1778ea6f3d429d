// What every kernel shares. Compiled with -fmad=false: what is written is what is computed; a fused multiply-add is
// asked for by name, so that two kernels that write the same formula have the same bits.
#pragma once
#include <cstdint>
#include <cuda_fp16.h>

// Lanes of a warp.
constexpr int WARP = 32;

// Keys of one attention segment and tokens of one cache block; the same constants as in minfer-ops.
constexpr int ATTN_SEGMENT = 256;
constexpr int KV_BLOCK = 64;

// D += A · B: 16×16 halves (row) by 16×8 halves (column), floats. Lane l = 4g + t holds
// a[0]: row g, k 2t, 2t+1; a[1]: row g+8; a[2], a[3]: the same rows, k + 8;
// b[0]: k 2t, 2t+1 of column g; b[1]: k + 8; d[0], d[1]: row g, columns 2t, 2t+1; d[2], d[3]: row g + 8.
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Every kernel says that the next one may start, and waits for the one before before it touches what that may write or
// read. Launched without the attribute that allows it, both do nothing.
__device__ __forceinline__ void grid_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Where value k of a product's input lies in its row: per 64 values, the B fragments of four m16n8k16 steps, 32 bytes
// for each t, so that a lane reads those of a step, or of all four, at once.
__device__ __forceinline__ int fragment_place(int k) {
    const int r = k % 16;
    return k / 64 * 64 + r % 8 / 2 * 16 + k % 64 / 16 * 4 + r / 8 * 2 + r % 2;
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Copies of 16 bytes from global to shared memory that nobody waits for until `copy_wait`, all but the last LEFT groups.
__device__ __forceinline__ void copy_async16(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT>
__device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// Four 8×8 matrices of halves; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row)));
}

__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row)));
}

// Four of the eight bytes of a and b, one for each of the lower four nibbles of `selector`, which are below 8.
__device__ __forceinline__ uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
    uint32_t v;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(selector));
    return v;
}

// Nibble code of value i of 32 in 16 bytes.
__device__ __forceinline__ int nibble32(const uint8_t* qs, int i) { return qs[i % 16] >> (i / 16 * 4) & 15; }

// 2^(e − 128), the half of E8M0.
__device__ __forceinline__ float e8m0_half(uint32_t e) {
    return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

// A code q in the lowest bits of a half is q · 2^-24, a subnormal number: scales are times 2^24.
constexpr float QT_CODE = 16777216.0f;

__device__ __forceinline__ uint32_t as_u32(half2 h) { return *reinterpret_cast<uint32_t*>(&h); }

// Sum over a warp: a butterfly, so all lanes have it, and its order is fixed.
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int d = WARP / 2; d > 0; d /= 2) v += __shfl_xor_sync(~0u, v, d);
    return v;
}

__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int d = WARP / 2; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, d));
    return v;
}

// The power of two that brings values of magnitude up to `most` below 2^10, in the upper half of that range: sums of 32
// of them are halves too, and halves lose nothing to their range down to 2^-24 of the largest value. 1 for a row of
// zeros, infinities or NaN.
__device__ __forceinline__ float row_scale(float most) {
    if (!(most > 0.0f) || most > 3.4e38f) return 1.0f;
    // most in [2^exponent, 2^(exponent + 1)); a subnormal one counts as the smallest normal number.
    const int exponent = max(__float_as_int(most) >> 23, 1) - 127;
    const int e = min(9 - exponent, 126);
    return __int_as_float((e + 127) << 23);
}

// 1 / s of a power of two: exact.
__device__ __forceinline__ float inverse_power(float s) { return __int_as_float((254 << 23) - __float_as_int(s)); }
