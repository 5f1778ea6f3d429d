// Products of a matrix in QT16. A row group's K segments are the warps of a block: each streams its units from memory
// into registers, one unit ahead, and makes A fragments of them; partial sums meet in shared memory.
#pragma once
#include "../matmul.cuh"
#include "../qt16.cuh"

namespace qt16_matmul {

constexpr int WARPS = 8;

template <class U, int NT>
__device__ __forceinline__ void body(const MatmulArgs& a) {
    constexpr int TOKENS = 8 * NT;
    __shared__ float partial[WARPS][QT_ROWS * TOKENS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    // Segments are at most WARPS; row groups share a block if they are fewer.
    const int segments = a.segments;
    const int share = segments <= 1 ? 1 : segments <= 2 ? 2 : segments <= 4 ? 4 : 8;
    const int group = blockIdx.x * (WARPS / share) + warp / share, segment = warp % share;
    const int token0 = blockIdx.y * TOKENS;
    const int units = a.cols / QT_K, groups = (a.rows + QT_ROWS - 1) / QT_ROWS;
    const int first = segment_begin(units, segments, segment);
    const int last = segment < segments ? segment_begin(units, segments, segment + 1) : first;
    const bool works = group < groups && first < last;
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
            typename U::Scales scales;
            U::scales(scales, raw, lane, a.w_scale);
#pragma unroll
            for (int slab = 0; slab < 4; ++slab) {
                typename U::Slab of_slab;
                U::slab(of_slab, scales, slab, lane);
                uint4 x[NT][2];
#pragma unroll
                for (int n = 0; n < NT; ++n) {
                    const int token = token0 + 8 * n + g;
                    x[n][0] = x[n][1] = make_uint4(0, 0, 0, 0);
                    if (token < a.tokens) {
                        const half* from =
                            a.x + static_cast<size_t>(token) * a.x_stride + u * QT_K + slab * 64 + t * 16;
                        x[n][0] = *reinterpret_cast<const uint4*>(from);
                        x[n][1] = *reinterpret_cast<const uint4*>(from + 8);
                    }
                }
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
                    const int token = token0 + 8 * n + g;
                    uint2 x = make_uint2(0, 0);
                    if (token < a.tokens) {
                        const half* row = a.x + static_cast<size_t>(token) * a.x_stride;
                        x = *reinterpret_cast<const uint2*>(row + a.cols + u * QT_SUMS + t * 4);
                    }
                    mma_m16n8k16(acc[n], w, x.x, x.y);
                }
            }
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
    if (group >= groups) return;
    const int base = warp / share * share;
    for (int e = segment * WARP + lane; e < QT_ROWS * TOKENS; e += share * WARP) {
        const int row = group * QT_ROWS + e / TOKENS, token = token0 + e % TOKENS;
        if (row >= a.rows || token >= a.tokens) continue;
        float sum = 0.0f;
        for (int s = 0; s < segments; ++s) sum += partial[base + s][e];
        finish_one(a, token, row, sum);
    }
}

}  // namespace qt16_matmul
