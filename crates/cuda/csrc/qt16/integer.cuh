// Units of QT16 times bytes: the int8 profile. Sums of a group's codes with the input's bytes are integers, hence exact in
// any order; what follows is in floats and has one order. A segment of K is one chain, for each row, over its units
// ascending, with Σ a group's integer.
//
// Types whose scales are integers s times a number d of the row take inputs with one scale a for 256 values:
//
//   sum ← fma(a, d · Σ s·Σ, sum)             one integer for the unit, rounded once
//   sum ← fma(a, fma(f, M, d · Σ s·Σ), sum)  with minima m times f, M = Σ m · Σ bytes
//
// M is exact: one m16n8k16 step of halves, in which sums of 16 bytes are exact too, and those of 32 are two numbers, a
// multiple of 64 and the rest. The others take any input, a the scale of its group:
//
//   sum ← fma(a, s · Σ, sum)  for each group, ascending
//   sum ← sum + M             behind each unit of a type with minima, M = Σ m · (a · Σ bytes) over its groups
//
// This M is two chained m16n8k8 steps of tf32, from zero: minima are exact there, a · Σ bytes are what tf32 has of it and of
// the rest.
#pragma once
#include "../prepare_int8.cuh"
#include <type_traits>

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


// D += A · B: 16×8 (row) by 8×8 (column) of tf32. Lane l = 4g + t holds a[0]: row g, k t; a[1]: row g + 8; a[2], a[3]: the
// same, k t + 4; b0, b1: k t and t + 4 of column g; d as in m16n8k16.
__device__ __forceinline__ void mma_m16n8k8(float (&d)[4], const float (&a)[4], float b0, float b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
          "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

// A · B from zero, as mma_m16n8k16 of halves.
__device__ __forceinline__ void mma_m16n8k16_first(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

// Sum of group `j` of 16 or 32 bytes among those of a slab, whose scales are two.
template <int GROUPS>
__device__ __forceinline__ int group_sum(const Q8Scale (&x)[2], int j) {
    if (GROUPS == 2) return x[j].sums[0] + x[j].sums[1];
    return x[j / 2].sums[j % 2];
}

// M of the header where groups have scales of their own, of the minima of rows g and g + 8 in slab t, and of the input's two
// scales there of column g.
__device__ __forceinline__ void multiply_scaled(float (&d)[4], const float (&m)[2][2], const Q8Scale (&x)[2]) {
    d[0] = d[1] = d[2] = d[3] = 0.0f;
    const float a[4] = {m[0][0], m[1][0], m[0][1], m[1][1]};
    const Tf32Pair b0 = tf32_pair(x[0].scale * static_cast<float>(group_sum<2>(x, 0)));
    const Tf32Pair b1 = tf32_pair(x[1].scale * static_cast<float>(group_sum<2>(x, 1)));
    mma_m16n8k8(d, a, b0.most, b1.most);
    mma_m16n8k8(d, a, b0.rest, b1.rest);
}

// M of the header where they have one, for rows g and g + 8, from the sums of slab t of column g.
template <int GROUPS>
__device__ __forceinline__ void multiply_minima(float (&d)[4], const uint32_t (&a)[4], const Q8Scale (&x)[2]) {
    if (GROUPS == 4) {
        mma_m16n8k16_first(d, a, half_sums(x[0].sums[0], x[0].sums[1]), half_sums(x[1].sums[0], x[1].sums[1]));
    } else {
        const int first = group_sum<2>(x, 0), second = group_sum<2>(x, 1);
        mma_m16n8k16_first(d, a, half_sums(first & ~63, second & ~63), half_sums(first & 63, second & 63));
    }
}

// Adds one unit times one token to `acc`. Each column of B is a group of the token and zero elsewhere, so that one
// accumulator is the sums of eight groups. `acc` is of row g in even lanes and of row g + 8 in odd ones. `x`: the unit's
// input.
template <class U>
__device__ __forceinline__ void multiply_one(float& acc, const QtRaw& raw, int lane, const uint8_t* x) {
    constexpr int GROUPS = U::GROUPS, UPPER = U::Plane::BYTE_UPPER, SETS = GROUPS / 2;
    const int g = lane / 4, t = lane % 4;
    Q8Scale scale[2];
    *reinterpret_cast<uint4*>(scale) = *reinterpret_cast<const uint4*>(x + QT_K + t * 16);
    float least[4] = {}, factor[2] = {};
    if constexpr (U::OFFSET && U::INTEGER) {
        uint32_t m[4];
        U::minima(m, factor, raw, lane);
        multiply_minima<GROUPS>(least, m, scale);
    } else if constexpr (U::OFFSET) {
        float m[2][2];
        U::float_minima(m, raw);
        multiply_scaled(least, m, scale);
    }
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
    // Each lane of a pair takes over one of the rows.
    const bool odd = lane & 1;
    if constexpr (U::INTEGER) {
        int s[2][GROUPS], whole[2] = {};
        float unit[2];
        U::whole_scales(s, unit, raw, lane);
#pragma unroll
        for (int j = 0; j < GROUPS; ++j) {
            whole[0] += s[0][j] * sum[j / 2 % SETS][j % 2];
            whole[1] += s[1][j] * sum[j / 2 % SETS][2 + j % 2];
        }
        int all = odd ? whole[1] : whole[0];
        all += __shfl_xor_sync(~0u, odd ? whole[0] : whole[1], 1);
        all += __shfl_xor_sync(~0u, all, 2);
        float v = (odd ? unit[1] * (1.0f / UPPER) : unit[0]) * static_cast<float>(all);
        if (U::OFFSET) v = fmaf(odd ? factor[1] : factor[0], odd ? least[2] : least[0], v);
        acc = fmaf(scale[0].scale, v, acc);
    } else {
        float s[2][GROUPS];
        U::group_scales(s, raw, lane);
        // The groups of two slabs.
        float v[2 * GROUPS];
#pragma unroll
        for (int j = 0; j < GROUPS; ++j) {
            const int* sums = sum[j / 2 % SETS];
            const float low = s[0][j] * static_cast<float>(sums[j % 2]);
            const float high = s[1][j] * (1.0f / UPPER) * static_cast<float>(sums[2 + j % 2]);
            const float own = odd ? high : low, other = __shfl_xor_sync(~0u, odd ? low : high, 1);
            v[j] = odd ? other : own;
            v[GROUPS + j] = odd ? own : other;
        }
        const uint4* scales = reinterpret_cast<const uint4*>(x + QT_K + (t & 2) * 16);
        const uint4 first = scales[0], second = scales[1];
        const float a[4] = {__uint_as_float(first.x), __uint_as_float(first.z), __uint_as_float(second.x),
                            __uint_as_float(second.z)};
        // The first half of the unit, then the second one, which other lanes have.
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int j = 0; j < 2 * GROUPS; ++j) acc = fmaf(a[j * 2 / GROUPS], v[j], acc);
            acc = __shfl_sync(~0u, acc, half == 0 ? lane & ~2 : lane | 2);
        }
        if (U::OFFSET) acc += odd ? least[2] : least[0];
    }
}

// One unit times NT groups of 8 tokens, the same sums. bytes_of(n, block) gives the B fragment of 32 values of token g of
// group n, scale_of(n, column, block) their scale of token 2t + column, scales_of(n) those of slab t of token g.
template <class U, int NT, class B, class S, class M>
__device__ __forceinline__ void multiply_bytes(float (&acc)[NT][4], const QtRaw& raw, int lane, B bytes_of, S scale_of,
                                               M scales_of) {
    constexpr int GROUPS = U::GROUPS, UPPER = U::Plane::BYTE_UPPER, HALVES = GROUPS / 2;
    using Scale = std::conditional_t<U::INTEGER, int, float>;
    Scale s[2][GROUPS];
    float unit[2];
    int whole[NT][4] = {};
    if constexpr (U::INTEGER) {
        U::whole_scales(s, unit, raw, lane);
        unit[1] *= 1.0f / UPPER;
    } else {
        U::group_scales(s, raw, lane);
#pragma unroll
        for (int j = 0; j < GROUPS; ++j) s[1][j] *= 1.0f / UPPER;
    }
#pragma unroll
    for (int slab = 0; slab < 4; ++slab) {
        const int from = (lane & ~3) | slab;
#pragma unroll
        for (int block = 0; block < 2; ++block) {
            uint32_t a[4];
            U::Plane::bytes(a, raw, 2 * slab + block);
            Scale w[HALVES][2];
#pragma unroll
            for (int h = 0; h < HALVES; ++h) {
#pragma unroll
                for (int row = 0; row < 2; ++row) w[h][row] = __shfl_sync(~0u, s[row][block * HALVES + h], from);
            }
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                const uint2 b = bytes_of(n, 2 * slab + block);
                const Q8Scale scale[2] = {scale_of(n, 0, 2 * slab + block), scale_of(n, 1, 2 * slab + block)};
#pragma unroll
                for (int h = 0; h < HALVES; ++h) {
                    int sum[4];
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const int bytes = HALVES == 1 ? scale[e].sums[0] + scale[e].sums[1] : scale[e].sums[h];
                        sum[e] = -U::ZERO * bytes;
                        sum[2 + e] = -U::ZERO * UPPER * bytes;
                    }
                    if (HALVES == 1) {
                        mma_m16n8k32(sum, a, b.x, b.y);
                    } else {
                        mma_m16n8k16(sum, a[2 * h], a[2 * h + 1], h ? b.y : b.x);
                    }
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        if constexpr (U::INTEGER) {
                            whole[n][e] += w[h][e / 2] * sum[e];
                        } else {
                            acc[n][e] = fmaf(scale[e % 2].scale, w[h][e / 2] * static_cast<float>(sum[e]), acc[n][e]);
                        }
                    }
                }
            }
        }
    }
    if constexpr (U::INTEGER) {
        uint32_t m[4];
        float factor[2];
        if constexpr (U::OFFSET) U::minima(m, factor, raw, lane);
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            float least[4];
            if constexpr (U::OFFSET) {
                Q8Scale scale[2];
                *reinterpret_cast<uint4*>(scale) = scales_of(n);
                multiply_minima<GROUPS>(least, m, scale);
            }
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float v = unit[e / 2] * static_cast<float>(whole[n][e]);
                if (U::OFFSET) v = fmaf(factor[e / 2], least[e], v);
                acc[n][e] = fmaf(scale_of(n, e % 2, 0).scale, v, acc[n][e]);
            }
        }
    } else if constexpr (U::OFFSET) {
        float m[2][2], least[4];
        U::float_minima(m, raw);
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            Q8Scale scale[2];
            *reinterpret_cast<uint4*>(scale) = scales_of(n);
            multiply_scaled(least, m, scale);
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[n][e] += least[e];
        }
    }
}
