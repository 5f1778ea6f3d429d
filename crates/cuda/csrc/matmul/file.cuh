// Products of a matrix as it lies in the file, for every type: a warp dequantizes a tile of 16 rows × 64 k into shared
// memory and multiplies it with up to 32 tokens. Not tuned: this is what makes every type run.
#pragma once
#include "../format.cuh"
#include "../matmul.cuh"

namespace file_matmul {

constexpr int WARPS = 8;
constexpr int ROWS = 16;
constexpr int K_TILE = 64;
// Padded so that the eight rows of an ldmatrix lie in different banks.
constexpr int TILE_STRIDE = K_TILE + 8;

// Rows of `NT` groups of 8 tokens.
template <class F, int NT>
__device__ __forceinline__ void body(const MatmulArgs& a) {
    constexpr int TOKENS = 8 * NT;
    __shared__ __align__(16) half tiles[WARPS][ROWS * TILE_STRIDE];
    __shared__ float partial[WARPS][ROWS * TOKENS];
    grid_wait();
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int g = lane / 4, t = lane % 4;
    const int row0 = blockIdx.x * ROWS, token0 = blockIdx.y * TOKENS;
    const int segments = a.segments, units = (a.cols + 255) / 256;
    half* tile = tiles[warp];

    // A warp for each segment: there are no more than WARPS.
    if (warp < segments) {
        float acc[NT][4];
#pragma unroll
        for (int n = 0; n < NT; ++n) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.0f;
        const int end = min(a.cols, segment_begin(units, segments, warp + 1) * 256);
        for (int k0 = segment_begin(units, segments, warp) * 256; k0 < end; k0 += K_TILE) {
            __syncwarp();
            for (int o = lane; o < ROWS * K_TILE / 8; o += WARP) {
                const int r = o / (K_TILE / 8), k = k0 + o % (K_TILE / 8) * 8;
                half v[8];
                if (row0 + r < a.rows && k < a.cols) {
                    const uint8_t* block = a.w + (row0 + r) * a.row_bytes + k / F::VALUES * F::BYTES;
                    F::octet_f16(block, k % F::VALUES, a.w_scale, v);
                } else {
#pragma unroll
                    for (int j = 0; j < 8; ++j) v[j] = __ushort_as_half(0);
                }
                *reinterpret_cast<uint4*>(tile + r * TILE_STRIDE + o % (K_TILE / 8) * 8) =
                    *reinterpret_cast<uint4*>(v);
            }
            __syncwarp();
#pragma unroll
            for (int step = 0; step < K_TILE / 16; ++step) {
                uint32_t w[4];
                ldmatrix_x4(w, tile + (lane % 16) * TILE_STRIDE + step * 16 + lane / 16 * 8);
#pragma unroll
                for (int n = 0; n < NT; ++n) {
                    const int token = token0 + 8 * n + g;
                    uint2 b = make_uint2(0, 0);
                    if (token < a.tokens) {
                        const half* x = a.x + static_cast<size_t>(token) * a.x_stride + k0;
                        b = *reinterpret_cast<const uint2*>(x + t * 16 + step * 4);
                    }
                    mma_m16n8k16(acc[n], w, b.x, b.y);
                }
            }
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
    for (int element = threadIdx.x; element < ROWS * TOKENS; element += WARPS * WARP) {
        const int row = row0 + element / TOKENS, token = token0 + element % TOKENS;
        if (row >= a.rows || token >= a.tokens) continue;
        float sum = 0.0f;
        for (int s = 0; s < segments; ++s) sum += partial[s][element];
        finish_one(a, token, row, sum);
    }
}

}  // namespace file_matmul
