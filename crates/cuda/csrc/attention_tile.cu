// Attention of many tokens: a block has a tile of 128 rows of one key head, 16 for each warp, and walks the keys, which
// all warps read from shared memory. A warp does for its rows what four warps do in attention.cu, in the same order.
#include "attention.cuh"
#include "cache.cuh"

using namespace attention;

namespace {
constexpr int TILE_WARPS = 8;
constexpr int TILE_THREADS = TILE_WARPS * WARP;
constexpr int TILE_ROWS = TILE_WARPS * ROWS;
// Blocks of 64 keys or values that are on their way or at hand.
constexpr int STAGES = 4;
// Chunks of a segment, a warp's share of it in attention.cu.
constexpr int CHUNKS = ATTN_SEGMENT / WARP_KEYS;

// A block of keys or values in shared memory.
template <int D, Kv T, bool CODED = is_coded(T)>
struct Block {
    half values[KV_BLOCK * D];
};
template <int D, Kv T>
struct Block<D, T, true> {
    uint8_t codes[KV_BLOCK * D];  // at `code_place`
    half scales[scales_each(T, D)][KV_BLOCK];
};

// What the host reserves, device/stages.rs: queries, blocks of keys and values, and outputs of earlier segments.
template <int D, Kv T>
struct Shared {
    half q[TILE_ROWS * D];
    Block<D, T> ring[STAGES];
    float out[D / 2][TILE_THREADS];
};
static_assert(sizeof(Shared<64, Kv::F16>) == 81920 && sizeof(Shared<128, Kv::F16>) == 163840, "attention_tile_shared");
static_assert(sizeof(Shared<128, Kv::Q8_0>) == 163840 - STAGES * KV_BLOCK * 120, "attention_tile_shared");
static_assert(sizeof(Shared<128, Kv::FP8>) == 163840 - STAGES * KV_BLOCK * 126, "attention_tile_shared");

// Where chunk c of 8 channels of a row lies: rows that ldmatrix reads together fall into different banks.
template <int D>
__device__ __forceinline__ int swizzled(int row, int c) {
    return row * D + (c ^ (row & 7)) * 8;
}

// T: type of the cache.
template <int D, Kv T>
__device__ __forceinline__ void attend(const AttentionArgs& a) {
    constexpr bool CODED = is_coded(T);
    extern __shared__ __align__(16) uint8_t memory[];
    Shared<D, T>& shared = *reinterpret_cast<Shared<D, T>*>(memory);
    grid_wait();
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int kv_head = blockIdx.x, share = a.q_heads / a.kv_heads;

    // The span of this tile: tiles are numbered through all spans, the last ones, which see most, first.
    int tile = gridDim.y - 1 - blockIdx.y, span = 0;
    for (;; ++span) {
        if (span == a.spans.spans) return;
        const int tiles = (a.spans.len[span] * share + TILE_ROWS - 1) / TILE_ROWS;
        if (tile < tiles) break;
        tile -= tiles;
    }
    const int first_row = tile * TILE_ROWS;
    const int rows = min(TILE_ROWS, static_cast<int>(a.spans.len[span]) * share - first_row);
    const int start = a.spans.start[span], position0 = a.spans.position[start];
    const int first_position = position0 + first_row / share, last_position = position0 + (first_row + rows - 1) / share;
    const int first_seen = seen_from(a, first_position), from_segment = first_seen / ATTN_SEGMENT;
    const int segments = last_position / ATTN_SEGMENT + 1 - from_segment;
    // Row r of the tile among all rows of queries.
    auto row_of = [&](int r) {
        return static_cast<size_t>(start + (first_row + r) / share) * a.q_heads + kv_head * share + (first_row + r) % share;
    };

    for (int i = threadIdx.x; i < TILE_ROWS * (D / 8); i += TILE_THREADS) {
        const int r = i / (D / 8), c = i % (D / 8);
        half* to = shared.q + swizzled<D>(r, c);
        if (r < rows) copy_async16(to, a.q + row_of(r) * D + c * 8);
        else *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
    }
    // Whether any row of the tile sees a key of a chunk, which begins at `key0`.
    auto seen = [&](int key0) { return key0 <= last_position && key0 + WARP_KEYS > first_seen; };
    // Step j of a segment: the keys of its chunks, then their values.
    const int steps = segments * 2 * CHUNKS;
    auto ask = [&](int j) {
        const int key0 = (from_segment + j / (2 * CHUNKS)) * ATTN_SEGMENT + j % CHUNKS * WARP_KEYS;
        if (j < steps && seen(key0)) {
            const bool values = j / CHUNKS % 2;
            const size_t block = physical_block(a.spans, span, a.group, key0 / KV_BLOCK);
            const half* tensor = values ? a.v : a.k;
            // Keys that no row of the tile sees may hold what another sequence left there, NaN even.
            const int known = min(last_position + 1 - key0, KV_BLOCK);
            Block<D, T>& to = shared.ring[j % STAGES];
            if constexpr (CODED) {
                const uint8_t* from = reinterpret_cast<const uint8_t*>(tensor) + (block * a.kv_heads + kv_head) * kv_block_bytes(T, D);
#pragma unroll
                for (int i = 0; i < KV_BLOCK * (D / 16) / TILE_THREADS; ++i) {
                    const int e = threadIdx.x + i * TILE_THREADS, key = e / (D / 16), c = e % (D / 16) * 16;
                    uint8_t* place = to.codes + code_place<D>(key, c);
                    if (key < known) copy_async16(place, from + key * D + c);
                    else *reinterpret_cast<uint4*>(place) = make_uint4(0, 0, 0, 0);
                }
                if (threadIdx.x < scales_each(T, D) * KV_BLOCK / 8) {
                    const int at = threadIdx.x * 8;
                    copy_scales(to.scales[0] + at, reinterpret_cast<const half*>(from + KV_BLOCK * D) + at, 0,
                                known - at % KV_BLOCK);
                }
            } else {
                const half* from = tensor + (block * a.kv_heads + kv_head) * KV_BLOCK * D;
#pragma unroll
                for (int i = 0; i < KV_BLOCK * (D / 8) / TILE_THREADS; ++i) {
                    const int e = threadIdx.x + i * TILE_THREADS, key = e / (D / 8), c = e % (D / 8);
                    half* place = to.values + swizzled<D>(key, c);
                    if (key < known) copy_async16(place, from + key * D + c * 8);
                    else *reinterpret_cast<uint4*>(place) = make_uint4(0, 0, 0, 0);
                }
            }
        }
        copy_commit();
    };
    for (int j = 0; j < STAGES - 1; ++j) ask(j);

    const int r0 = warp * ROWS + g, r1 = r0 + 8;
    const bool has0 = r0 < rows, has1 = r1 < rows;
    const int p0 = position0 + (first_row + r0) / share, p1 = position0 + (first_row + r1) / share;
    const float scale0 = has0 ? a.q_unscale[row_of(r0)] * a.scale : 0.0f;
    const float scale1 = has1 ? a.q_unscale[row_of(r1)] * a.scale : 0.0f;
    float run_m0 = -INFINITY, run_m1 = -INFINITY, run_l0 = 0.0f, run_l1 = 0.0f;

#pragma unroll 1
    for (int n_segment = 0; n_segment < segments; ++n_segment) {
        const int segment_key = (from_segment + n_segment) * ATTN_SEGMENT, step0 = n_segment * 2 * CHUNKS;
        float s[CHUNKS][WARP_KEYS / 8][4];
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            const int j = step0 + chunk;
            copy_wait<STAGES - 2>();
            __syncthreads();
            ask(j + STAGES - 1);
#pragma unroll
            for (int n = 0; n < WARP_KEYS / 8; ++n) s[chunk][n][0] = s[chunk][n][1] = s[chunk][n][2] = s[chunk][n][3] = 0.0f;
            if (!seen(segment_key + chunk * WARP_KEYS)) continue;
            const Block<D, T>& keys = shared.ring[j % STAGES];
            if constexpr (CODED) {
#pragma unroll 1
                for (int c = 0; c < D; c += KV_GROUP) {
                    const half* q = shared.q + swizzled<D>(warp * ROWS + g, c / 8 + t);
                    const uint4 q0 = *reinterpret_cast<const uint4*>(q), q1 = *reinterpret_cast<const uint4*>(q + 8 * D);
#pragma unroll
                    for (int n = 0; n < WARP_KEYS / 8; ++n) {
                        const uint8_t* key = keys.codes + code_place<D>(8 * n + g, c + 8 * t);
                        const half* scales = keys.scales[T == Kv::Q8_0 ? c / KV_GROUP : 0] + 8 * n + 2 * t;
                        add_scores<T>(s[chunk][n], q0, q1, *reinterpret_cast<const uint2*>(key),
                                      T == Kv::Q8_0 ? *reinterpret_cast<const uint32_t*>(scales) : 0);
                    }
                }
#pragma unroll
                for (int n = 0; n < WARP_KEYS / 8 && T == Kv::FP8; ++n) {
                    scale_scores(s[chunk][n], *reinterpret_cast<const uint32_t*>(keys.scales[0] + 8 * n + 2 * t));
                }
            } else {
#pragma unroll
                for (int c = 0; c < D; c += 16) {
                    uint32_t fragment[4];
                    ldmatrix_x4(fragment, shared.q + swizzled<D>(warp * ROWS + lane % 16, c / 8 + lane / 16));
                    const Operand<T> q(fragment);
#pragma unroll
                    for (int n = 0; n < WARP_KEYS / 8; n += 2) {
                        uint32_t b[4];
                        ldmatrix_x4(b, keys.values + swizzled<D>(8 * n + lane / 16 * 8 + lane % 8, c / 8 + lane / 8 % 2));
                        q.multiply(s[chunk][n], b[0], b[1]);
                        q.multiply(s[chunk][n + 1], b[2], b[3]);
                    }
                }
            }
        }
        // Scale, cap, mask; the largest of the segment.
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
#pragma unroll
            for (int n = 0; n < WARP_KEYS / 8; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) s[chunk][n][i] *= i < 2 ? scale0 : scale1;
            }
        }
        if (a.soft_cap > 0.0f) {
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; ++chunk) {
#pragma unroll
                for (int n = 0; n < WARP_KEYS / 8; ++n) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) s[chunk][n][i] = a.soft_cap * tanhf(s[chunk][n][i] / a.soft_cap);
                }
            }
        }
        float m0 = -INFINITY, m1 = -INFINITY;
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            const int lane_key = segment_key + chunk * WARP_KEYS + 2 * t;
            const int from0 = seen_from(a, p0) - lane_key, from1 = seen_from(a, p1) - lane_key;
            const int to0 = has0 ? p0 - lane_key : -1, to1 = has1 ? p1 - lane_key : -1;
#pragma unroll
            for (int n = 0; n < WARP_KEYS / 8; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int key = 8 * n + i % 2;
                    const bool sees = i < 2 ? key >= from0 && key <= to0 : key >= from1 && key <= to1;
                    const float v = sees ? s[chunk][n][i] : -INFINITY;
                    if (i < 2) m0 = fmaxf(m0, v);
                    else m1 = fmaxf(m1, v);
                    s[chunk][n][i] = v;
                }
            }
        }
#pragma unroll
        for (int d = 1; d <= 2; d *= 2) {
            m0 = fmaxf(m0, __shfl_xor_sync(~0u, m0, d));
            m1 = fmaxf(m1, __shfl_xor_sync(~0u, m1, d));
        }
        const float base0 = m0 == -INFINITY ? 0.0f : m0, base1 = m1 == -INFINITY ? 0.0f : m1;
        uint32_t p[CHUNKS][WARP_KEYS / 8][2];
        float l0 = 0.0f, l1 = 0.0f;
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            float c0 = 0.0f, c1 = 0.0f;
#pragma unroll
            for (int n = 0; n < WARP_KEYS / 8; ++n) {
                const float w0 = exp2f((s[chunk][n][0] - base0) * LOG2_E), w1 = exp2f((s[chunk][n][1] - base0) * LOG2_E);
                const float w2 = exp2f((s[chunk][n][2] - base1) * LOG2_E), w3 = exp2f((s[chunk][n][3] - base1) * LOG2_E);
                c0 = c0 + w0 + w1;
                c1 = c1 + w2 + w3;
                p[chunk][n][0] = as_u32(__floats2half2_rn(w0, w1));
                p[chunk][n][1] = as_u32(__floats2half2_rn(w2, w3));
            }
#pragma unroll
            for (int d = 1; d <= 2; d *= 2) {
                c0 += __shfl_xor_sync(~0u, c0, d);
                c1 += __shfl_xor_sync(~0u, c1, d);
            }
            l0 = chunk == 0 ? c0 : l0 + c0;
            l1 = chunk == 0 ? c1 : l1 + c1;
        }
        // Values: a chain for each chunk, which are added in ascending order.
        float sum[D / 8][4];
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            const int j = step0 + CHUNKS + chunk;
            copy_wait<STAGES - 2>();
            __syncthreads();
            ask(j + STAGES - 1);
            const bool any = seen(segment_key + chunk * WARP_KEYS);
            const Block<D, T>& values = shared.ring[j % STAGES];
            // Channels in quarters: registers.
#pragma unroll
            for (int c0 = 0; c0 < D; c0 += 32) {
                float acc[4][4];
#pragma unroll
                for (int n = 0; n < 4; ++n) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.0f;
                if (any) {
#pragma unroll
                    for (int step = 0; step < WARP_KEYS / 16; ++step) {
                        const uint32_t weights[4] = {p[chunk][2 * step][0], p[chunk][2 * step][1],
                                                     p[chunk][2 * step + 1][0], p[chunk][2 * step + 1][1]};
                        if constexpr (CODED) {
                            uint32_t codes[4];
#pragma unroll
                            for (int i = 0; i < 4; ++i) {
                                const int key = 16 * step + 2 * t + i / 2 * 8 + i % 2;
                                codes[i] = *reinterpret_cast<const uint32_t*>(values.codes + code_place<D>(key, c0 + 4 * g));
                            }
                            const half* scales = values.scales[c0 / scaled_channels(T, D)] + 16 * step + 2 * t;
                            add_values<T>(acc, weights, codes, *reinterpret_cast<const uint32_t*>(scales),
                                          *reinterpret_cast<const uint32_t*>(scales + 8));
                        } else {
                            const Operand<T> w(weights);
#pragma unroll
                            for (int c = 0; c < 32; c += 16) {
                                uint32_t b[4];
                                ldmatrix_x4_trans(b, values.values + swizzled<D>(16 * step + lane % 16, (c0 + c) / 8 + lane / 16));
                                w.multiply(acc[c / 8], b[0], b[1]);
                                w.multiply(acc[c / 8 + 1], b[2], b[3]);
                            }
                        }
                    }
                }
#pragma unroll
                for (int n = 0; n < 4; ++n) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        float& to = sum[c0 / 8 + n][i];
                        to = chunk == 0 ? acc[n][i] : to + acc[n][i];
                    }
                }
            }
        }
        float keep0, take0, keep1, take1;
        merge(run_m0, run_l0, m0, l0, keep0, take0);
        merge(run_m1, run_l1, m1, l1, keep1, take1);
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float& to = shared.out[4 * n + i][threadIdx.x];
                const float before = n_segment == 0 ? 0.0f : to;
                to = before * (i < 2 ? keep0 : keep1) + sum[n][i] * (i < 2 ? take0 : take1);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
#pragma unroll
        for (int half_row = 0; half_row < 2; ++half_row) {
            if (!(half_row ? has1 : has0)) continue;
            const float l = half_row ? run_l1 : run_l0;
            float* to = a.out + row_of(half_row ? r1 : r0) * D;
            const float low = shared.out[4 * n + 2 * half_row][threadIdx.x] / l;
            const float high = shared.out[4 * n + 2 * half_row + 1][threadIdx.x] / l;
            if (CODED) {
                to[value_channel<true>(n, 0, t)] = low;
                to[value_channel<true>(n, 1, t)] = high;
            } else {
                *reinterpret_cast<float2*>(to + 8 * n + 2 * t) = make_float2(low, high);
            }
        }
    }
}
}  // namespace

// Grid: key heads × tiles.
#define KERNEL(name, D, T) \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS, 1) name(const __grid_constant__ AttentionArgs a) { \
        attend<D, T>(a); \
    }
KERNEL(attention_tile_d64, 64, Kv::F16)
KERNEL(attention_tile_d64_bf16, 64, Kv::BF16)
KERNEL(attention_tile_d64_q8_0, 64, Kv::Q8_0)
KERNEL(attention_tile_d64_fp8, 64, Kv::FP8)
KERNEL(attention_tile_d128, 128, Kv::F16)
KERNEL(attention_tile_d128_bf16, 128, Kv::BF16)
KERNEL(attention_tile_d128_q8_0, 128, Kv::Q8_0)
KERNEL(attention_tile_d128_fp8, 128, Kv::FP8)
