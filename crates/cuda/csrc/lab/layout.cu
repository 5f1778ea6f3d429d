// Where the hardware has the values of its fragments: every place of one operand against every place of the other, a one in
// each and zeros elsewhere. What the product has, and where, is compared with the maps of `crates/lab/src/layout.rs`. And
// where the kernels' own formulas put values.
#include "../hopper.cuh"
#include "../qt16.cuh"
#include "../qt16/integer.cuh"

struct LayoutArgs {
    int32_t* out;
};

constexpr int NOTHING = -1, NOT_ONE = -2;

// What a warp's results are: the place (lane · N + register) of the only one among zeros, or that there is none.
template <int N, class T>
__device__ int place_of_one(const T (&d)[N]) {
    int place = NOTHING, count = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const uint32_t ones = __ballot_sync(~0u, d[i] == T(1)), others = __ballot_sync(~0u, d[i] != T(0));
        if (ones) place = (__ffs(ones) - 1) * N + i;
        count += ones == others ? __popc(ones) : 2;
    }
    return count < 2 ? place : NOT_ONE;
}

// Registers of ldmatrix from four matrices whose value in row r, column c of matrix m is 64m + 8r + c; then transposed.
extern "C" __global__ void __launch_bounds__(32) layout_ldmatrix(const LayoutArgs a) {
    __shared__ alignas(16) uint16_t tile[256];
    const int lane = threadIdx.x;
    for (int i = lane; i < 256; i += WARP) tile[i] = static_cast<uint16_t>(i);
    __syncwarp();
    uint32_t r[4], t[4];
    ldmatrix_x4(r, tile + 8 * lane);
    ldmatrix_x4_trans(t, tile + 8 * lane);
    for (int i = 0; i < 4; ++i) {
        a.out[lane * 4 + i] = static_cast<int32_t>(r[i]);
        a.out[128 + lane * 4 + i] = static_cast<int32_t>(t[i]);
    }
}

// Block: place of A (lane, register, half). Its results: for every place of B.
extern "C" __global__ void __launch_bounds__(32) layout_mma_halves(const LayoutArgs a) {
    const int lane = threadIdx.x, slot = blockIdx.x;
    uint32_t w[4] = {};
    for (int i = 0; i < 4; ++i)
        if (slot / 2 == lane * 4 + i) w[i] = 0x3c00u << slot % 2 * 16;
    for (int other = 0; other < 128; ++other) {
        uint32_t b[2] = {};
        for (int i = 0; i < 2; ++i)
            if (other / 2 == lane * 2 + i) b[i] = 0x3c00u << other % 2 * 16;
        float d[4] = {};
        mma_m16n8k16(d, w, b[0], b[1]);
        const int place = place_of_one(d);
        if (lane == 0) a.out[slot * 128 + other] = place;
    }
}

// The same of bytes.
extern "C" __global__ void __launch_bounds__(32) layout_mma_bytes(const LayoutArgs a) {
    const int lane = threadIdx.x, slot = blockIdx.x;
    uint32_t w[4] = {};
    for (int i = 0; i < 4; ++i)
        if (slot / 4 == lane * 4 + i) w[i] = 1u << slot % 4 * 8;
    for (int other = 0; other < 256; ++other) {
        uint32_t b[2] = {};
        for (int i = 0; i < 2; ++i)
            if (other / 4 == lane * 2 + i) b[i] = 1u << other % 4 * 8;
        int d[4] = {};
        mma_m16n8k32(d, w, b[0], b[1]);
        const int place = place_of_one(d);
        if (lane == 0) a.out[slot * 256 + other] = place;
    }
}

// Places of the kernels' formulas: 256 of `fragment_place`; then row · 16 + k of the nibbles of each lane's word.
extern "C" __global__ void __launch_bounds__(256) layout_formulas(const LayoutArgs a) {
    const int i = threadIdx.x;
    a.out[i] = fragment_place(i);
    a.out[256 + i] = qt_row(i / 8, i % 8) * 16 + qt_k(i / 8, i % 8);
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
namespace {

__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&w)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, 1, 1, 1, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(b));
}

__device__ __forceinline__ void multiply(float (&d)[32], const uint32_t (&w)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " MINFER_32 ", {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : MINFER_OF_32(d)
                 : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(b));
}

// Block: place of A (thread, register, half). Its results: for every half of B's 128-byte rows as they lie in shared
// memory, how many steps of `step_bytes` before that of the product, times 128 N, and its place (thread · N + register).
template <int N>
__device__ void walk(const LayoutArgs& a, uint16_t* tile, int halves, int steps, int step_bytes) {
    __shared__ int of_warp[4];
    const int thread = threadIdx.x, slot = blockIdx.x;
    uint32_t w[4] = {};
    for (int i = 0; i < 4; ++i)
        if (slot / 2 == thread * 4 + i) w[i] = 0x3c00u << slot % 2 * 16;
    for (int i = thread; i < halves; i += 128) tile[i] = 0;
    for (int other = 0; other < halves; ++other) {
        __syncthreads();
        if (thread == 0) {
            if (other > 0) tile[other - 1] = 0;
            tile[other] = 0x3c00;
        }
        hopper::seen_by_multiply();
        __syncthreads();
        int found = NOTHING;
        for (int step = 0; step < steps; ++step) {
            float d[N] = {};
            hopper::multiply_begin();
            multiply(d, w, hopper::swizzled_at(shared_address(tile) + step * step_bytes));
            hopper::multiply_commit();
            hopper::multiply_wait<0>();
            const int place = place_of_one(d);
            if (place == NOTHING) continue;
            const bool first = found == NOTHING && place != NOT_ONE;
            found = first ? (step * 4 + thread / WARP) * WARP * N + place : NOT_ONE;
        }
        if (thread % WARP == 0) of_warp[thread / WARP] = found;
        __syncthreads();
        if (thread == 0) {
            int all = NOTHING;
            for (int i = 0; i < 4; ++i)
                if (of_warp[i] != NOTHING) all = all == NOTHING ? of_warp[i] : NOT_ONE;
            a.out[slot * halves + other] = all;
        }
    }
}

}  // namespace
#endif

// Eight columns of 64 k along their rows, a step of 16 every 32 bytes.
extern "C" __global__ void __launch_bounds__(128) layout_wgmma(const LayoutArgs a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    __shared__ alignas(1024) uint16_t tile[512];
    walk<4>(a, tile, 512, 4, 32);
#endif
}

// Rows of 64 columns, 16 k.
extern "C" __global__ void __launch_bounds__(128) layout_wgmma_across(const LayoutArgs a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    __shared__ alignas(1024) uint16_t tile[1024];
    walk<32>(a, tile, 1024, 1, 0);
#endif
}
