// Quant types: what a block's bytes mean. One header per type below format/; kernels are generic over them.
//
// A format gives eight consecutive values at a time, as small integers with a scale and an offset (`Codes`) or, for
// types of single floats, as they are. Two readings of the same codes exist:
// - `octet_f32`: the reference, the bits of minfer_gguf::quant::dequantize;
// - `octet_f16`: the f16 profile's for rows without QT16, q·s + m in half precision with one rounding, s and m rounded
//   to half once, all times the tensor's power of two.
#pragma once
#include "common.cuh"

// Codebooks, filled by the host from minfer_gguf::quant::grids: one source for them.
struct Grids {
    uint8_t iq2_xxs[256][8];
    uint8_t iq2_xs[512][8];
    uint8_t iq2_s[1024][8];
    uint8_t iq3_xxs[256][4];
    uint8_t iq3_s[512][4];
    int8_t iq1[2048][8];
    int8_t iq4[16];
    int8_t fp4[16];
};

// Each module that reads weights has its own copy.
extern "C" {
__device__ Grids minfer_grids;
}

// Eight values q·s + m. |q| ≤ 2048, so that a half holds it.
struct Codes {
    int q[8];
    float s;
    float m;
};

__device__ __forceinline__ float f16_at(const uint8_t* p) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(p[0] | p[1] << 8)));
}

__device__ __forceinline__ uint32_t u16_at(const uint8_t* p) { return p[0] | p[1] << 8; }

__device__ __forceinline__ uint32_t u32_at(const uint8_t* p) { return u16_at(p) | u16_at(p + 2) << 16; }

// 7 sign bits and the eighth that makes the number of minus signs even.
__device__ __forceinline__ uint32_t even_signs(uint32_t index) {
    index &= 127;
    return index | (__popc(index) & 1) << 7;
}

__device__ __forceinline__ int with_sign(int magnitude, uint32_t signs, int i) {
    return signs >> i & 1 ? -magnitude : magnitude;
}

// For formats with codes: F::codes(block, i) are values i … i + 7 of a block, i a multiple of 8.
template <class F>
struct Coded {
    __device__ static void octet_f32(const uint8_t* block, int i, float (&v)[8]) {
        Codes c = F::codes(block, i);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            float product = __fmul_rn(c.s, static_cast<float>(c.q[j]));
            v[j] = F::OFFSET ? __fadd_rn(product, c.m) : product;
        }
    }

    __device__ static void octet_f16(const uint8_t* block, int i, float scale, half (&v)[8]) {
        Codes c = F::codes(block, i);
        half s = __float2half_rn(__fmul_rn(c.s, scale));
        half m = __float2half_rn(__fmul_rn(c.m, scale));
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            half q = __int2half_rn(c.q[j]);
            v[j] = F::OFFSET ? __hfma(q, s, m) : __hmul(q, s);
        }
    }

    // No less than the magnitude of anything that `octet_f16` forms without `scale`.
    __device__ static float bound(const uint8_t* block, int i) {
        Codes c = F::codes(block, i);
        float most = fabsf(c.m);
#pragma unroll
        for (int j = 0; j < 8; ++j) most = fmaxf(most, fabsf(c.s * static_cast<float>(c.q[j])));
        return most;
    }
};

// For types of blocks of 32 that have QT16 (qt16/groups.cuh): rows that are no whole units of it stay as in the file,
// and weights have the same bits there. ZERO is added to codes so that none is negative; MOST is no less than any magnitude
// then, and than 9: a scale times 2^24 must stay a half.
template <class F>
struct Tuned : Coded<F> {
    __device__ static void octet_f16(const uint8_t* block, int i, float scale, half (&v)[8]) {
        const Codes c = F::codes(block, i);
        const half s = __float2half_rn(c.s * (scale * QT_CODE));
        const half offset = F::OFFSET ? __float2half_rn(c.m * scale) : __hmul(s, __ushort_as_half(0x8000 | F::ZERO));
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            v[j] = __hfma(__ushort_as_half(static_cast<unsigned short>(c.q[j] + F::ZERO)), s, offset);
        }
    }

    // Of any codes: scales must stay halves even if nothing is multiplied with them.
    __device__ static float bound(const uint8_t* block, int i) {
        const Codes c = F::codes(block, i);
        return fmaxf(fabsf(c.m), F::MOST * fabsf(c.s));
    }
};

// For types of single values: F::value(bytes). A "block" is a single value; octets lie at block + i · BYTES.
template <class F>
struct Plain {
    __device__ static void octet_f32(const uint8_t* block, int i, float (&v)[8]) {
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = F::value(block + (i + j) * F::BYTES);
    }

    __device__ static void octet_f16(const uint8_t* block, int i, float scale, half (&v)[8]) {
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = __float2half_rn(__fmul_rn(F::value(block + (i + j) * F::BYTES), scale));
    }

    __device__ static float bound(const uint8_t* block, int i) {
        float most = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const float v = fabsf(F::value(block + (i + j) * F::BYTES));
            // Infinities stay what they are under any power of two.
            if (v <= 3.4028235e38f) most = fmaxf(most, v);
        }
        return most;
    }
};

#include "format/plain.cuh"
#include "format/q4_0.cuh"
#include "format/q4_1.cuh"
#include "format/q5_0.cuh"
#include "format/q5_1.cuh"
#include "format/q8_0.cuh"
#include "format/q2_k.cuh"
#include "format/q3_k.cuh"
#include "format/q4_k.cuh"
#include "format/q5_k.cuh"
#include "format/q6_k.cuh"
#include "format/iq1.cuh"
#include "format/iq2.cuh"
#include "format/iq3.cuh"
#include "format/iq4.cuh"
#include "format/fp4.cuh"
#include "format/ternary.cuh"

// Every type that a weight can have: struct, and the name as kernels carry it. The one list, in two parts: those that
// have products in the file's layout, and those whose every row is whole units of QT16 (qt16.cuh).
#define MINFER_FILE_FORMATS(X) \
    X(F32, f32) X(F16, f16) X(BF16, bf16) \
    X(Q4_0, q4_0) X(Q4_1, q4_1) X(Q5_0, q5_0) X(Q5_1, q5_1) X(Q8_0, q8_0) \
    X(IQ1_S, iq1_s) X(IQ1_M, iq1_m) X(IQ2_XXS, iq2_xxs) X(IQ2_XS, iq2_xs) X(IQ2_S, iq2_s) \
    X(IQ3_XXS, iq3_xxs) X(IQ3_S, iq3_s) X(IQ4_NL, iq4_nl) \
    X(TQ1_0, tq1_0) X(TQ2_0, tq2_0) X(Q1_0, q1_0) X(Q2_0, q2_0) X(MXFP4, mxfp4) X(NVFP4, nvfp4)
#define MINFER_FORMATS(X) \
    MINFER_FILE_FORMATS(X) \
    X(Q2_K, q2_k) X(Q3_K, q3_k) X(Q4_K, q4_k) X(Q5_K, q5_k) X(Q6_K, q6_k) X(IQ4_XS, iq4_xs)
