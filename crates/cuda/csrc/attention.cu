// Attention of many tokens, or of few in any company; one token has decode_attention.cu.
#include "attention.cuh"
#include "cache.cuh"

using namespace attention;

namespace {
// Block number `at`, of a layer's blocks of all key heads.
__device__ __forceinline__ const half* block_of(const half* cache, Kv type, size_t at, int dim) {
    return reinterpret_cast<const half*>(reinterpret_cast<const uint8_t*>(cache) + at * kv_block_bytes(type, dim));
}

// Scores of a block of keys of coded types, for rows g and g + 8 of a tile: queries at `q0` and `q1`, or null.
template <Kv T, int D>
__device__ __forceinline__ void add_block_scores(float (&s)[WARP_KEYS / 8][4], const half* q0, const half* q1,
                                                 const uint8_t* codes, int dim) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const half* scales = reinterpret_cast<const half*>(codes + KV_BLOCK * dim) + 2 * t;
    auto scale = [&](int row, int n) { return *reinterpret_cast<const uint32_t*>(scales + row * KV_BLOCK + 8 * n); };
    // Not unrolled: with both types in a kernel, registers do not reach for heads of 256.
#pragma unroll 1
    for (int c = 0; c < D; c += KV_GROUP) {
        if (c >= dim) break;
        const uint4 none = make_uint4(0, 0, 0, 0);
        const uint4 w0 = q0 ? *reinterpret_cast<const uint4*>(q0 + c + 8 * t) : none;
        const uint4 w1 = q1 ? *reinterpret_cast<const uint4*>(q1 + c + 8 * t) : none;
#pragma unroll
        for (int n = 0; n < WARP_KEYS / 8; ++n) {
            const uint2 key = *reinterpret_cast<const uint2*>(codes + (8 * n + g) * dim + c + 8 * t);
            add_scores<T>(s[n], w0, w1, key, T == Kv::Q8_0 ? scale(c / KV_GROUP, n) : 0);
        }
    }
#pragma unroll
    for (int n = 0; n < WARP_KEYS / 8 && T == Kv::FP8; ++n) scale_scores(s[n], scale(0, n));
}

// Weights times a block of values of coded types, of which keys up to `last` are seen.
template <Kv T, int SUMS>
__device__ __forceinline__ void add_block(const AttentionArgs& a, float (&acc)[SUMS][4],
                                          const uint32_t (&p)[WARP_KEYS / 8][2], const uint8_t* codes, int last) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, dim = a.dim;
    const half* scales = reinterpret_cast<const half*>(codes + KV_BLOCK * dim);
#pragma unroll
    for (int step = 0; step < WARP_KEYS / 16; ++step) {
        const uint32_t w[4] = {p[2 * step][0], p[2 * step][1], p[2 * step + 1][0], p[2 * step + 1][1]};
#pragma unroll
        for (int c = 0; c < 8 * SUMS; c += KV_GROUP) {
            if (c >= dim) break;
            uint32_t four[4], pair[2];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int key = 16 * step + 2 * t + i / 2 * 8 + i % 2;
                // Keys that no row sees may hold what another sequence left there, NaN even.
                const bool seen = key <= last;
                four[i] = seen ? *reinterpret_cast<const uint32_t*>(codes + key * dim + c + 4 * g) : 0;
                const half* d = scales + (T == Kv::Q8_0 ? c / KV_GROUP : 0) * KV_BLOCK + key;
                const uint32_t scale = seen ? *reinterpret_cast<const uint16_t*>(d) : 0;
                pair[i / 2] = i % 2 ? pair[i / 2] | scale << 16 : scale;
            }
            add_values<T>(acc + c / 8, w, four, pair[0], pair[1]);
        }
    }
}

// A tile of 16 rows of one key head. Grid: segments (or 1) × kv heads × tiles. SPLIT: a block computes the partial of
// one segment; otherwise it walks all and finishes. ANY: of a cache of any types; otherwise it is f16.
template <int D, bool SPLIT, bool ANY>
__device__ __forceinline__ void attend(const AttentionArgs& a) {
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
            if (ANY) {
                const size_t at = block * a.kv_heads + kv_head;
                k = block_of(a.k, static_cast<Kv>(a.k_type), at, dim);
                v = block_of(a.v, static_cast<Kv>(a.v_type), at, dim);
            } else {
                const size_t at = (block * a.kv_heads + kv_head) * KV_BLOCK * dim;
                k = a.k + at;
                v = a.v + at;
            }
        }
        float s[WARP_KEYS / 8][4];
#pragma unroll
        for (int n = 0; n < WARP_KEYS / 8; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
        if (ANY && any && is_coded(static_cast<Kv>(a.k_type))) {
            const uint8_t* codes = reinterpret_cast<const uint8_t*>(k);
            const half *at0 = has0 ? a.q + q0 * dim : nullptr, *at1 = has1 ? a.q + q1 * dim : nullptr;
            if (static_cast<Kv>(a.k_type) == Kv::Q8_0) add_block_scores<Kv::Q8_0, D>(s, at0, at1, codes, dim);
            else add_block_scores<Kv::FP8, D>(s, at0, at1, codes, dim);
        } else if (any) {
#pragma unroll
            for (int c = 0; c < D; c += 16) {
                if (c >= dim) break;
                uint32_t q[4];
                q[0] = has0 ? *reinterpret_cast<const uint32_t*>(a.q + q0 * dim + c + 2 * t) : 0;
                q[1] = has1 ? *reinterpret_cast<const uint32_t*>(a.q + q1 * dim + c + 2 * t) : 0;
                q[2] = has0 ? *reinterpret_cast<const uint32_t*>(a.q + q0 * dim + c + 8 + 2 * t) : 0;
                q[3] = has1 ? *reinterpret_cast<const uint32_t*>(a.q + q1 * dim + c + 8 + 2 * t) : 0;
                auto multiply = [&](const auto& operand) {
#pragma unroll
                    for (int n = 0; n < WARP_KEYS / 8; ++n) {
                        const half* key = k + (8 * n + g) * dim + c + 2 * t;
                        operand.multiply(s[n], *reinterpret_cast<const uint32_t*>(key),
                                         *reinterpret_cast<const uint32_t*>(key + 8));
                    }
                };
                if (ANY && static_cast<Kv>(a.k_type) == Kv::BF16) multiply(SplitA(q));
                else multiply(HalfA(q));
            }
        }
        uint32_t p[WARP_KEYS / 8][2];
        segment_weights(a, s, p, key0, p0, p1, has0, has1, scale0, scale1, warp_m, warp_l);
        float acc[D / 8][4];
#pragma unroll
        for (int n = 0; n < D / 8; ++n) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.0f;
        const bool coded = ANY && is_coded(static_cast<Kv>(a.v_type));
        if (coded && any) {
            const uint8_t* codes = reinterpret_cast<const uint8_t*>(v);
            if (static_cast<Kv>(a.v_type) == Kv::Q8_0) add_block<Kv::Q8_0>(a, acc, p, codes, last_position - key0);
            else add_block<Kv::FP8>(a, acc, p, codes, last_position - key0);
        } else if (any) {
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
                    auto multiply = [&](const auto& operand) {
#pragma unroll
                        for (int c = 0; c < V_COLS; c += 16) {
                            if (c0 + c >= dim) break;
                            uint32_t b[4];
                            ldmatrix_x4_trans(b, tile_v + (lane % 16) * V_STRIDE + c + lane / 16 * 8);
                            operand.multiply(acc[(c0 + c) / 8], b[0], b[1]);
                            operand.multiply(acc[(c0 + c) / 8 + 1], b[2], b[3]);
                        }
                    };
                    if (ANY && static_cast<Kv>(a.v_type) == Kv::BF16) multiply(SplitA(w));
                    else multiply(HalfA(w));
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
                        const int c = coded ? value_channel<true>(n, i, t) : value_channel<false>(n, i, t);
                        float& to = o[i < 2 ? r0 : r1][c];
                        to = turn == 0 ? acc[n][i] : to + acc[n][i];
                    }
                }
            }
            __syncthreads();
        }
        if (threadIdx.x < ROWS) {
            const int r = threadIdx.x;
            const float m = segment_max(warp_m, r);
            const float l = segment_sum(warp_l, r);
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
                const size_t part = row * a.max_segments + n;
                a.partial_o[part * dim + c] = o[r][c];
                if (c == 0) a.partial_ml[part] = make_float2(run_m[r], run_l[r]);
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
        attend<D, false, false>(a); \
    } \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_split_d##D(const AttentionArgs a) { \
        attend<D, true, false>(a); \
    } \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_walk_any_d##D(const AttentionArgs a) { \
        attend<D, false, true>(a); \
    } \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_split_any_d##D(const AttentionArgs a) { \
        attend<D, true, true>(a); \
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
    const size_t part = row * a.max_segments;
    float m = -INFINITY, l = 0.0f, o = 0.0f;
#pragma unroll 4
    for (int n = 0; n < segments; ++n) {
        const float2 ml = a.partial_ml[part + n];
        float keep, take;
        merge(m, l, ml.x, ml.y, keep, take);
        o = o * keep + a.partial_o[(part + n) * a.dim + c] * take;
    }
    a.out[row * a.dim + c] = o / l;
}
