// Attention of single tokens of many sequences: a block has a token's keys of one key head, a segment after the other, then
// those of the next token and head that are its. Half of its warps have a quarter of each segment, keys and values, which
// they ask for when they have read what lies there; the others make heads of the next token ready meanwhile. The sums of
// segments never leave the block. The bits of attention.cu.
#pragma once
#include "decode_attention.cuh"

namespace decode_walk {
using namespace decode_attention;

constexpr int WALK_THREADS = 2 * WARPS * WARP;

template <int D>
struct alignas(128) WalkShared {
    static constexpr int STRIDE = D + 8;
    half keys[WARPS][WARP_KEYS * D];
    half values[WARPS][WARP_KEYS * D];  // tiles of V_TILE channels
    float sums[WARPS][ROWS * STRIDE];
    // Of the token and of the next one: heads of q, and k and v of the token itself.
    half q[2][ROWS * STRIDE];
    half own[2][2][D];
    float q_unscale[2][ROWS];
    // Of a segment and of the next one.
    float m[2][WARPS][ROWS], l[2][WARPS][ROWS];
    float head[WARPS][D];
};

// A token and a key head.
struct Item {
    int number, token, kv_head, position, first, last;  // segments
    __device__ __forceinline__ Item(const DecodeAttentionArgs& args, int number) : number(number) {
        const AttentionArgs& a = args.attention;
        token = number / a.kv_heads, kv_head = number % a.kv_heads;
        position = 0;
        if (there(args)) position = a.spans.position[token];
        first = first_segment(a, position), last = position / ATTN_SEGMENT;
    }
    __device__ __forceinline__ bool there(const DecodeAttentionArgs& args) const {
        return number < args.tokens * args.attention.kv_heads;
    }
};

// A warp's keys of a segment: what of its block in the cache was there before, and whether the token sees any of it.
struct Slice {
    size_t at = 0;
    int first = 0, end = 0;
    bool seen = false;
    template <int D>
    __device__ __forceinline__ static Slice of(const AttentionArgs& a, const Item& item, int segment) {
        const int from = seen_from(a, item.position);
        const int block = segment * (ATTN_SEGMENT / KV_BLOCK) + threadIdx.x / WARP, key0 = block * KV_BLOCK;
        Slice out;
        out.seen = block >= from / KV_BLOCK && block <= item.position / KV_BLOCK;
        if (!out.seen) return out;
        const size_t there = physical_block(a.spans, a.spans.span_of[item.token], a.group, block);
        out.at = (there * a.kv_heads + item.kv_head) * KV_BLOCK * D;
        out.first = max(from - key0, 0), out.end = min(item.position - key0, KV_BLOCK);
        return out;
    }
};

// Asks for a slice of keys, or of values in tiles; zeros for what was not there.
template <int D, bool TILES>
__device__ __forceinline__ void fetch(half* to, const half* tensor, const Slice& slice) {
    constexpr int CHUNKS = D / 8, TILE = V_TILE / 8;
    const int lane = threadIdx.x % WARP, c = lane % CHUNKS;
    const half* from = tensor + slice.at + lane * 8;
    half* tile = TILES ? to + c / TILE * WARP_KEYS * V_TILE : to;
    const bool whole = slice.first <= 0 && slice.end >= KV_BLOCK;
    constexpr int EACH = WARP_KEYS * CHUNKS / WARP;
    auto key_of = [&](int j) { return lane / CHUNKS + j * (WARP / CHUNKS); };
    auto place = [&](int key) { return tile + (TILES ? swizzled<TILE>(key, c % TILE) : swizzled<CHUNKS>(key, c)); };
    if (whole) {
#pragma unroll 8
        for (int j = 0; j < EACH; ++j) copy_async16(place(key_of(j)), from + j * WARP * 8);
        return;
    }
#pragma unroll 4
    for (int j = 0; j < EACH; ++j) {
        const int key = key_of(j);
        if (key >= slice.first && key < slice.end) copy_async16(place(key), from + j * WARP * 8);
        else *reinterpret_cast<uint4*>(place(key)) = make_uint4(0, 0, 0, 0);
    }
}

// Puts the token's own k or v where its place is.
template <int D, bool TILES>
__device__ __forceinline__ void place_own(half* to, const half* own, int key) {
    constexpr int TILE = V_TILE / 8;
    const int c = threadIdx.x % WARP;
    if (c < D / 8) {
        half* tile = TILES ? to + c / TILE * WARP_KEYS * V_TILE : to;
        half* at = tile + (TILES ? swizzled<TILE>(key, c % TILE) : swizzled<D / 8>(key, c));
        *reinterpret_cast<uint4*>(at) = *reinterpret_cast<const uint4*>(own + c * 8);
    }
    __syncwarp();
}

// Makes the heads of an item ready: what the warp `first` of so many does. `head`: D floats of its own.
template <int D, Kv T>
__device__ __forceinline__ void make_heads(const DecodeAttentionArgs& args, const Item& item, WalkShared<D>& shared, int turn,
                                           int first, int warps, float* head) {
    const AttentionArgs& a = args.attention;
    const int lane = threadIdx.x % WARP, share = a.q_heads / a.kv_heads;
    for (int job = first; job < share + 2; job += warps) {
        const int part = job < share ? 0 : job - share + 1, h = part == 0 ? item.kv_head * share + job : item.kv_head;
        head_values(args.heads, part, h, item.token, head);
        if (part == 0) {
            const float unscale = round_q(args.heads, head, shared.q[turn] + job * WalkShared<D>::STRIDE);
            if (lane == 0) shared.q_unscale[turn][job] = unscale;
        } else {
            half* own = shared.own[turn][part - 1];
            cache_halves<D, T>(args.heads, part, h, item.token, head, [own](int i, half v) { own[i] = v; });
        }
        __syncwarp();
    }
}

// What a thread of a warp with keys adds up: quads of channels of rows.
template <int D>
struct Sums {
    static constexpr int EACH = ROWS * (D / 4) / (WARPS * WARP);
    float4 o[EACH];
    float m[EACH], l[EACH];

    __device__ __forceinline__ Sums() {
#pragma unroll
        for (int i = 0; i < EACH; ++i) o[i] = float4(), m[i] = -INFINITY, l[i] = 0.0f;
    }
    // A segment: warps in ascending order. What `merge_segments` does with partials.
    __device__ __forceinline__ void add(const AttentionArgs& a, const Item& item, const WalkShared<D>& shared, int number,
                                        bool is_last) {
        const int share = a.q_heads / a.kv_heads;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int quad = threadIdx.x + i * WARPS * WARP, r = quad / (D / 4), c = quad % (D / 4) * 4;
            if (r >= share) continue;
            const int at = r * WalkShared<D>::STRIDE + c;
            float4 v = *reinterpret_cast<const float4*>(shared.sums[0] + at);
#pragma unroll
            for (int w = 1; w < WARPS; ++w) {
                const float4 next = *reinterpret_cast<const float4*>(shared.sums[w] + at);
                v = make_float4(v.x + next.x, v.y + next.y, v.z + next.z, v.w + next.w);
            }
            float sum_l = segment_sum(shared.l[number], r);
            if (item.first < item.last) {
                float keep, take;
                merge(m[i], l[i], segment_max(shared.m[number], r), sum_l, keep, take);
                v = make_float4(o[i].x * keep + v.x * take, o[i].y * keep + v.y * take, o[i].z * keep + v.z * take,
                                o[i].w * keep + v.w * take);
                o[i] = v;
                sum_l = l[i];
            }
            if (!is_last) continue;
            float* out = a.out + (static_cast<size_t>(item.token) * a.q_heads + item.kv_head * share + r) * D + c;
            *reinterpret_cast<float4*>(out) = make_float4(v.x / sum_l, v.y / sum_l, v.z / sum_l, v.w / sum_l);
        }
    }
};

// The warps that have keys meet.
struct MeetKeys {
    __device__ __forceinline__ void operator()() const { asm volatile("bar.sync 1, %0;" ::"n"(WARPS * WARP) : "memory"); }
};

// The warps that have keys, of all items of the block. The first one's copies are on their way, its heads ready. UPPER: whether
// a key head has more than 8 heads of q.
template <int D, Kv T, bool UPPER>
__device__ __forceinline__ void walk(const DecodeAttentionArgs& args, WalkShared<D>& shared, Item item, Slice slice) {
    const AttentionArgs& a = args.attention;
    const int warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, share = a.q_heads / a.kv_heads;
    const bool has0 = g < share, has1 = g + 8 < share;
    half *keys = shared.keys[warp], *values = shared.values[warp];
    int number = 0;
#pragma unroll 1
    for (int turn = 0;; turn ^= 1) {
        const Item ahead(args, item.number + gridDim.x);
        Sums<D> sums;
        const float scale0 = shared.q_unscale[turn][g] * a.scale, scale1 = shared.q_unscale[turn][g + 8] * a.scale;
#pragma unroll 1
        for (int segment = item.first; segment <= item.last; ++segment, number ^= 1) {
            const bool is_last = segment == item.last;
            const int key0 = segment * ATTN_SEGMENT + warp * WARP_KEYS;
            // Where the next keys are is found out before they are asked for.
            Slice next;
            if (!is_last) next = Slice::of<D>(a, item, segment + 1);
            else if (ahead.there(args)) next = Slice::of<D>(a, ahead, ahead.first);
            const bool has_own = item.position / KV_BLOCK == key0 / KV_BLOCK;
            float s[WARP_KEYS / 8][4] = {};
            copy_wait<1>();
            __syncwarp();
            if (slice.seen) {
                if (has_own) place_own<D, false>(keys, shared.own[turn][0], item.position % KV_BLOCK);
                add_key_scores<D, T>(s, shared.q[turn], keys);
                __syncwarp();
            }
            if (next.seen) fetch<D, false>(keys, a.k, next);
            copy_commit();
            uint32_t p[WARP_KEYS / 8][2];
            segment_weights<UPPER>(a, s, p, key0, item.position, item.position, has0, has1, scale0, scale1, shared.m[number],
                                   shared.l[number], MeetKeys());
            copy_wait<1>();
            __syncwarp();
            if (slice.seen && has_own) place_own<D, true>(values, shared.own[turn][1], item.position % KV_BLOCK);
#pragma unroll
            for (int tile = 0; tile < D / V_TILE; ++tile) {
                float acc[V_TILE / 8][4] = {};
                if (slice.seen) add_tile_values<T>(acc, p, values + tile * WARP_KEYS * V_TILE);
                leave_sums<WalkShared<D>::STRIDE>(shared.sums[warp] + tile * V_TILE, acc, has0, UPPER && has1);
            }
            __syncwarp();
            if (next.seen) fetch<D, true>(values, a.v, next);
            copy_commit();
            MeetKeys()();
            sums.add(a, item, shared, number, is_last);
            slice = next;
        }
        item = ahead;
        if (!item.there(args)) return;
        __syncthreads();
    }
}

// Grid: as many blocks as there are items, or run at a time.
template <int D, Kv T>
__device__ __forceinline__ void body(const DecodeAttentionArgs& args) {
    extern __shared__ __align__(128) uint8_t memory[];
    WalkShared<D>& shared = *reinterpret_cast<WalkShared<D>*>(memory);
    const AttentionArgs& a = args.attention;
    const int warp = threadIdx.x / WARP, share = a.q_heads / a.kv_heads;
    const bool has_keys = warp < WARPS;
    Item item(args, blockIdx.x);
    Slice slice;
    if (has_keys) {
        slice = Slice::of<D>(a, item, item.first);
        // Groups of copies: keys, values, keys of the next segment, …
        if (slice.seen) fetch<D, false>(shared.keys[warp], a.k, slice);
        copy_commit();
        if (slice.seen) fetch<D, true>(shared.values[warp], a.v, slice);
        copy_commit();
    } else {
        // Rows of a tile of queries that no head has.
        for (int i = threadIdx.x - WARPS * WARP; i < 2 * ROWS * (D / 8); i += WARPS * WARP) {
            const int turn = i / (ROWS * (D / 8)), r = i / (D / 8) % ROWS, c = i % (D / 8) * 8;
            if (r < share) continue;
            *reinterpret_cast<uint4*>(shared.q[turn] + r * WalkShared<D>::STRIDE + c) = make_uint4(0, 0, 0, 0);
            shared.q_unscale[turn][r] = 0.0f;
        }
    }
    grid_wait();
    // The first heads are what everybody waits for.
    float* head = has_keys ? shared.sums[warp] : shared.head[warp - WARPS];
    int first = warp, warps = 2 * WARPS;
#pragma unroll 1
    for (int turn = 0; item.there(args); turn ^= 1, item = Item(args, item.number + gridDim.x)) {
        make_heads<D, T>(args, item, shared, turn, first, warps, head);
        // Those of the item before have been read, and these are there.
        __syncthreads();
        if (has_keys) break;
        first = warp - WARPS, warps = WARPS;
    }
    if (!has_keys) return;
    if (share > 8) walk<D, T, true>(args, shared, item, slice);
    else walk<D, T, false>(args, shared, item, slice);
}

}  // namespace decode_walk
