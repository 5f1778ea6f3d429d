// QT16: tuned types' weights as tensor-core fragments. A *unit* is 16 rows × 256 k (128 of halves), in as many
// bytes as in the file; units of a row group follow each other along K, row groups along the rows (the last one padded
// with zero blocks).
//
// Lane l = 4g + t of a warp owns 16 bytes of each k64 slab, a word per k16 step. Nibbles (0, 4) of a word are row g,
// k 2t and 2t + 1; (1, 5) are row g + 8, the same k; (2, 6) and (3, 7) the same rows, k + 8: masked pairs are the four
// registers of an m16n8k16 A fragment.
#pragma once
#include "common.cuh"

constexpr int QT_ROWS = 16;
constexpr int QT_K = 256;
// Halves of the group sums of 256 k behind a row of a product's input, see `sum_place`.
constexpr int QT_SUMS = 16;

// Row in the unit and k in the k16 step of nibble n of a word of lane l.
__device__ __forceinline__ int qt_row(int lane, int n) { return lane / 4 + n % 2 * 8; }
__device__ __forceinline__ int qt_k(int lane, int n) { return 2 * (lane % 4) + n / 4 + n % 4 / 2 * 8; }

// Reads of a unit: from global memory, past L1, as weights are read once; or from shared memory.
struct FromGlobal {
    __device__ __forceinline__ static uint4 b16(const uint8_t* p) {
        uint4 v;
        asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(p));
        return v;
    }
    __device__ __forceinline__ static uint2 b8(const uint8_t* p) {
        uint2 v;
        asm volatile("ld.global.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
        return v;
    }
    __device__ __forceinline__ static uint32_t b4(const uint8_t* p) {
        uint32_t v;
        asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
        return v;
    }
};

struct FromShared {
    __device__ __forceinline__ static uint4 b16(const uint8_t* p) { return *reinterpret_cast<const uint4*>(p); }
    __device__ __forceinline__ static uint2 b8(const uint8_t* p) { return *reinterpret_cast<const uint2*>(p); }
    __device__ __forceinline__ static uint32_t b4(const uint8_t* p) { return *reinterpret_cast<const uint32_t*>(p); }
};

__device__ __forceinline__ half2 as_half2(uint32_t v) { return *reinterpret_cast<half2*>(&v); }
__device__ __forceinline__ uint32_t word_of(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// What a lane holds of a unit; each type says where.
struct QtRaw {
    uint4 q[8];
    uint4 more[2];
    uint4 rest;
};

// For packing: four bytes of the file; the halves at `at` of two rows, either of which may be missing.
__device__ __forceinline__ uint32_t word_at(const uint8_t* b) {
    return b[0] | b[1] << 8 | b[2] << 16 | static_cast<uint32_t>(b[3]) << 24;
}
__device__ __forceinline__ uint32_t half_pair(const uint8_t* low, const uint8_t* high, int at) {
    const uint32_t v = low ? low[at] | low[at + 1] << 8 : 0;
    return high ? v | (static_cast<uint32_t>(high[at]) | static_cast<uint32_t>(high[at + 1]) << 8) << 16 : v;
}

#include "qt16/planes.cuh"
#include "qt16/groups.cuh"
#include "qt16/q4_0.cuh"
#include "qt16/q5_0.cuh"
#include "qt16/q8_0.cuh"
#include "qt16/levels.cuh"
#include "qt16/q2_k.cuh"
#include "qt16/q3_k.cuh"
#include "qt16/q4_k.cuh"
#include "qt16/q6_k.cuh"
#include "qt16/halves.cuh"

// One unit times NT groups of 8 tokens: its steps, and the minima's. x_of(n, slab, low, high) gives the B fragments of
// steps 0, 1 and of steps 2, 3 of a slab, sums_of(n) that of the minima's step. The order of the profile's sums is here.
template <class U, int NT, class X, class S>
__device__ __forceinline__ void multiply_unit(float (&acc)[NT][4], const QtRaw& raw, int lane, float w_scale, X x_of,
                                              S sums_of) {
    typename U::Scales scales;
    U::scales(scales, raw, lane, w_scale);
#pragma unroll
    for (int slab = 0; slab < U::K / 64; ++slab) {
        typename U::Slab of_slab;
        U::slab(of_slab, scales, slab, lane);
        uint4 x[NT][2];
#pragma unroll
        for (int n = 0; n < NT; ++n) x_of(n, slab, x[n][0], x[n][1]);
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            uint32_t w[4];
            U::fragment(w, raw, of_slab, slab, step);
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                const uint4& pair = x[n][step / 2];
                mma_m16n8k16(acc[n], w, step % 2 ? pair.z : pair.x, step % 2 ? pair.w : pair.y);
            }
        }
    }
    if (U::HAS_MIN) {
        uint32_t w[4];
        U::min_fragment(w, scales);
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            const uint2 sums = sums_of(n);
            mma_m16n8k16(acc[n], w, sums.x, sums.y);
        }
    }
}

// The types with QT16, in the order of QT16_TYPES on the host: those of codes, which the int8 profile has too, and halves.
#define MINFER_QT16_CODES(X) \
    X(Qt4K, q4_k) X(Qt6K, q6_k) X(Qt8_0, q8_0) X(Qt5K, q5_k) X(Qt4_0, q4_0) X(Qt4_1, q4_1) X(Qt5_0, q5_0) \
    X(Qt5_1, q5_1) X(QtIQ4NL, iq4_nl) X(QtIQ4XS, iq4_xs) X(QtMXFP4, mxfp4) X(Qt2K, q2_k) X(Qt3K, q3_k)
#define MINFER_QT16(X) MINFER_QT16_CODES(X) X(QtHalf, f16)

// A type's place in the list.
#define QT_NUMBER(Unit, name) name,
enum class QtType : int { MINFER_QT16(QT_NUMBER) };
#undef QT_NUMBER
