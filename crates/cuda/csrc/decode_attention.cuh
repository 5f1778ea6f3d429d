// Attention of single tokens: what follows q, k and v, a segment of keys by one block, and the merge of partials by the
// last block to come. Keys and values of earlier steps are fetched before what is computed now is there. The bits of
// attention.cu.
#pragma once
#include "attention.cuh"
#include "cache.cuh"

struct DecodeAttentionArgs {
    HeadsArgs heads;
    attention::AttentionArgs attention;
    uint32_t* arrived;  // [tokens][kv_heads], zero
    int tokens;
    int unused;
};

namespace decode_attention {
using namespace attention;

// Segments whose factors are in shared memory at a time.
constexpr int MERGE_SEGMENTS = 64;
// Channels of a tile of values.
constexpr int V_TILE = 64;
// One segment of one token's keys, for one key head.
struct Work {
    int token;
    int kv_head;
    int segment;   // absolute
    int segments;  // that the token sees
    int index;     // among them
    int position;  // of the token
};

// For heads of up to HEAD channels.
template <int HEAD>
struct alignas(128) SharedOf {
    half q[ROWS * (HEAD + 8)];
    float q_unscale[ROWS];
    float m[WARPS][ROWS], l[WARPS][ROWS];
    float run_m[ROWS], run_l[ROWS];
    // The segment's blocks in the cache.
    uint32_t block[ATTN_SEGMENT / KV_BLOCK];
    int last;
};
template <int D>
using Shared = SharedOf<(D > 128 ? 256 : 128)>;

// Floats for heads before they are rounded, one per warp; later for factors of what is there and of what comes, per row
// and segment.
constexpr int SCRATCH = 2 * ROWS * MERGE_SEGMENTS;

// The same of a cache of codes, whose blocks are small to be many: heads only. Factors take the place of codes.
template <int D, int THREADS>
constexpr int CODED_SCRATCH = THREADS / WARP * D;

// Bytes of a segment's keys and values. DEEP, tiles of values behind the first take the place of keys that were used: two
// blocks of long contexts share a multiprocessor, while one of a short context does not wait for memory twice. Of heads of
// 256 channels a block has room for no more either way.
template <int D, bool DEEP>
constexpr int AREA = ATTN_SEGMENT * (DEEP ? D + V_TILE : 2 * D) * static_cast<int>(sizeof(half));

// Where chunk c of 8 channels of a row of CHUNKS lies: rows that ldmatrix reads together fall into different banks.
template <int CHUNKS>
__device__ __forceinline__ int swizzled(int row, int c) {
    return (row * CHUNKS + (c ^ (row & 7))) * 8;
}

// Where the segment's blocks of earlier steps are, and rows of the tile of queries that no head has. All threads; meets.
template <int D, int THREADS>
__device__ __forceinline__ void find_blocks(const AttentionArgs& a, const Work& work, Shared<D>& shared) {
    const int from = seen_from(a, work.position);
    if (threadIdx.x < ATTN_SEGMENT / KV_BLOCK) {
        const int block = work.segment * (ATTN_SEGMENT / KV_BLOCK) + threadIdx.x;
        const bool seen = block >= from / KV_BLOCK && block <= work.position / KV_BLOCK;
        if (seen) shared.block[threadIdx.x] = physical_block(a.spans, a.spans.span_of[work.token], a.group, block);
    }
    __syncthreads();
}

template <int D, int THREADS>
__device__ __forceinline__ void clear_queries(const AttentionArgs& a, Shared<D>& shared) {
    const int share = a.q_heads / a.kv_heads;
    for (int i = threadIdx.x; i < (ROWS - share) * (D / 8); i += THREADS) {
        half* to = shared.q + (share + i / (D / 8)) * (D + 8) + i % (D / 8) * 8;
        *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
    }
    if (threadIdx.x < ROWS) shared.q_unscale[threadIdx.x] = 0.0f;
}

// Keys of the segment, and the first channels of its values, of earlier steps; zeros for others. To be waited for with
// copy_wait.
template <int D, int THREADS, bool DEEP>
__device__ __forceinline__ void fetch(const DecodeAttentionArgs& args, const Work& work, Shared<D>& shared, half* area) {
    const AttentionArgs& a = args.attention;
    const int from = seen_from(a, work.position);
    find_blocks<D, THREADS>(a, work, shared);
    half* values = area + ATTN_SEGMENT * D;
#pragma unroll 1
    for (int b = 0; b < ATTN_SEGMENT / KV_BLOCK; ++b) {
        const int key0 = work.segment * ATTN_SEGMENT + b * KV_BLOCK;
        const int first = max(from - key0, 0), end = min(work.position - key0, KV_BLOCK);
        const size_t at = (static_cast<size_t>(shared.block[b]) * a.kv_heads + work.kv_head) * KV_BLOCK * D;
        auto copy = [&](half* to, const half* tensor, int key, int c) {
            if (key >= first && key < end) {
                copy_async16(to, tensor + at + key * D + c * 8);
            } else {
                *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
            }
        };
        for (int i = threadIdx.x; i < KV_BLOCK * (D / 8); i += THREADS) {
            const int key = i / (D / 8), c = i % (D / 8);
            copy(area + swizzled<D / 8>(b * KV_BLOCK + key, c), a.k, key, c);
        }
#pragma unroll
        for (int tile = 0; tile < (DEEP ? 1 : D / V_TILE); ++tile) {
            half* to = values + tile * ATTN_SEGMENT * V_TILE;
            for (int i = threadIdx.x; i < KV_BLOCK * (V_TILE / 8); i += THREADS) {
                const int key = i / (V_TILE / 8), c = i % (V_TILE / 8);
                copy(to + swizzled<V_TILE / 8>(b * KV_BLOCK + key, c), a.v, key, tile * (V_TILE / 8) + c);
            }
        }
    }
    copy_commit();
    clear_queries<D, THREADS>(a, shared);
}

// A segment of coded types: codes of keys, [256][D], and of values, then their scales, [scales of a head][256] of either.
template <int D, Kv T>
constexpr int CODED_AREA = 2 * ATTN_SEGMENT * (D + 2 * scales_each(T, D));

// Scales of keys (part 0) or values (part 1).
template <int D, Kv T>
__device__ __forceinline__ half* scales_of(uint8_t* area, int part) {
    return reinterpret_cast<half*>(area + 2 * ATTN_SEGMENT * D) + part * ATTN_SEGMENT * scales_each(T, D);
}

// The same of a cache of coded types.
template <int D, int THREADS, Kv T>
__device__ __forceinline__ void fetch_coded(const DecodeAttentionArgs& args, const Work& work, Shared<D>& shared,
                                              uint8_t* area) {
    const AttentionArgs& a = args.attention;
    const int from = seen_from(a, work.position);
    find_blocks<D, THREADS>(a, work, shared);
    const uint4 none = make_uint4(0, 0, 0, 0);
#pragma unroll 1
    for (int b = 0; b < ATTN_SEGMENT / KV_BLOCK; ++b) {
        const int key0 = work.segment * ATTN_SEGMENT + b * KV_BLOCK;
        const int first = max(from - key0, 0), end = min(work.position - key0, KV_BLOCK);
        const size_t at = (static_cast<size_t>(shared.block[b]) * a.kv_heads + work.kv_head) * kv_block_bytes(T, D);
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            const uint8_t* tensor = reinterpret_cast<const uint8_t*>(part ? a.v : a.k) + at;
            uint8_t* codes = area + part * ATTN_SEGMENT * D;
            for (int i = threadIdx.x; i < KV_BLOCK * (D / 16); i += THREADS) {
                const int key = i / (D / 16), c = i % (D / 16) * 16;
                uint8_t* to = codes + code_place<D>(b * KV_BLOCK + key, c);
                if (key >= first && key < end) copy_async16(to, tensor + key * D + c);
                else *reinterpret_cast<uint4*>(to) = none;
            }
            half* scales = scales_of<D, T>(area, part) + b * KV_BLOCK;
            const half* tensor_scales = reinterpret_cast<const half*>(tensor + KV_BLOCK * D);
            for (int i = threadIdx.x; i < scales_each(T, D) * (KV_BLOCK / 8); i += THREADS) {
                const int group = i / (KV_BLOCK / 8), key = i % (KV_BLOCK / 8) * 8;
                copy_scales(scales + group * ATTN_SEGMENT + key, tensor_scales + group * KV_BLOCK + key, first - key,
                            end - key);
            }
        }
    }
    copy_commit();
    clear_queries<D, THREADS>(a, shared);
}

// Factors of `count` partials of row r from n0 on, by one warp: `merge` with a scan for the running maximum.
template <class Shared>
__device__ __forceinline__ void factors(const AttentionArgs& a, Shared& shared, float* scratch, int r, size_t row, int n0,
                                        int count) {
    const int lane = threadIdx.x % WARP;
    float* keeps = scratch + r * MERGE_SEGMENTS;
    float* takes = keeps + ROWS * MERGE_SEGMENTS;
    float m = shared.run_m[r], l = shared.run_l[r];
    for (int base = 0; base < count; base += WARP) {
        const int n = base + lane;
        const float2 ml = n < count ? __ldcg(a.partial_ml + row * a.max_segments + n0 + n) : make_float2(-INFINITY, 0.0f);
        float most = ml.x;
#pragma unroll
        for (int d = 1; d < WARP; d *= 2) {
            const float other = __shfl_up_sync(~0u, most, d);
            if (lane >= d) most = fmaxf(most, other);
        }
        most = fmaxf(most, m);
        float before = __shfl_up_sync(~0u, most, 1);
        if (lane == 0) before = m;
        const bool none = ml.x == -INFINITY;
        const float keep = none ? 1.0f : exp2f((before - most) * LOG2_E);
        const float take = none ? 0.0f : exp2f((ml.x - most) * LOG2_E);
        if (n < count) {
            keeps[n] = keep;
            takes[n] = take;
        }
        const float added = ml.y * take;
#pragma unroll
        for (int i = 0; i < WARP; ++i) l = l * __shfl_sync(~0u, keep, i) + __shfl_sync(~0u, added, i);
        m = __shfl_sync(~0u, most, WARP - 1);
    }
    // All lanes have read what the first one replaces.
    __syncwarp();
    if (lane == 0) {
        shared.run_m[r] = m;
        shared.run_l[r] = l;
    }
}

// What attention_merge does, with the factors of many segments at once and a quad of channels per thread.
template <int D, int THREADS>
__device__ __forceinline__ void merge_segments(const AttentionArgs& a, const Work& work, Shared<D>& shared, float* scratch) {
    const int share = a.q_heads / a.kv_heads, warp = threadIdx.x / WARP;
    const size_t row0 = static_cast<size_t>(work.token) * a.q_heads + work.kv_head * share;
    constexpr int OWN = (ROWS * (D / 4) + THREADS - 1) / THREADS;
    float4 sum[OWN];
#pragma unroll
    for (int own = 0; own < OWN; ++own) sum[own] = float4();
    if (threadIdx.x < ROWS) {
        shared.run_m[threadIdx.x] = -INFINITY;
        shared.run_l[threadIdx.x] = 0.0f;
    }
    for (int n0 = 0; n0 < work.segments; n0 += MERGE_SEGMENTS) {
        const int count = min(work.segments - n0, MERGE_SEGMENTS);
        __syncthreads();
        for (int r = warp; r < share; r += THREADS / WARP) factors(a, shared, scratch, r, row0 + r, n0, count);
        __syncthreads();
#pragma unroll
        for (int own = 0; own < OWN; ++own) {
            const int i = threadIdx.x + own * THREADS, r = i / (D / 4), c = i % (D / 4) * 4;
            if (r >= share) continue;
            const float* keeps = scratch + r * MERGE_SEGMENTS;
            const float* takes = keeps + ROWS * MERGE_SEGMENTS;
            const float* part = a.partial_o + ((row0 + r) * a.max_segments + n0) * D + c;
#pragma unroll 4
            for (int n = 0; n < count; ++n) {
                const float4 v = __ldcg(reinterpret_cast<const float4*>(part + n * D));
                const float keep = keeps[n], take = takes[n];
                sum[own] = make_float4(sum[own].x * keep + v.x * take, sum[own].y * keep + v.y * take,
                                       sum[own].z * keep + v.z * take, sum[own].w * keep + v.w * take);
            }
        }
    }
#pragma unroll
    for (int own = 0; own < OWN; ++own) {
        const int i = threadIdx.x + own * THREADS, r = i / (D / 4), c = i % (D / 4) * 4;
        if (r >= share) continue;
        const float l = shared.run_l[r];
        float4* to = reinterpret_cast<float4*>(a.out + (row0 + r) * D + c);
        *to = make_float4(sum[own].x / l, sum[own].y / l, sum[own].z / l, sum[own].w / l);
    }
}

// Scores of a warp's keys of coded types, for the rows of q.
template <int D, Kv T>
__device__ __forceinline__ void coded_scores(float (&s)[WARP_KEYS / 8][4], const half* q, uint8_t* area, int key0) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int c = 0; c < D; c += KV_GROUP) {
        const uint4 q0 = *reinterpret_cast<const uint4*>(q + g * (D + 8) + c + 8 * t);
        const uint4 q1 = *reinterpret_cast<const uint4*>(q + (g + 8) * (D + 8) + c + 8 * t);
        const half* scales = scales_of<D, T>(area, 0) + c / scaled_channels(T, D) * ATTN_SEGMENT + key0 + 2 * t;
#pragma unroll
        for (int n = 0; n < WARP_KEYS / 8; ++n) {
            const uint2 key = *reinterpret_cast<const uint2*>(area + code_place<D>(key0 + 8 * n + g, c + 8 * t));
            const uint32_t d = *reinterpret_cast<const uint32_t*>(scales + 8 * n);
            add_scores<T>(s[n], q0, q1, key, d);
            if (T == Kv::FP8 && c + KV_GROUP == D) scale_scores(s[n], d);
        }
    }
}

// Where the sums of a warp go, over the codes of its keys: rows that are written together fall into different banks.
template <int D>
__device__ __forceinline__ int coded_sum_place(int r, int c) {
    static_assert(ROWS * D * sizeof(float) == WARP_KEYS * D, "sums of a warp");
    return r * D + (c / 4 ^ r & 1) * 4 + c % 4;
}

// Weights times a warp's values of coded types.
template <int D, Kv T>
__device__ __forceinline__ void coded_values(const uint32_t (&p)[WARP_KEYS / 8][2], uint8_t* area, int warp, bool has0,
                                               bool has1) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, key0 = warp * WARP_KEYS;
    const uint8_t* codes = area + ATTN_SEGMENT * D;
    float* o = reinterpret_cast<float*>(area) + warp * ROWS * D;
#pragma unroll
    for (int c = 0; c < D; c += KV_GROUP) {
        float acc[4][4] = {};
        const half* scales = scales_of<D, T>(area, 1) + c / scaled_channels(T, D) * ATTN_SEGMENT + key0 + 2 * t;
#pragma unroll
        for (int step = 0; step < WARP_KEYS / 16; ++step) {
            const uint32_t w[4] = {p[2 * step][0], p[2 * step][1], p[2 * step + 1][0], p[2 * step + 1][1]};
            uint32_t four[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int key = key0 + 16 * step + 2 * t + i / 2 * 8 + i % 2;
                four[i] = *reinterpret_cast<const uint32_t*>(codes + code_place<D>(key, c + 4 * g));
            }
            add_values<T>(acc, w, four, *reinterpret_cast<const uint32_t*>(scales + 16 * step),
                          *reinterpret_cast<const uint32_t*>(scales + 16 * step + 8));
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (!(i ? has1 : has0)) continue;
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                float4* to = reinterpret_cast<float4*>(o + coded_sum_place<D>(g + 8 * i, c + 8 * t + 4 * part));
                const int e = 2 * i + part;
                *to = make_float4(acc[0][e], acc[1][e], acc[2][e], acc[3][e]);
            }
        }
    }
}

// Scores of a warp's keys, which lie `swizzled`, for the rows of q.
template <int D, Kv T>
__device__ __forceinline__ void add_key_scores(float (&s)[WARP_KEYS / 8][4], const half* rows, const half* keys) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int c = 0; c < D; c += 16) {
        uint32_t fragment[4];
        ldmatrix_x4(fragment, rows + lane % 16 * (D + 8) + c + lane / 16 * 8);
        const Operand<T> q(fragment);
#pragma unroll
        for (int n = 0; n < WARP_KEYS / 8; n += 2) {
            uint32_t b[4];
            ldmatrix_x4(b, keys + swizzled<D / 8>(8 * n + lane / 16 * 8 + lane % 8, c / 8 + lane / 8 % 2));
            q.multiply(s[n], b[0], b[1]);
            q.multiply(s[n + 1], b[2], b[3]);
        }
    }
}

// Weights times a tile of a warp's values.
template <Kv T>
__device__ __forceinline__ void add_tile_values(float (&acc)[V_TILE / 8][4], const uint32_t (&p)[WARP_KEYS / 8][2],
                                                const half* tile) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int step = 0; step < WARP_KEYS / 16; ++step) {
        const uint32_t weights[4] = {p[2 * step][0], p[2 * step][1], p[2 * step + 1][0], p[2 * step + 1][1]};
        const Operand<T> w(weights);
#pragma unroll
        for (int c = 0; c < V_TILE; c += 16) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, tile + swizzled<V_TILE / 8>(16 * step + lane % 16, c / 8 + lane / 16));
            w.multiply(acc[c / 8], b[0], b[1]);
            w.multiply(acc[c / 8 + 1], b[2], b[3]);
        }
    }
}

// Such sums of the rows that there are, to rows of STRIDE floats.
template <int STRIDE>
__device__ __forceinline__ void leave_sums(float* o, const float (&acc)[V_TILE / 8][4], bool has0, bool has1) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < V_TILE / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (!(i ? has1 : has0)) continue;
            float2* to = reinterpret_cast<float2*>(o + (g + 8 * i) * STRIDE + 8 * n + 2 * t);
            *to = make_float2(acc[n][2 * i], acc[n][2 * i + 1]);
        }
    }
}

// Where k and v of the token itself go besides the cache: among the segment's.
template <class Keep>
struct KeepBf16 {
    const Keep& keep;
    __device__ __forceinline__ void operator()(int i, uint16_t v) const { keep(i, __ushort_as_half(v)); }
    __device__ __forceinline__ void operator()(int, uint8_t, half) const {}
};

// Caches k (part 1) or v (part 2) of a token and head in 16 bits; channel i also goes to keep(i, bits). By one warp.
template <int D, Kv T, class Keep>
__device__ __forceinline__ void cache_halves(const HeadsArgs& a, int part, int h, int token, const float* head,
                                             const Keep& keep) {
    if constexpr (T == Kv::F16) {
        half* cache = cache_row(a, part, h, token);
        for (int i = threadIdx.x % WARP; i < D; i += WARP) {
            const half v = saturated(head[i]);
            cache[i] = v;
            keep(i, v);
        }
    } else {
        cache_head(a, T, part, h, token, head, KeepBf16<Keep>{keep});
    }
}

template <int D, Kv T>
struct KeepCoded {
    uint8_t* area;
    int part;  // 0: k, 1: v
    int key;
    __device__ __forceinline__ void operator()(int, uint16_t) const {}
    __device__ __forceinline__ void operator()(int i, uint8_t code, half scale) const {
        constexpr int EACH = scaled_channels(T, D);
        area[part * ATTN_SEGMENT * D + code_place<D>(key, i)] = code;
        if (i % EACH == 0) scales_of<D, T>(area, part)[i / EACH * ATTN_SEGMENT + key] = scale;
    }
};

// The work, whose keys `fetch` asked for. All threads of the block; meets at its beginning, not at its end. T: type of the
// cache.
template <int D, int THREADS, bool DEEP, Kv T>
__device__ __forceinline__ void attend(const DecodeAttentionArgs& args, const Work& work, Shared<D>& shared, float* scratch,
                                       half* area) {
    static_assert(is_coded(T) || THREADS / WARP * D <= SCRATCH, "a head per warp");
    static_assert(SCRATCH * sizeof(float) <= CODED_AREA<64, Kv::FP8>, "factors");
    static_assert(DEEP || D <= 2 * V_TILE, "tiles of values");
    constexpr int STRIDE = D + 8, O_STRIDE = V_TILE + 8;
    const AttentionArgs& a = args.attention;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4;
    const int token = work.token, kv_head = work.kv_head, position = work.position, share = a.q_heads / a.kv_heads;
    const int key0 = work.segment * ATTN_SEGMENT + warp * WARP_KEYS;
    half *keys = area + warp * WARP_KEYS * D, *values = area + ATTN_SEGMENT * D + warp * WARP_KEYS * V_TILE;
    uint8_t* bytes = reinterpret_cast<uint8_t*>(area);
    constexpr bool CODED = is_coded(T);
    __syncthreads();

    // The heads of q, and of k and v where the token itself is among the keys.
    const bool own = position / ATTN_SEGMENT == work.segment;
    for (int job = warp; job < share + (own ? 2 : 0); job += THREADS / WARP) {
        const int part = job < share ? 0 : job - share + 1, h = part == 0 ? kv_head * share + job : kv_head;
        float* head = scratch + warp * D;
        head_values(args.heads, part, h, token, head);
        if (part == 0) {
            const float unscale = round_q(args.heads, head, shared.q + job * STRIDE);
            if (lane == 0) shared.q_unscale[job] = unscale;
        } else {
            const int key = position % ATTN_SEGMENT;
            auto keep = [&](int i, half v) {
                if (part == 1) area[swizzled<D / 8>(key, i / 8) + i % 8] = v;
                else if (!DEEP || i < V_TILE) {
                    half* tile = area + ATTN_SEGMENT * D + i / V_TILE * ATTN_SEGMENT * V_TILE;
                    tile[swizzled<V_TILE / 8>(key, i % V_TILE / 8) + i % 8] = v;
                }
            };
            if constexpr (!CODED) {
                cache_halves<D, T>(args.heads, part, h, token, head, keep);
            } else {
                cache_head(args.heads, T, part, h, token, head, KeepCoded<D, T>{bytes, part - 1, key});
            }
        }
        __syncwarp();
    }
    copy_wait<0>();
    __syncthreads();

    // Four warps have keys; the others only meet them.
    const bool has0 = g < share, has1 = g + 8 < share;
    float s[WARP_KEYS / 8][4];
#pragma unroll
    for (int n = 0; n < WARP_KEYS / 8; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
    if constexpr (CODED) {
        if (warp < WARPS) coded_scores<D, T>(s, shared.q, bytes, warp * WARP_KEYS);
    }
    if (warp < WARPS && !CODED) add_key_scores<D, T>(s, shared.q, keys);
    // The rest of the values where the keys were.
    if constexpr (DEEP && D > V_TILE && !CODED) {
        if (warp < WARPS) {
            __syncwarp();
            const int first = max(seen_from(a, position) - key0, 0), end = min(position + 1 - key0, WARP_KEYS);
            static_assert(WARP_KEYS == KV_BLOCK, "a warp's keys are a block of the cache");
            const size_t at = (static_cast<size_t>(shared.block[warp]) * a.kv_heads + kv_head) * KV_BLOCK * D;
            const half* from = a.v + at + V_TILE;
            constexpr int REST = (D - V_TILE) / 8;
            for (int i = lane; i < WARP_KEYS * REST; i += WARP) {
                const int key = i / REST, c = i % REST;
                half* to = keys + c / (V_TILE / 8) * WARP_KEYS * V_TILE + swizzled<V_TILE / 8>(key, c % (V_TILE / 8));
                if (key >= first && key < end) copy_async16(to, from + key * D + c * 8);
                else *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
            }
            copy_commit();
        }
    }
    uint32_t p[WARP_KEYS / 8][2];
    if (warp < WARPS) {
        segment_weights(a, s, p, key0, position, position, has0, has1, shared.q_unscale[g] * a.scale,
                        shared.q_unscale[g + 8] * a.scale, shared.m, shared.l);
    } else {
        __syncthreads();
    }
    if constexpr (CODED) {
        if (warp < WARPS) coded_values<D, T>(p, bytes, warp, has0, has1);
    }
    // A tile of channels after the other; the sums go where the tile was.
    constexpr int O_WARP = WARP_KEYS * V_TILE / 2;
    static_assert(ROWS * O_STRIDE <= O_WARP, "sums of a warp");
#pragma unroll
    for (int tile = 0; tile < D / V_TILE && warp < WARPS && !CODED; ++tile) {
        half* at = tile == 0 ? values : DEEP ? keys + (tile - 1) * WARP_KEYS * V_TILE : values + ATTN_SEGMENT * V_TILE;
        if (DEEP && tile == 1) copy_wait<0>();
        __syncwarp();
        float acc[V_TILE / 8][4];
#pragma unroll
        for (int n = 0; n < V_TILE / 8; ++n) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.0f;
        add_tile_values<T>(acc, p, at);
        __syncwarp();
        leave_sums<O_STRIDE>(reinterpret_cast<float*>(at), acc, has0, has1);
    }
    __syncthreads();
    // Warps in ascending order.
    const size_t row0 = static_cast<size_t>(token) * a.q_heads + kv_head * share;
    for (int i = threadIdx.x; i < share * D; i += THREADS) {
        const int r = i / D, c = i % D;
        const bool tile0 = c < V_TILE;
        const int over_keys = D > 2 * V_TILE ? (c / V_TILE - 1) * WARP_KEYS * V_TILE : 0;
        const int at = tile0 ? ATTN_SEGMENT * D : DEEP ? over_keys : ATTN_SEGMENT * (D + V_TILE);
        const float* o = reinterpret_cast<const float*>(area + at) + r * O_STRIDE + c % V_TILE;
        int next = tile0 || !DEEP ? O_WARP : WARP_KEYS * D / 2;
        if (CODED) {
            o = reinterpret_cast<const float*>(area) + coded_sum_place<D>(r, c);
            next = ROWS * D;
        }
        float value = o[0];
#pragma unroll
        for (int w = 1; w < WARPS; ++w) value += o[w * next];
        const float m = segment_max(shared.m, r), l = segment_sum(shared.l, r);
        if (work.segments == 1) {
            a.out[(row0 + r) * D + c] = value / l;
        } else {
            const size_t part = (row0 + r) * a.max_segments + work.index;
            a.partial_o[part * D + c] = value;
            if (c == 0) a.partial_ml[part] = make_float2(m, l);
        }
    }
    if (work.segments == 1) return;
    // The last block to come merges.
    __threadfence();
    __syncthreads();
    uint32_t* arrived = args.arrived + token * a.kv_heads + kv_head;
    if (threadIdx.x == 0) shared.last = atomicAdd(arrived, 1) == static_cast<uint32_t>(work.segments - 1);
    __syncthreads();
    if (!shared.last) return;
    __threadfence();
    merge_segments<D, THREADS>(a, work, shared, CODED ? reinterpret_cast<float*>(area) : scratch);
    if (threadIdx.x == 0) *arrived = 0;
}

// Segments that a token at `position` sees: the first, and how many.
__device__ __forceinline__ int first_segment(const AttentionArgs& a, int position) {
    return seen_from(a, position) / ATTN_SEGMENT;
}

}  // namespace decode_attention
