// Attention over the paged cache, causal. The unit of the profile is a segment: 256 keys at absolute positions, for
// which a row (a query head of a token) has a softmax partial (largest score m, sum l of exp(s − m), values o).
// Partials are merged in ascending order. Within a segment four warps take 64 keys each:
// - scores: one m16n8k16 chain over the head's channels, from zero, in ascending order;
// - m: the largest of all; l: per lane over its keys in ascending order, then over the four lanes of a row, then over
//   warps in ascending order; o: one chain over the warp's keys, then over warps in ascending order.
// None of it depends on which other rows are computed, nor on who merges.
#include "step.cuh"

namespace {
constexpr int WARPS = 4;
constexpr int THREADS = WARPS * WARP;
constexpr int ROWS = 16;
constexpr int WARP_KEYS = ATTN_SEGMENT / WARPS;
constexpr float LOG2_E = 1.4426950408889634f;

struct AttentionArgs {
    const half* q;           // [tokens][q_heads][dim]
    const float* q_unscale;  // [tokens][q_heads]
    const half* k;           // of the layer: [block][kv_head][KV_BLOCK][dim]
    const half* v;
    float* out;      // [tokens][q_heads · dim]
    float* partial;  // [tokens][q_heads][max_segments][dim + 2], o then m then l; only if split
    Spans spans;
    int group;
    int q_heads;
    int kv_heads;
    int dim;
    float scale;
    float soft_cap;  // 0: none
    int window;      // 0: none
    int max_segments;
};

// First position that a query at `position` sees.
__device__ __forceinline__ int seen_from(const AttentionArgs& a, int position) {
    return a.window > 0 ? max(position + 1 - a.window, 0) : 0;
}

// Merges a later partial into (m, l): factors of the earlier and the later values.
__device__ __forceinline__ void merge(float& m, float& l, float part_m, float part_l, float& keep, float& take) {
    if (part_m == -INFINITY) {
        keep = 1.0f;
        take = 0.0f;
        return;
    }
    const float most = fmaxf(m, part_m);
    keep = exp2f((m - most) * LOG2_E);
    take = exp2f((part_m - most) * LOG2_E);
    l = l * keep + part_l * take;
    m = most;
}

// A tile of 16 rows of one key head. Grid: segments (or 1) × kv heads × tiles. SPLIT: a block computes the partial of
// one segment; otherwise it walks all and finishes.
template <int D, bool SPLIT>
__device__ __forceinline__ void attention(const AttentionArgs& a) {
    // Channels of V that a warp holds at a time: what fits beside the outputs of 256 channels.
    constexpr int V_COLS = D == 256 ? 64 : D;
    constexpr int V_STRIDE = V_COLS + 8;
    __shared__ __align__(16) half v_tile[WARPS][16 * V_STRIDE];
    __shared__ float warp_m[WARPS][ROWS], warp_l[WARPS][ROWS];
    __shared__ float o[ROWS][D];
    __shared__ float run_m[ROWS], run_l[ROWS], keep[ROWS], take[ROWS];
    // Outputs of earlier segments, if this block walks them.
    __shared__ float run_o[SPLIT ? 1 : ROWS][SPLIT ? 1 : D];

    grid_wait();
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int kv_head = blockIdx.y, share = a.q_heads / a.kv_heads, dim = a.dim;

    // The span of this tile: tiles are numbered through all spans.
    int tile = blockIdx.z, span = 0;
    for (;; ++span) {
        if (span == a.spans.spans) return;
        const int tiles = (a.spans.len[span] * share + ROWS - 1) / ROWS;
        if (tile < tiles) break;
        tile -= tiles;
    }
    const int first_row = tile * ROWS, rows = min(ROWS, static_cast<int>(a.spans.len[span]) * share - first_row);
    const int start = a.spans.start[span], position0 = a.spans.position[start];
    const int first_position = position0 + first_row / share, last_position = position0 + (first_row + rows - 1) / share;
    const int from_segment = seen_from(a, first_position) / ATTN_SEGMENT, to_segment = last_position / ATTN_SEGMENT + 1;

    // Row r of the tile: token and query head.
    auto token_of = [&](int r) { return start + (first_row + r) / share; };
    auto head_of = [&](int r) { return kv_head * share + (first_row + r) % share; };

    if (!SPLIT) {
        for (int i = threadIdx.x; i < ROWS * D; i += THREADS) run_o[i / D][i % D] = 0.0f;
        if (threadIdx.x < ROWS) {
            run_m[threadIdx.x] = -INFINITY;
            run_l[threadIdx.x] = 0.0f;
        }
    }
    const int begin = SPLIT ? from_segment + static_cast<int>(blockIdx.x) : from_segment;
    const int end = SPLIT ? min(begin + 1, to_segment) : to_segment;
    if (SPLIT && begin >= end) return;

    const int r0 = g, r1 = g + 8;
    const bool has0 = r0 < rows, has1 = r1 < rows;
    const int p0 = position0 + (first_row + r0) / share, p1 = position0 + (first_row + r1) / share;
    const size_t q0 = static_cast<size_t>(token_of(has0 ? r0 : 0)) * a.q_heads + head_of(has0 ? r0 : 0);
    const size_t q1 = static_cast<size_t>(token_of(has1 ? r1 : 0)) * a.q_heads + head_of(has1 ? r1 : 0);
    const float scale0 = a.q_unscale[q0] * a.scale, scale1 = a.q_unscale[q1] * a.scale;

    for (int segment = begin; segment < end; ++segment) {
        const int key0 = segment * ATTN_SEGMENT + warp * WARP_KEYS;
        // A warp's 64 keys are one block of the cache.
        const bool any = key0 <= last_position && key0 + WARP_KEYS > seen_from(a, first_position);
        const half *k = nullptr, *v = nullptr;
        if (any) {
            const size_t block = physical_block(a.spans, span, a.group, key0 / KV_BLOCK);
            const size_t at = (block * a.kv_heads + kv_head) * KV_BLOCK * dim;
            k = a.k + at;
            v = a.v + at;
        }
        float s[WARP_KEYS / 8][4];
#pragma unroll
        for (int n = 0; n < WARP_KEYS / 8; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
        if (any) {
#pragma unroll
            for (int c = 0; c < D; c += 16) {
                if (c >= dim) break;
                uint32_t q[4];
                q[0] = has0 ? *reinterpret_cast<const uint32_t*>(a.q + q0 * dim + c + 2 * t) : 0;
                q[1] = has1 ? *reinterpret_cast<const uint32_t*>(a.q + q1 * dim + c + 2 * t) : 0;
                q[2] = has0 ? *reinterpret_cast<const uint32_t*>(a.q + q0 * dim + c + 8 + 2 * t) : 0;
                q[3] = has1 ? *reinterpret_cast<const uint32_t*>(a.q + q1 * dim + c + 8 + 2 * t) : 0;
#pragma unroll
                for (int n = 0; n < WARP_KEYS / 8; ++n) {
                    const half* key = k + (8 * n + g) * dim + c + 2 * t;
                    mma_m16n8k16(s[n], q, *reinterpret_cast<const uint32_t*>(key),
                                 *reinterpret_cast<const uint32_t*>(key + 8));
                }
            }
        }
        // Scale, cap, mask; the largest.
        float m0 = -INFINITY, m1 = -INFINITY;
#pragma unroll
        for (int n = 0; n < WARP_KEYS / 8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int key = key0 + 8 * n + 2 * t + i % 2, position = i < 2 ? p0 : p1;
                float score = s[n][i] * (i < 2 ? scale0 : scale1);
                if (a.soft_cap > 0.0f) score = a.soft_cap * tanhf(score / a.soft_cap);
                const bool seen = (i < 2 ? has0 : has1) && key <= position && key >= seen_from(a, position);
                s[n][i] = seen ? score : -INFINITY;
                if (i < 2) m0 = fmaxf(m0, s[n][i]);
                else m1 = fmaxf(m1, s[n][i]);
            }
        }
#pragma unroll
        for (int d = 1; d <= 2; d *= 2) {
            m0 = fmaxf(m0, __shfl_xor_sync(~0u, m0, d));
            m1 = fmaxf(m1, __shfl_xor_sync(~0u, m1, d));
        }
        if (t == 0) {
            warp_m[warp][r0] = m0;
            warp_m[warp][r1] = m1;
        }
        __syncthreads();
        m0 = fmaxf(fmaxf(warp_m[0][r0], warp_m[1][r0]), fmaxf(warp_m[2][r0], warp_m[3][r0]));
        m1 = fmaxf(fmaxf(warp_m[0][r1], warp_m[1][r1]), fmaxf(warp_m[2][r1], warp_m[3][r1]));
        // A row that sees nothing here: every weight is exp(−∞ − 0) = 0.
        const float base0 = m0 == -INFINITY ? 0.0f : m0, base1 = m1 == -INFINITY ? 0.0f : m1;
        float l0 = 0.0f, l1 = 0.0f;
        uint32_t p[WARP_KEYS / 8][2];
#pragma unroll
        for (int n = 0; n < WARP_KEYS / 8; ++n) {
            const float w0 = exp2f((s[n][0] - base0) * LOG2_E), w1 = exp2f((s[n][1] - base0) * LOG2_E);
            const float w2 = exp2f((s[n][2] - base1) * LOG2_E), w3 = exp2f((s[n][3] - base1) * LOG2_E);
            l0 = l0 + w0 + w1;
            l1 = l1 + w2 + w3;
            p[n][0] = as_u32(__floats2half2_rn(w0, w1));
            p[n][1] = as_u32(__floats2half2_rn(w2, w3));
        }
#pragma unroll
        for (int d = 1; d <= 2; d *= 2) {
            l0 += __shfl_xor_sync(~0u, l0, d);
            l1 += __shfl_xor_sync(~0u, l1, d);
        }
        if (t == 0) {
            warp_l[warp][r0] = l0;
            warp_l[warp][r1] = l1;
        }
        float acc[D / 8][4];
#pragma unroll
        for (int n = 0; n < D / 8; ++n) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.0f;
        if (any) {
            half* tile_v = v_tile[warp];
#pragma unroll
            for (int step = 0; step < WARP_KEYS / 16; ++step) {
                const uint32_t w[4] = {p[2 * step][0], p[2 * step][1], p[2 * step + 1][0], p[2 * step + 1][1]};
#pragma unroll
                for (int c0 = 0; c0 < D; c0 += V_COLS) {
                    if (c0 >= dim) break;
                    __syncwarp();
                    for (int i = lane; i < 16 * (V_COLS / 8); i += WARP) {
                        const int key = i / (V_COLS / 8), c = i % (V_COLS / 8) * 8;
                        // Keys that no row of the tile sees may hold what another sequence left there, NaN even.
                        const bool seen = key0 + 16 * step + key <= last_position && c0 + c < dim;
                        const half* from = v + (16 * step + key) * dim + c0 + c;
                        *reinterpret_cast<uint4*>(tile_v + key * V_STRIDE + c) =
                            seen ? *reinterpret_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
                    }
                    __syncwarp();
#pragma unroll
                    for (int c = 0; c < V_COLS; c += 16) {
                        if (c0 + c >= dim) break;
                        uint32_t b[4];
                        ldmatrix_x4_trans(b, tile_v + (lane % 16) * V_STRIDE + c + lane / 16 * 8);
                        mma_m16n8k16(acc[(c0 + c) / 8], w, b[0], b[1]);
                        mma_m16n8k16(acc[(c0 + c) / 8 + 1], w, b[2], b[3]);
                    }
                }
            }
        }
        // Warps add in ascending order.
        for (int turn = 0; turn < WARPS; ++turn) {
            if (turn == warp) {
#pragma unroll
                for (int n = 0; n < D / 8; ++n) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        float& to = o[i < 2 ? r0 : r1][8 * n + 2 * t + i % 2];
                        to = turn == 0 ? acc[n][i] : to + acc[n][i];
                    }
                }
            }
            __syncthreads();
        }
        if (threadIdx.x < ROWS) {
            const int r = threadIdx.x;
            const float m = fmaxf(fmaxf(warp_m[0][r], warp_m[1][r]), fmaxf(warp_m[2][r], warp_m[3][r]));
            const float l = ((warp_l[0][r] + warp_l[1][r]) + warp_l[2][r]) + warp_l[3][r];
            if (SPLIT) {
                run_m[r] = m;
                run_l[r] = l;
            } else {
                merge(run_m[r], run_l[r], m, l, keep[r], take[r]);
            }
        }
        __syncthreads();
        for (int i = threadIdx.x; i < rows * D; i += THREADS) {
            const int r = i / D, c = i % D;
            if (c >= dim) continue;
            if (SPLIT) {
                const size_t row = static_cast<size_t>(token_of(r)) * a.q_heads + head_of(r);
                // Segments are numbered from the first that the row itself sees.
                const int position = position0 + (first_row + r) / share;
                const int n = segment - seen_from(a, position) / ATTN_SEGMENT;
                if (n < 0 || segment > position / ATTN_SEGMENT) continue;
                float* part = a.partial + (row * a.max_segments + n) * (dim + 2);
                part[c] = o[r][c];
                if (c == 0) {
                    part[dim] = run_m[r];
                    part[dim + 1] = run_l[r];
                }
            } else {
                run_o[r][c] = run_o[r][c] * keep[r] + o[r][c] * take[r];
            }
        }
        __syncthreads();
    }
    if (!SPLIT) {
        for (int i = threadIdx.x; i < rows * D; i += THREADS) {
            const int r = i / D, c = i % D;
            if (c >= dim) continue;
            const size_t row = static_cast<size_t>(token_of(r)) * a.q_heads + head_of(r);
            a.out[row * dim + c] = run_o[r][c] / run_l[r];
        }
    }
}
}  // namespace

#define KERNELS(D) \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_walk_d##D(const AttentionArgs a) { \
        attention<D, false>(a); \
    } \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_split_d##D(const AttentionArgs a) { \
        attention<D, true>(a); \
    }
KERNELS(64)
KERNELS(128)
KERNELS(256)

// Merges the partials of a row. Grid: q heads × tokens, a thread per channel.
extern "C" __global__ void __launch_bounds__(256) attention_merge(const AttentionArgs a) {
    grid_wait();
    const int token = blockIdx.y, c = threadIdx.x;
    if (c >= a.dim) return;
    const int position = a.spans.position[token];
    const int segments = position / ATTN_SEGMENT + 1 - seen_from(a, position) / ATTN_SEGMENT;
    const size_t row = static_cast<size_t>(token) * a.q_heads + blockIdx.x;
    const float* part = a.partial + row * a.max_segments * (a.dim + 2);
    float m = -INFINITY, l = 0.0f, o = 0.0f;
    for (int n = 0; n < segments; ++n, part += a.dim + 2) {
        float keep, take;
        merge(m, l, part[a.dim], part[a.dim + 1], keep, take);
        o = o * keep + part[c] * take;
    }
    a.out[row * a.dim + c] = o / l;
}
