// Products of a matrix in QT16. A row group's K segments are the warps of a block: each streams its units from memory
// into registers, one unit ahead, and makes A fragments of them; partial sums meet in shared memory.
#pragma once
#include "../matmul.cuh"
#include "../qt16.cuh"
#include "../qt16/integer.cuh"

namespace qt16_matmul {

constexpr int WARPS = 8;

// The f16 profile: a unit times NT groups of 8 tokens, zero for those that there are not.
struct Half {
    template <class U, int NT>
    __device__ __forceinline__ static void add(float (&acc)[NT][4], const QtRaw& raw, int lane, const MatmulArgs& a,
                                               int token0, int u) {
        const int g = lane / 4, t = lane % 4;
        auto row_of = [&](int n) -> const half* {
            const int token = token0 + 8 * n + g;
            return token < a.tokens ? a.x + static_cast<size_t>(token) * a.x_stride : nullptr;
        };
        auto x_of = [&](int n, int slab, uint4& low, uint4& high) {
            low = high = make_uint4(0, 0, 0, 0);
            if (const half* row = row_of(n)) {
                const uint4* from = reinterpret_cast<const uint4*>(row + u * U::K + slab * 64 + t * 16);
                low = from[0];
                high = from[1];
            }
        };
        auto sums_of = [&](int n) {
            const half* row = row_of(n);
            if (!row) return make_uint2(0, 0);
            return *reinterpret_cast<const uint2*>(row + a.cols + u * QT_SUMS + t * 4);
        };
        multiply_unit<U, NT>(acc, raw, lane, a.w_scale, x_of, sums_of);
    }
};

// The int8 profile.
struct Int8 {
    template <class U, int NT>
    __device__ __forceinline__ static void add(float (&acc)[NT][4], const QtRaw& raw, int lane, const MatmulArgs& a,
                                               int token0, int u) {
        const int g = lane / 4, t = lane % 4;
        // The last token stands for those beyond it, whose sums are dropped.
        const uint8_t* unit = reinterpret_cast<const uint8_t*>(a.x) + u * Q8_UNIT;
        auto at = [&](int token) {
            return unit + 2u * static_cast<uint32_t>(min(token0 + token, a.tokens - 1)) * static_cast<uint32_t>(a.x_stride);
        };
        auto bytes_of = [&](int n, int block) {
            return *reinterpret_cast<const uint2*>(at(8 * n + g) + block * Q8_GROUP + t * 8);
        };
        auto scale_of = [&](int n, int column, int block) {
            return reinterpret_cast<const Q8Scale*>(at(8 * n + 2 * t + column) + QT_K)[block];
        };
        auto scales_of = [&](int n) { return *reinterpret_cast<const uint4*>(at(8 * n + g) + QT_K + t * 16); };
        multiply_bytes<U, NT>(acc, raw, lane, bytes_of, scale_of, scales_of);
    }
};

template <class Profile, class U, int NT>
__device__ __forceinline__ void body(const MatmulArgs& a) {
    constexpr int TOKENS = 8 * NT;
    __shared__ float partial[WARPS][QT_ROWS * TOKENS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    // Segments are a power of two, at most WARPS; row groups share a block if they are fewer.
    const int segments = a.segments;
    const int group = blockIdx.x * (WARPS / segments) + warp / segments, segment = warp % segments;
    const int token0 = blockIdx.y * TOKENS;
    // Segments begin where 256 columns do.
    constexpr int EACH = QT_K / U::K;
    const int all = a.cols / QT_K, units = all * EACH, groups = (a.rows + QT_ROWS - 1) / QT_ROWS;
    const int first = segment_begin(all, segments, segment) * EACH;
    const int last = segment_begin(all, segments, segment + 1) * EACH;
    const bool works = group < groups;
    const uint8_t* unit = a.w + (static_cast<size_t>(group) * units + first) * U::BYTES;

    QtRaw raw;
    // Weights depend on no kernel before: they are asked for before waiting for one.
    if (works) U::template load<FromGlobal>(raw, unit, lane);
    grid_wait();

    float acc[NT][4];
#pragma unroll
    for (int n = 0; n < NT; ++n) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.0f;
    if (works) {
        for (int u = first; u < last; ++u) {
            QtRaw next;
            unit += U::BYTES;
            if (u + 1 < last) U::template load<FromGlobal>(next, unit, lane);
            Profile::template add<U, NT>(acc, raw, lane, a, token0, u);
            raw = next;
        }
#pragma unroll
        for (int n = 0; n < NT; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                partial[warp][(g + i / 2 * 8) * TOKENS + 8 * n + 2 * t + i % 2] = acc[n][i];
            }
        }
    }
    __syncthreads();
    // Segments in ascending order; the warps of a row group share its elements.
    if (!works) return;
    const int base = warp - segment;
    for (int e = segment * WARP + lane; e < QT_ROWS * TOKENS; e += segments * WARP) {
        const int row = group * QT_ROWS + e / TOKENS, token = token0 + e % TOKENS;
        if (row >= a.rows || token >= a.tokens) continue;
        float sum = 0.0f;
        for (int s = 0; s < segments; ++s) sum += partial[base + s][e];
        finish_one(a, token, row, sum);
    }
}

}  // namespace qt16_matmul
