// Units of QT16 times bytes: the int8 profile. Sums of a group's codes with the input's bytes are integers, hence exact in
// any order; what follows is in floats and has one order. For each row and unit of 256 k:
//
//   p(t) = Σ over the groups of slab t, ascending: s · (a · sum) + c · (a · Σ bytes), a fused step for each term
//   unit = (p(0) + p(1)) + (p(2) + p(3))
//
// with a the scale of the input's group, s and c scale and offset of the weights'. Units of a segment are added ascending.
#pragma once
#include "../prepare_int8.cuh"

// D += A · B of unsigned and signed bytes: 16×32 (row) by 32×8 (column). Lane l = 4g + t holds a[0]: row g, k 4t … 4t + 3;
// a[1]: row g + 8; a[2], a[3]: the same, k + 16; b0, b1: the same k of column g; d as in m16n8k16.
__device__ __forceinline__ void mma_m16n8k32(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm(
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_m16n8k16(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a0), "r"(a1), "r"(b));
}

// Sum of group `j` of 16 or 32 bytes among those of a slab, whose scales are two.
template <int GROUPS>
__device__ __forceinline__ int group_sum(const Q8Scale (&x)[2], int j) {
    if (GROUPS == 2) return x[j].sums[0] + x[j].sums[1];
    return x[j / 2].sums[j % 2];
}

// One unit times one token. Each column of B is a group of the token and zero elsewhere, so that one accumulator is the
// sums of eight groups. The result is for row g in even lanes and for row g + 8 in odd ones. `x`: the unit's input.
template <class U>
__device__ __forceinline__ float multiply_one(const QtRaw& raw, int lane, const uint8_t* x) {
    constexpr int GROUPS = U::GROUPS, UPPER = U::Plane::BYTE_UPPER, SETS = GROUPS / 2;
    const int g = lane / 4, t = lane % 4;
    Q8Scale scale[2];
    *reinterpret_cast<uint4*>(scale) = *reinterpret_cast<const uint4*>(x + QT_K + t * 16);
    // Column c of set i is group c, or, of groups of 16, c % 2 of the 32 values number c / 2 · 2 + i.
    uint2 b[SETS];
#pragma unroll
    for (int i = 0; i < SETS; ++i) {
        const int block = SETS == 1 ? g : g / 2 * 2 + i;
        b[i] = *reinterpret_cast<const uint2*>(x + block * 32 + t * 8);
        if (SETS == 2) (g % 2 ? b[i].x : b[i].y) = 0;
    }
    // Two chains of steps in any case: integers may be added in any order.
    int sum[2][4] = {};
#pragma unroll
    for (int i = 0; i < SETS; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int zero = U::ZERO ? group_sum<GROUPS>(scale, SETS == 1 ? e % 2 : 2 * i + e % 2) : 0;
            sum[i][e] = -U::ZERO * (e < 2 ? 1 : UPPER) * zero;
        }
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        uint32_t a[4];
        U::Plane::bytes(a, raw, j);
        const bool here = SETS == 1 ? g == j : g / 2 == j / 2;
        const uint2& own = b[SETS == 1 ? 0 : j % 2];
        mma_m16n8k32(sum[j % 2], a, here ? own.x : 0, here ? own.y : 0);
    }
    if (SETS == 1) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[0][e] += sum[1][e];
    }
    float s[2][GROUPS], c[2][GROUPS], p[2] = {0.0f, 0.0f};
    U::integer_scales(s, c, raw, lane);
#pragma unroll
    for (int j = 0; j < GROUPS; ++j) {
        const float a = scale[j * 2 / GROUPS].scale;
        const float bytes = a * static_cast<float>(group_sum<GROUPS>(scale, j));
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            const float v = a * static_cast<float>(sum[j / 2 % SETS][row * 2 + j % 2]);
            p[row] = fmaf(row ? s[row][j] * (1.0f / UPPER) : s[row][j], v, p[row]);
            if (U::OFFSET) p[row] = fmaf(c[row][j], bytes, p[row]);
        }
    }
    // Each lane of a pair takes over one of the rows.
    const bool odd = lane & 1;
    float y = (odd ? p[1] : p[0]) + __shfl_xor_sync(~0u, odd ? p[0] : p[1], 1);
    return y + __shfl_xor_sync(~0u, y, 2);
}

// One unit times NT groups of 8 tokens, the same sums. bytes_of(n, block) gives the B fragment of 32 values of token g of
// group n, scale_of(n, column, block) their scale of token 2t + column.
template <class U, int NT, class B, class S>
__device__ __forceinline__ void multiply_bytes(float (&acc)[NT][4], const QtRaw& raw, int lane, B bytes_of, S scale_of) {
    constexpr int GROUPS = U::GROUPS, UPPER = U::Plane::BYTE_UPPER, HALVES = GROUPS / 2;
    float s[2][GROUPS], c[2][GROUPS], unit[NT][4], pair[NT][4];
    U::integer_scales(s, c, raw, lane);
#pragma unroll
    for (int slab = 0; slab < 4; ++slab) {
        const int from = (lane & ~3) | slab;
        float p[NT][4];
#pragma unroll
        for (int n = 0; n < NT; ++n) p[n][0] = p[n][1] = p[n][2] = p[n][3] = 0.0f;
#pragma unroll
        for (int block = 0; block < 2; ++block) {
            uint32_t a[4];
            U::Plane::bytes(a, raw, 2 * slab + block);
            float w[HALVES][2], offset[HALVES][2];
#pragma unroll
            for (int h = 0; h < HALVES; ++h) {
                const int j = block * HALVES + h;
#pragma unroll
                for (int row = 0; row < 2; ++row) {
                    w[h][row] = __shfl_sync(~0u, row ? s[row][j] * (1.0f / UPPER) : s[row][j], from);
                    offset[h][row] = U::OFFSET ? __shfl_sync(~0u, c[row][j], from) : 0.0f;
                }
            }
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                const uint2 b = bytes_of(n, 2 * slab + block);
                const Q8Scale scale[2] = {scale_of(n, 0, 2 * slab + block), scale_of(n, 1, 2 * slab + block)};
#pragma unroll
                for (int h = 0; h < HALVES; ++h) {
                    int sum[4], bytes[2];
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        bytes[e] = HALVES == 1 ? scale[e].sums[0] + scale[e].sums[1] : scale[e].sums[h];
                        sum[e] = -U::ZERO * bytes[e];
                        sum[2 + e] = -U::ZERO * UPPER * bytes[e];
                    }
                    if (HALVES == 1) {
                        mma_m16n8k32(sum, a, b.x, b.y);
                    } else {
                        mma_m16n8k16(sum, a[2 * h], a[2 * h + 1], h ? b.y : b.x);
                    }
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const float x = scale[e % 2].scale;
                        p[n][e] = fmaf(w[h][e / 2], x * static_cast<float>(sum[e]), p[n][e]);
                        if (U::OFFSET) p[n][e] = fmaf(offset[h][e / 2], x * static_cast<float>(bytes[e % 2]), p[n][e]);
                    }
                }
            }
        }
#pragma unroll
        for (int n = 0; n < NT; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                if (slab % 2 == 0) pair[n][e] = p[n][e];
                if (slab % 2 == 1) pair[n][e] = pair[n][e] + p[n][e];
                if (slab == 1) unit[n][e] = pair[n][e];
                if (slab == 3) acc[n][e] += unit[n][e] + pair[n][e];
            }
        }
    }
}
