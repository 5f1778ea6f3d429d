// Attention of single tokens: what follows q, k and v and the merge of partials in the same kernel. Keys and values of
// earlier steps are fetched before waiting for the kernel before. The bits of attention.cu.
#include "attention.cuh"
#include "heads.cuh"

using namespace attention;

namespace {
struct DecodeAttentionArgs {
    HeadsArgs heads;
    AttentionArgs attention;
    uint32_t* arrived;  // [tokens][kv_heads], zero
};

// Warps: four for the keys, all for what comes before and after.
constexpr int DECODE_WARPS = 10;
constexpr int DECODE_THREADS = DECODE_WARPS * WARP;
// Segments whose factors are in shared memory at a time.
constexpr int MERGE_SEGMENTS = 64;

template <int D>
struct Shared {
    static constexpr int STRIDE = D + 8, O_STRIDE = D + 8;
    half k[WARPS][WARP_KEYS * STRIDE];
    half v[WARPS][WARP_KEYS * STRIDE];
    half q[ROWS * STRIDE];
    float o[WARPS * ROWS * O_STRIDE];
    float head[DECODE_WARPS][D];
    float q_unscale[ROWS];
    float m[WARPS][ROWS], l[WARPS][ROWS];
    // Of the merge: factors of what is there and of what comes, per row and segment, and the running m and l.
    float keep[ROWS][MERGE_SEGMENTS], take[ROWS][MERGE_SEGMENTS];
    float run_m[ROWS], run_l[ROWS];
    int last;
};

// What the host reserves, device/decode.rs.
static_assert(sizeof(Shared<64>) == 105924 && sizeof(Shared<128>) == 192452, "attention_shared");

// Keys of the warp, rows from `first` to `end`, which lie in one block of the cache. Others are zero.
template <int D>
__device__ __forceinline__ void fetch(half* tile, const half* block, int first, int end) {
    const int lane = threadIdx.x % WARP;
#pragma unroll 8
    for (int i = lane; i < WARP_KEYS * (D / 8); i += WARP) {
        const int key = i / (D / 8), c = i % (D / 8) * 8;
        half* to = tile + key * Shared<D>::STRIDE + c;
        if (key >= first && key < end) {
            copy_async16(to, block + key * D + c);
        } else {
            *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
        }
    }
}

// Factors of `count` partials of row r from n0 on, by one warp: `merge` with a scan for the running maximum.
template <int D>
__device__ __forceinline__ void factors(const AttentionArgs& a, Shared<D>& shared, int r, size_t row, int n0, int count) {
    const int lane = threadIdx.x % WARP;
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
            shared.keep[r][n] = keep;
            shared.take[r][n] = take;
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

// Grid: segments × key heads × tokens, spans of one token each. The query heads of a key head are rows of a tile.
template <int D>
__device__ __forceinline__ void attend(const DecodeAttentionArgs& args) {
    extern __shared__ __align__(16) uint8_t memory[];
    Shared<D>& shared = *reinterpret_cast<Shared<D>*>(memory);
    constexpr int STRIDE = Shared<D>::STRIDE;
    const AttentionArgs& a = args.attention;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int kv_head = blockIdx.y, token = blockIdx.z, share = a.q_heads / a.kv_heads;
    // Where the step's tokens belong was written before its first kernel.
    const int position = a.spans.position[token];
    const int from_segment = seen_from(a, position) / ATTN_SEGMENT, segments = position / ATTN_SEGMENT + 1 - from_segment;
    const int segment = from_segment + static_cast<int>(blockIdx.x);
    if (static_cast<int>(blockIdx.x) >= segments) {
        grid_wait();
        return;
    }
    const int key_warp = warp % WARPS;
    const int key0 = segment * ATTN_SEGMENT + key_warp * WARP_KEYS;
    const int first = max(seen_from(a, position) - key0, 0), end = min(position - key0, WARP_KEYS);
    half *k_tile = shared.k[key_warp], *v_tile = shared.v[key_warp];
    if (warp < 2 * WARPS) {
        const half* from = warp < WARPS ? a.k : a.v;
        if (first < end) {
            const size_t block = physical_block(a.spans, a.spans.span_of[token], a.group, key0 / KV_BLOCK);
            from += (block * a.kv_heads + kv_head) * KV_BLOCK * D;
        }
        fetch<D>(warp < WARPS ? k_tile : v_tile, from, first, end);
    }
    copy_commit();
    // Rows of the tile that no head has.
    for (int i = threadIdx.x; i < (ROWS - share) * (D / 8); i += DECODE_THREADS) {
        const int r = share + i / (D / 8);
        *reinterpret_cast<uint4*>(shared.q + r * STRIDE + i % (D / 8) * 8) = make_uint4(0, 0, 0, 0);
    }
    if (threadIdx.x < ROWS) shared.q_unscale[threadIdx.x] = 0.0f;
    __syncthreads();
    grid_wait();

    // The heads of q, and of k and v where the token itself is among the keys.
    const bool own = position / ATTN_SEGMENT == segment;
    for (int job = warp; job < share + (own ? 2 : 0); job += DECODE_WARPS) {
        const int part = job < share ? 0 : job - share + 1, h = part == 0 ? kv_head * share + job : kv_head;
        float* head = shared.head[warp];
        head_values(args.heads, part, h, token, head);
        if (part == 0) {
            const float unscale = round_q(args.heads, head, shared.q + job * STRIDE);
            if (lane == 0) shared.q_unscale[job] = unscale;
        } else {
            const int key = position % ATTN_SEGMENT;
            half* tile = (part == 1 ? shared.k : shared.v)[key / WARP_KEYS] + key % WARP_KEYS * STRIDE;
            half* cache = cache_row(args.heads, part, h, token);
            for (int i = lane; i < D; i += WARP) {
                tile[i] = saturated(head[i]);
                cache[i] = tile[i];
            }
        }
        __syncwarp();
    }
    copy_wait<0>();
    __syncthreads();

    // The other warps only meet the four.
    const bool has0 = g < share, has1 = g + 8 < share;
    float s[WARP_KEYS / 8][4];
#pragma unroll
    for (int n = 0; n < WARP_KEYS / 8; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll
    for (int c = 0; c < D && warp < WARPS; c += 16) {
        uint32_t q[4];
        ldmatrix_x4(q, shared.q + lane % 16 * STRIDE + c + lane / 16 * 8);
#pragma unroll
        for (int n = 0; n < WARP_KEYS / 8; n += 2) {
            uint32_t b[4];
            ldmatrix_x4(b, k_tile + (8 * n + lane / 16 * 8 + lane % 8) * STRIDE + c + lane / 8 % 2 * 8);
            mma_m16n8k16(s[n], q, b[0], b[1]);
            mma_m16n8k16(s[n + 1], q, b[2], b[3]);
        }
    }
    uint32_t p[WARP_KEYS / 8][2];
    if (warp < WARPS) {
        segment_weights(a, s, p, key0, position, position, has0, has1, shared.q_unscale[g] * a.scale,
                        shared.q_unscale[g + 8] * a.scale, shared.m, shared.l);
    } else {
        __syncthreads();
    }
    float acc[D / 8][4];
#pragma unroll
    for (int n = 0; n < D / 8; ++n) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.0f;
#pragma unroll
    for (int step = 0; step < WARP_KEYS / 16 && warp < WARPS; ++step) {
        const uint32_t w[4] = {p[2 * step][0], p[2 * step][1], p[2 * step + 1][0], p[2 * step + 1][1]};
#pragma unroll
        for (int c = 0; c < D; c += 16) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, v_tile + (16 * step + lane % 16) * STRIDE + c + lane / 16 * 8);
            mma_m16n8k16(acc[c / 8], w, b[0], b[1]);
            mma_m16n8k16(acc[c / 8 + 1], w, b[2], b[3]);
        }
    }
    // Warps in ascending order.
    const size_t row0 = static_cast<size_t>(token) * a.q_heads + kv_head * share;
    constexpr int O_STRIDE = Shared<D>::O_STRIDE;
    float* o = shared.o;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (warp < WARPS && (i ? has1 : has0)) {
                float2* to = reinterpret_cast<float2*>(o + (warp * ROWS + g + 8 * i) * O_STRIDE + 8 * n + 2 * t);
                *to = make_float2(acc[n][2 * i], acc[n][2 * i + 1]);
            }
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < share * D; i += DECODE_THREADS) {
        const int r = i / D, c = i % D;
        float value = o[r * O_STRIDE + c];
#pragma unroll
        for (int w = 1; w < WARPS; ++w) value += o[(w * ROWS + r) * O_STRIDE + c];
        const float m = segment_max(shared.m, r), l = segment_sum(shared.l, r);
        if (segments == 1) {
            a.out[(row0 + r) * D + c] = value / l;
        } else {
            const size_t part = (row0 + r) * a.max_segments + blockIdx.x;
            a.partial_o[part * D + c] = value;
            if (c == 0) a.partial_ml[part] = make_float2(m, l);
        }
    }
    if (segments == 1) return;
    // The last block to come merges.
    __threadfence();
    __syncthreads();
    uint32_t* arrived = args.arrived + token * a.kv_heads + kv_head;
    if (threadIdx.x == 0) shared.last = atomicAdd(arrived, 1) == static_cast<uint32_t>(segments - 1);
    __syncthreads();
    if (!shared.last) return;
    __threadfence();
    // What attention_merge does, with the factors of many segments at once and a quad of channels per thread.
    constexpr int OWN = ROWS * (D / 4) / DECODE_THREADS + 1;
    float4 sum[OWN];
#pragma unroll
    for (int own = 0; own < OWN; ++own) sum[own] = float4();
    if (threadIdx.x < ROWS) {
        shared.run_m[threadIdx.x] = -INFINITY;
        shared.run_l[threadIdx.x] = 0.0f;
    }
    for (int n0 = 0; n0 < segments; n0 += MERGE_SEGMENTS) {
        const int count = min(segments - n0, MERGE_SEGMENTS);
        __syncthreads();
        for (int r = warp; r < share; r += DECODE_WARPS) factors<D>(a, shared, r, row0 + r, n0, count);
        __syncthreads();
#pragma unroll
        for (int own = 0; own < OWN; ++own) {
            const int i = threadIdx.x + own * DECODE_THREADS, r = i / (D / 4), c = i % (D / 4) * 4;
            if (r >= share) continue;
            const float* part = a.partial_o + ((row0 + r) * a.max_segments + n0) * D + c;
#pragma unroll 8
            for (int n = 0; n < count; ++n) {
                const float4 v = __ldcg(reinterpret_cast<const float4*>(part + n * D));
                const float keep = shared.keep[r][n], take = shared.take[r][n];
                sum[own] = make_float4(sum[own].x * keep + v.x * take, sum[own].y * keep + v.y * take,
                                       sum[own].z * keep + v.z * take, sum[own].w * keep + v.w * take);
            }
        }
    }
#pragma unroll
    for (int own = 0; own < OWN; ++own) {
        const int i = threadIdx.x + own * DECODE_THREADS, r = i / (D / 4), c = i % (D / 4) * 4;
        if (r >= share) continue;
        const float l = shared.run_l[r];
        float4* to = reinterpret_cast<float4*>(a.out + (row0 + r) * D + c);
        *to = make_float4(sum[own].x / l, sum[own].y / l, sum[own].z / l, sum[own].w / l);
    }
    if (threadIdx.x == 0) *arrived = 0;
}
}  // namespace

#define KERNELS(D) \
    extern "C" __global__ void __launch_bounds__(DECODE_THREADS, 1) decode_attention_d##D(const DecodeAttentionArgs a) { \
        attend<D>(a); \
    }
KERNELS(64)
KERNELS(128)
