// What kernels of attention share. The unit of the profile is a segment: 256 keys at absolute positions, for which a row
// (a query head of a token) has a softmax partial (largest score m, sum l of exp(s − m), values o). Partials are merged
// in ascending order. Within a segment four warps take 64 keys each:
// - scores: one m16n8k16 chain over the head's channels, from zero, in ascending order;
// - m: the largest of all; l: per lane over its keys in ascending order, then over the four lanes of a row, then over
//   warps in ascending order; o: one chain over the warp's keys, then over warps in ascending order.
// None of it depends on which other rows are computed, nor on who merges.
#pragma once
#include "step.cuh"

namespace attention {
constexpr int WARPS = 4;
constexpr int THREADS = WARPS * WARP;
constexpr int ROWS = 16;
constexpr int WARP_KEYS = ATTN_SEGMENT / WARPS;
constexpr float LOG2_E = 1.4426950408889634f;

struct AttentionArgs {
    const half* q;           // [tokens][q_heads][dim]
    const float* q_unscale;  // [tokens][q_heads]
    const half* k;           // of the layer: [block][kv_head][KV_BLOCK][dim], or blocks of another type
    const half* v;
    float* out;      // [tokens][q_heads · dim]
    // Only if split:
    float* partial_o;   // [tokens][q_heads][max_segments][dim]
    float2* partial_ml;  // [tokens][q_heads][max_segments], m and l
    Spans spans;
    int group;
    int q_heads;
    int kv_heads;
    int dim;
    float scale;
    float soft_cap;  // 0: none
    int window;      // 0: none
    int max_segments;
    // `enum class Kv` of cache.cuh; kernels for f16 do not look.
    int k_type;
    int v_type;
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

// m and l of row r of a segment, of those of its warps.
__device__ __forceinline__ float segment_max(const float (*warp_m)[ROWS], int r) {
    return fmaxf(fmaxf(warp_m[0][r], warp_m[1][r]), fmaxf(warp_m[2][r], warp_m[3][r]));
}

__device__ __forceinline__ float segment_sum(const float (*warp_l)[ROWS], int r) {
    return ((warp_l[0][r] + warp_l[1][r]) + warp_l[2][r]) + warp_l[3][r];
}

// How the warps of a segment meet: with all of the block.
struct MeetAll {
    __device__ __forceinline__ void operator()() const { __syncthreads(); }
};

// Weights of a warp's 64 keys from their scores, for rows g and g + 8 of a tile: scaled, capped and masked, less the
// largest of the segment, as exponentials in half precision. `at`: first key; p0, p1: positions of the rows. Leaves m and
// l of the warps in shared memory; all warps come here, and meet. UPPER: whether the tile has rows 8 … 15; else their weights
// are zero.
template <bool UPPER = true, class Meet = MeetAll>
__device__ __forceinline__ void segment_weights(const AttentionArgs& a, float (&s)[WARP_KEYS / 8][4],
                                                uint32_t (&p)[WARP_KEYS / 8][2], int key0, int p0, int p1, bool has0,
                                                bool has1, float scale0, float scale1, float (*warp_m)[ROWS],
                                                float (*warp_l)[ROWS], Meet meet = Meet()) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, r0 = lane / 4, r1 = r0 + 8, t = lane % 4;
    constexpr int EACH = UPPER ? 4 : 2;
    // Scale, cap, mask; the largest.
    float m0 = -INFINITY, m1 = -INFINITY;
#pragma unroll
    for (int n = 0; n < WARP_KEYS / 8; ++n) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) s[n][i] *= i < 2 ? scale0 : scale1;
    }
    if (a.soft_cap > 0.0f) {
#pragma unroll
        for (int n = 0; n < WARP_KEYS / 8; ++n) {
#pragma unroll
            for (int i = 0; i < EACH; ++i) s[n][i] = a.soft_cap * tanhf(s[n][i] / a.soft_cap);
        }
    }
    // What a row sees, as keys from this lane's first one on.
    const int lane_key = key0 + 2 * t;
    const int from0 = seen_from(a, p0) - lane_key, from1 = seen_from(a, p1) - lane_key;
    const int to0 = has0 ? p0 - lane_key : -1, to1 = has1 ? p1 - lane_key : -1;
#pragma unroll
    for (int n = 0; n < WARP_KEYS / 8; ++n) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int key = 8 * n + i % 2;
            const bool seen = i < 2 ? key >= from0 && key <= to0 : key >= from1 && key <= to1;
            s[n][i] = seen ? s[n][i] : -INFINITY;
            if (i < 2) m0 = fmaxf(m0, s[n][i]);
            else m1 = fmaxf(m1, s[n][i]);
        }
    }
#pragma unroll
    for (int d = 1; d <= 2; d *= 2) {
        m0 = fmaxf(m0, __shfl_xor_sync(~0u, m0, d));
        if (UPPER) m1 = fmaxf(m1, __shfl_xor_sync(~0u, m1, d));
    }
    if (t == 0) {
        warp_m[warp][r0] = m0;
        if (UPPER) warp_m[warp][r1] = m1;
    }
    meet();
    m0 = segment_max(warp_m, r0);
    if (UPPER) m1 = segment_max(warp_m, r1);
    // A row that sees nothing here: every weight is exp(−∞ − 0) = 0.
    const float base0 = m0 == -INFINITY ? 0.0f : m0, base1 = m1 == -INFINITY ? 0.0f : m1;
    float l0 = 0.0f, l1 = 0.0f;
#pragma unroll
    for (int n = 0; n < WARP_KEYS / 8; ++n) {
        const float w0 = exp2f((s[n][0] - base0) * LOG2_E), w1 = exp2f((s[n][1] - base0) * LOG2_E);
        l0 = l0 + w0 + w1;
        p[n][0] = as_u32(__floats2half2_rn(w0, w1));
        p[n][1] = 0;
        if (!UPPER) continue;
        const float w2 = exp2f((s[n][2] - base1) * LOG2_E), w3 = exp2f((s[n][3] - base1) * LOG2_E);
        l1 = l1 + w2 + w3;
        p[n][1] = as_u32(__floats2half2_rn(w2, w3));
    }
#pragma unroll
    for (int d = 1; d <= 2; d *= 2) {
        l0 += __shfl_xor_sync(~0u, l0, d);
        if (UPPER) l1 += __shfl_xor_sync(~0u, l1, d);
    }
    if (t == 0) {
        warp_l[warp][r0] = l0;
        if (UPPER) warp_l[warp][r1] = l1;
    }
}

}  // namespace attention
