// Types of cached keys and values besides f16, and products with them. A value is rounded once, when it is cached; every
// kernel reads what was stored, and is exact with it:
// - bf16: q and the weights of keys, halves, are the sum of two bf16 each, so that a step of bf16 tensor-core products for
//   either has the range of the cache and loses nothing.
// - q8_0: 32 channels of a token's head share a scale d, a half; codes are −127 … 127. Keys: products with the codes are
//   added up for 32 channels at a time, and times d in single precision to the score. Values: d · code rounded to half.
// - fp8: a token's head has a scale d, a power of two as a half; codes are E4M3, which are halves. Keys: products with the
//   codes are added up for all channels, and d times the sum is the score. Values: d · code, which is a half too. Nothing is
//   rounded that would not be with halves in the cache.
//
// A block of coded types of a head has its codes first, [KV_BLOCK][dim], then its scales, [scales][KV_BLOCK], with scales for 32
// channels each, or one: copies of 16 bytes, and scales of two keys in a word.
#pragma once
#include "heads.cuh"

enum class Kv : int { F16 = 0, BF16 = 1, Q8_0 = 2, FP8 = 3 };

// Channels that coded types are read by; those that share a scale of q8_0.
constexpr int KV_GROUP = 32;

// Types that have codes of a byte and scales.
__host__ __device__ constexpr bool is_coded(Kv type) { return type == Kv::Q8_0 || type == Kv::FP8; }

// Channels that share a scale, and scales of a token's head, of coded types.
__host__ __device__ constexpr int scaled_channels(Kv type, int dim) { return type == Kv::Q8_0 ? KV_GROUP : dim; }
__host__ __device__ constexpr int scales_each(Kv type, int dim) { return dim / scaled_channels(type, dim); }

// Bytes of a block of one head.
__device__ __forceinline__ size_t kv_block_bytes(Kv type, int dim) {
    return KV_BLOCK * (is_coded(type) ? dim + 2 * scales_each(type, dim) : 2 * dim);
}

// D += A · B of bf16, with the fragments of mma_m16n8k16.
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two floats as bf16, the first one low.
__device__ __forceinline__ uint32_t bf16_pair(float low, float high) {
    uint32_t v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}

// An A fragment of halves as the sum of two of bf16: 8 of their 11 bits, and the rest.
struct SplitA {
    uint32_t most[4], rest[4];

    __device__ __forceinline__ explicit SplitA(const uint32_t (&a)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 v = __half22float2(*reinterpret_cast<const half2*>(&a[i]));
            most[i] = bf16_pair(v.x, v.y);
            rest[i] = bf16_pair(v.x - __uint_as_float(most[i] << 16), v.y - __uint_as_float(most[i] & 0xffff0000u));
        }
    }
    __device__ __forceinline__ void multiply(float (&d)[4], uint32_t b0, uint32_t b1) const {
        mma_bf16(d, most, b0, b1);
        mma_bf16(d, rest, b0, b1);
    }
};

// The same of plain halves.
struct HalfA {
    const uint32_t (&a)[4];

    __device__ __forceinline__ explicit HalfA(const uint32_t (&a)[4]) : a(a) {}
    __device__ __forceinline__ void multiply(float (&d)[4], uint32_t b0, uint32_t b1) const { mma_m16n8k16(d, a, b0, b1); }
};

template <Kv T>
struct OperandOf {
    using A = HalfA;
};
template <>
struct OperandOf<Kv::BF16> {
    using A = SplitA;
};
template <Kv T>
using Operand = typename OperandOf<T>::A;

// Two codes as halves: those in the lower bytes of a word, or (HIGH) in its upper ones. `codes` as `to_read` has them.
template <Kv T>
struct Codes;

template <>
struct Codes<Kv::Q8_0> {
    // 1024 + 128 + code is a half whose lower byte is the code's, its sign bit flipped.
    static __device__ __forceinline__ uint32_t to_read(uint32_t codes) { return codes ^ 0x80808080u; }
    template <bool HIGH>
    static __device__ __forceinline__ uint32_t halves(uint32_t flipped) {
        const uint32_t v = prmt(flipped, 0x64646464u, HIGH ? 0x4342 : 0x4140);
        return as_u32(__hsub2(*reinterpret_cast<const half2*>(&v), __half2half2(__ushort_as_half(0x6480))));
    }
};

template <>
struct Codes<Kv::FP8> {
    static __device__ __forceinline__ uint32_t to_read(uint32_t codes) { return codes; }
    template <bool HIGH>
    static __device__ __forceinline__ uint32_t halves(uint32_t codes) {
#if __CUDA_ARCH__ >= 890
        const uint16_t two = static_cast<uint16_t>(HIGH ? codes >> 16 : codes);
        uint32_t v;
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(v) : "h"(two));
        return v;
#else
        return shifted<HIGH>(codes);
#endif
    }
    // The same bits without the instruction: a code's exponent and mantissa, at their place in a half, are 2^-8 of it. Upper
    // bytes of halves get the codes, the byte below the second one the sign of the first, which a signed shift brings to its
    // place.
    template <bool HIGH>
    static __device__ __forceinline__ uint32_t shifted(uint32_t codes) {
        const int v = static_cast<int>(prmt(codes, codes, HIGH ? 0x3a22 : 0x1800));
        const uint32_t small = static_cast<uint32_t>(v >> 1) & 0xbf80bf80u;
        return as_u32(__hmul2(*reinterpret_cast<const half2*>(&small), __half2half2(__ushort_as_half(0x5c00))));
    }
};

// Scores of a group of channels for 8 keys: lane (g, t) has channels 8t … 8t + 7 of q's rows g and g + 8 and of key g, so
// that a lane reads what lies together; which channel is which column of a step does not matter, if it is for both. `scales`:
// of keys 2t and 2t + 1, of q8_0; fp8 has `scale_scores` after the last group.
template <Kv T>
__device__ __forceinline__ void add_scores(float (&s)[4], const uint4& q0, const uint4& q1, uint2 codes, uint32_t scales) {
    const uint32_t even[4] = {q0.x, q1.x, q0.y, q1.y}, odd[4] = {q0.z, q1.z, q0.w, q1.w};
    const uint32_t low = Codes<T>::to_read(codes.x), high = Codes<T>::to_read(codes.y);
    float groups[4] = {};
    float (&sum)[4] = T == Kv::Q8_0 ? groups : s;
    mma_m16n8k16(sum, even, Codes<T>::template halves<false>(low), Codes<T>::template halves<true>(low));
    mma_m16n8k16(sum, odd, Codes<T>::template halves<false>(high), Codes<T>::template halves<true>(high));
    if (T != Kv::Q8_0) return;
    const float2 d = __half22float2(*reinterpret_cast<const half2*>(&scales));
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] = fmaf(sum[i], i % 2 ? d.y : d.x, s[i]);
}

// Sums of 8 keys under their scales.
__device__ __forceinline__ void scale_scores(float (&s)[4], uint32_t scales) {
    const float2 d = __half22float2(*reinterpret_cast<const half2*>(&scales));
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] *= i % 2 ? d.y : d.x;
}

// Weights times values of 16 keys and a group of channels: lane (g, t) has channels 4g … 4g + 3 of keys 2t, 2t + 1, 2t + 8 and
// 2t + 9, and the scales of either pair. Column g of sum j is channel 4g + j, so lane (g, t) ends with channels 8t … 8t + 7:
// see `value_channel`.
template <Kv T>
__device__ __forceinline__ void add_values(float (*sums)[4], const uint32_t (&w)[4], const uint32_t (&codes)[4],
                                           uint32_t scales0, uint32_t scales1) {
    // Codes of a pair of keys, channels 0 and 1, then 2 and 3.
    uint32_t b[2][4];
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
        const uint32_t x = Codes<T>::to_read(codes[2 * pair]), y = Codes<T>::to_read(codes[2 * pair + 1]);
        const uint32_t low = prmt(x, y, 0x5140), high = prmt(x, y, 0x7362);
        const uint32_t scales = pair ? scales1 : scales0;
        const half2 d = *reinterpret_cast<const half2*>(&scales);
        const uint32_t plain[4] = {Codes<T>::template halves<false>(low), Codes<T>::template halves<true>(low),
                                   Codes<T>::template halves<false>(high), Codes<T>::template halves<true>(high)};
#pragma unroll
        for (int j = 0; j < 4; ++j) b[pair][j] = as_u32(__hmul2(*reinterpret_cast<const half2*>(&plain[j]), d));
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) mma_m16n8k16(sums[j], w, b[0][j], b[1][j]);
}

// Where a code lies in shared memory: rows of keys that are read together, and every second row of values, fall into different banks.
template <int D>
__device__ __forceinline__ int code_place(int row, int c) {
    const int turn = D >= 128 ? (row ^ row >> 2) & 3 : (row >> 1 ^ row >> 2) & 1;
    return row * D + (c / 16 ^ 2 * turn) * 16 + c % 16;
}

// Copies scales of eight keys to shared memory: of those from `first` up to `end`, zeros for others.
__device__ __forceinline__ void copy_scales(half* to, const half* from, int first, int end) {
    if (first <= 0 && end >= 8) {
        copy_async16(to, from);
        return;
    }
    // One load of all eight: those beyond are there, whatever they are.
    uint4 v = make_uint4(0, 0, 0, 0);
    if (first < 8 && end > 0) v = __ldcg(reinterpret_cast<const uint4*>(from));
    auto keep = [&](int i) { return (i >= first && i < end ? 0xffffu : 0u) | (i + 1 >= first && i + 1 < end ? 0xffff0000u : 0u); };
    *reinterpret_cast<uint4*>(to) = make_uint4(v.x & keep(0), v.y & keep(2), v.z & keep(4), v.w & keep(6));
}

// Channel of element i of sum n of a row's values, as lane t of the row has it.
template <bool GROUPED>
__device__ __forceinline__ int value_channel(int n, int i, int t) {
    return GROUPED ? n / 4 * KV_GROUP + 8 * t + i % 2 * 4 + n % 4 : 8 * n + 2 * t + i % 2;
}

// Rounded to bf16; what does not fit becomes the largest that does.
__device__ __forceinline__ uint16_t saturated_bf16(float v) {
    const float most = __uint_as_float(0x7f7f0000u);
    return static_cast<uint16_t>(bf16_pair(isnan(v) ? v : fminf(fmaxf(v, -most), most), 0.0f));
}

// A group of channels, one per lane, as q8_0: the lane's code; all lanes get the scale. What is beyond ±127 · 512 becomes
// that, so that every d · code is a half. The scale is the largest magnitude / 127, rounded to half; codes are rounded by what
// was stored. A NaN makes the scale NaN.
__device__ __forceinline__ int8_t quantized(float v, half& scale) {
    constexpr float MOST = 127.0f * 512.0f;
    // Bits of magnitudes are in the order of the magnitudes, those of NaN above all.
    uint32_t largest = __float_as_uint(v) & 0x7fffffffu;
#pragma unroll
    for (int d = WARP / 2; d > 0; d /= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, d));
    const float magnitude = __uint_as_float(largest);
    scale = __float2half_rn(isnan(magnitude) ? magnitude : fminf(magnitude, MOST) / 127.0f);
    const float stored = __half2float(scale);
    const float inverse = stored > 0.0f ? 1.0f / stored : 0.0f;
    return static_cast<int8_t>(__float2int_rn(fmaxf(fminf(v * inverse, 127.0f), -127.0f)));
}

// Exponent of the scale of a head in fp8 whose largest magnitude has these bits, which are no NaN's: the least with the
// magnitude at most 448 · 2^e, within -15 … 7, in which every value is a half. 448 is 1.75 · 2^8: a larger mantissa carries.
__device__ __forceinline__ int fp8_exponent(uint32_t largest) {
    return min(max(static_cast<int>((largest + 0x1fffffu) >> 23) - 127 - 8, -15), 7);
}

// The nearest E4M3, ties to even, of what is no NaN; what is beyond 448 becomes that.
__device__ __forceinline__ uint8_t e4m3(float v) {
    const float magnitude = fminf(fabsf(v), 448.0f);
    const uint32_t bits = __float_as_uint(magnitude);
    // Below the smallest exponent numbers are 2^-9 apart, as those of single precision beyond 2^14.
    const uint32_t small = __float_as_uint(magnitude + 16384.0f) - 0x46800000u;
    // Exponents of single precision have a bias of 127, those of E4M3 one of 7.
    const uint32_t normal = ((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - ((127 - 7) << 3);
    return static_cast<uint8_t>((__float_as_uint(v) >> 24 & 0x80u) | (magnitude < 0.015625f ? small : normal));
}

// Where a value of a head goes besides the cache, if anywhere; channel i of a row of bf16, or code and scale of coded types.
struct Nowhere {
    __device__ __forceinline__ void operator()(int, uint16_t) const {}
    __device__ __forceinline__ void operator()(int, uint8_t, half) const {}
};

// A head in fp8: its codes to `codes`, its scale, which is NaN if there is one among the channels, to `scale`. By one warp.
template <class Also>
__device__ __forceinline__ void cache_fp8(const float* head, int dim, uint8_t* codes, half* scale, const Also& also) {
    const int lane = threadIdx.x % WARP;
    uint32_t largest = 0;
    for (int i = lane; i < dim; i += WARP) largest = max(largest, __float_as_uint(head[i]) & 0x7fffffffu);
#pragma unroll
    for (int d = WARP / 2; d > 0; d /= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, d));
    const bool nan = isnan(__uint_as_float(largest));
    const int e = fp8_exponent(largest);
    const float inverse = __uint_as_float(static_cast<uint32_t>(127 - e) << 23);
    const half d = nan ? __ushort_as_half(0x7e00) : __float2half_rn(__uint_as_float(static_cast<uint32_t>(127 + e) << 23));
    if (lane == 0) *scale = d;
    for (int i = lane; i < dim; i += WARP) {
        const uint8_t code = nan ? 0 : e4m3(head[i] * inverse);
        codes[i] = code;
        also(i, code, d);
    }
}

// Caches k (part 1) or v (part 2) of a token and head. By one warp.
template <class Also>
__device__ __forceinline__ void cache_head(const HeadsArgs& a, Kv type, int part, int h, int token, const float* head,
                                           const Also& also) {
    const int lane = threadIdx.x % WARP, dim = a.dim;
    const uint32_t position = a.spans.position[token], slot = position % KV_BLOCK;
    const uint32_t block = physical_block(a.spans, a.spans.span_of[token], a.group, position / KV_BLOCK);
    uint8_t* cache = reinterpret_cast<uint8_t*>(part == 1 ? a.k_cache : a.v_cache);
    cache += (static_cast<size_t>(block) * a.kv_heads + h) * kv_block_bytes(type, dim);
    half* scales = reinterpret_cast<half*>(cache + KV_BLOCK * dim);
    if (type == Kv::FP8) return cache_fp8(head, dim, cache + slot * dim, scales + slot, also);
    if (type == Kv::Q8_0) {
        for (int i = lane; i < dim; i += WARP) {
            half scale;
            const uint8_t code = static_cast<uint8_t>(quantized(head[i], scale));
            cache[slot * dim + i] = code;
            if (lane == 0) scales[i / KV_GROUP * KV_BLOCK + slot] = scale;
            also(i, code, scale);
        }
        return;
    }
    uint16_t* row = reinterpret_cast<uint16_t*>(cache) + slot * dim;
    for (int i = lane; i < dim; i += WARP) {
        const uint16_t v = type == Kv::BF16 ? saturated_bf16(head[i]) : __half_as_ushort(saturated(head[i]));
        row[i] = v;
        also(i, v);
    }
}
