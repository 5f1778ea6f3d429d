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
    const half* k;           // of the layer: [block][kv_head][KV_BLOCK][dim]
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

// Scores of 64 keys, and their weights, as a lane holds them: of rows g and g + 8 of a tile.
using Scores = float[WARP_KEYS / 8][4];
using Weights = uint32_t[WARP_KEYS / 8][2];

__device__ __forceinline__ void scale_scores(Scores& s, float scale0, float scale1) {
#pragma unroll
    for (int n = 0; n < WARP_KEYS / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[n][i] *= i < 2 ? scale0 : scale1;
    }
}

__device__ __forceinline__ void cap_scores(Scores& s, float soft_cap) {
#pragma unroll
    for (int n = 0; n < WARP_KEYS / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[n][i] = soft_cap * tanhf(s[n][i] / soft_cap);
    }
}

// Hides keys, from key0 on, that rows at p0 and p1 do not see, and takes the others into their maxima.
__device__ __forceinline__ void mask_scores(const AttentionArgs& a, Scores& s, int key0, int p0, int p1, bool has0,
                                            bool has1, float& m0, float& m1) {
    // What a row sees, as keys from this lane's first one on.
    const int lane_key = key0 + threadIdx.x % 4 * 2;
    const int from0 = seen_from(a, p0) - lane_key, from1 = seen_from(a, p1) - lane_key;
    const int to0 = has0 ? p0 - lane_key : -1, to1 = has1 ? p1 - lane_key : -1;
#pragma unroll
    for (int n = 0; n < WARP_KEYS / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int key = 8 * n + i % 2;
            const bool seen = i < 2 ? key >= from0 && key <= to0 : key >= from1 && key <= to1;
            s[n][i] = seen ? s[n][i] : -INFINITY;
            if (i < 2) m0 = fmaxf(m0, s[n][i]);
            else m1 = fmaxf(m1, s[n][i]);
        }
    }
}

// The largest of the four lanes that share rows.
__device__ __forceinline__ void quad_max(float& m0, float& m1) {
#pragma unroll
    for (int d = 1; d <= 2; d *= 2) {
        m0 = fmaxf(m0, __shfl_xor_sync(~0u, m0, d));
        m1 = fmaxf(m1, __shfl_xor_sync(~0u, m1, d));
    }
}

// What scores are taken from. A row that sees nothing here: every weight is exp(−∞ − 0) = 0.
__device__ __forceinline__ float base_of(float m) { return m == -INFINITY ? 0.0f : m; }

// Exponentials of scores less their row's base, in half precision, and their sums before that.
__device__ __forceinline__ void weigh(const Scores& s, Weights& p, float base0, float base1, float& l0, float& l1) {
    l0 = l1 = 0.0f;
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
}

// Weights of a warp's 64 keys, key0 the first, from their scores, for rows at p0 and p1: scaled, capped and masked, less
// the largest of the segment. Leaves m and l of the warps in shared memory; all warps come here, and meet.
__device__ __forceinline__ void segment_weights(const AttentionArgs& a, Scores& s, Weights& p, int key0, int p0, int p1,
                                                bool has0, bool has1, float scale0, float scale1, float (*warp_m)[ROWS],
                                                float (*warp_l)[ROWS]) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, r0 = lane / 4, r1 = r0 + 8, t = lane % 4;
    float m0 = -INFINITY, m1 = -INFINITY, l0, l1;
    scale_scores(s, scale0, scale1);
    if (a.soft_cap > 0.0f) cap_scores(s, a.soft_cap);
    mask_scores(a, s, key0, p0, p1, has0, has1, m0, m1);
    quad_max(m0, m1);
    if (t == 0) {
        warp_m[warp][r0] = m0;
        warp_m[warp][r1] = m1;
    }
    __syncthreads();
    weigh(s, p, base_of(segment_max(warp_m, r0)), base_of(segment_max(warp_m, r1)), l0, l1);
    if (t == 0) {
        warp_l[warp][r0] = l0;
        warp_l[warp][r1] = l1;
    }
}

}  // namespace attention
