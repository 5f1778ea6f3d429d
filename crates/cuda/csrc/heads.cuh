// What follows the products of q, k and v, for one head by one warp: the norm of the head and its rotation, then q in
// half precision, or k and v into the cache.
#pragma once
#include "prepare.cuh"
#include "step.cuh"

// Channels of a head at most.
constexpr int MAX_HEAD = 256;

enum class Style : int { None = 0, Adjacent = 1, Halves = 2 };

struct HeadNorm {
    const float* weight;  // [heads][dim] at `stride`, or [dim] with stride 0
    const float* bias;
    float eps;
    int kind;
    int stride;
};

struct HeadsArgs {
    const float* q;  // [tokens][q_heads · dim]
    const float* k;  // [tokens][kv_heads · dim]
    const float* v;
    half* q16;        // [tokens][q_heads][dim], under a power of two per head
    float* q_unscale;  // [tokens][q_heads]
    half* k_cache;    // of the layer: [block][kv_head][KV_BLOCK][dim], or blocks of another type
    half* v_cache;
    const float* angles;  // [tokens][pairs][2], or null
    HeadNorm q_norm;
    HeadNorm k_norm;
    Spans spans;
    int group;
    int q_heads;
    int kv_heads;
    int dim;
    int pairs;
    int style;
    // `enum class Kv` of cache.cuh; kernels for f16 do not look.
    int k_type;
    int v_type;
};

// Rounded to half; what does not fit becomes the largest that does, so that a weight of zero times it is zero.
__device__ __forceinline__ half saturated(float v) {
    return __float2half_rn(isnan(v) ? v : fminf(fmaxf(v, -65504.0f), 65504.0f));
}

// Reads a head into `head`, `dim` floats of the warp's shared memory, with its norm and its rotation. `part`: 0 for q, 1
// for k, 2 for v. Reads past L1: the kernel before may still be writing.
__device__ __forceinline__ void head_values(const HeadsArgs& a, int part, int h, int token, float* head) {
    constexpr int EACH = MAX_HEAD / WARP;
    const int lane = threadIdx.x % WARP, dim = a.dim;
    const float* from = part == 0 ? a.q : part == 1 ? a.k : a.v;
    from += (static_cast<size_t>(token) * (part == 0 ? a.q_heads : a.kv_heads) + h) * dim;
    const float2* angles = reinterpret_cast<const float2*>(a.angles) + static_cast<size_t>(token) * a.pairs;
    const bool rotates = part != 2 && static_cast<Style>(a.style) != Style::None;
    // All at once: one wait.
    float value[EACH];
    float2 angle[EACH / 2];
#pragma unroll
    for (int j = 0; j < EACH; ++j) value[j] = lane + j * WARP < dim ? __ldcg(from + lane + j * WARP) : 0.0f;
#pragma unroll
    for (int j = 0; j < EACH / 2; ++j) {
        angle[j] = rotates && lane + j * WARP < a.pairs ? __ldcg(angles + lane + j * WARP) : float2();
    }
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        if (lane + j * WARP < dim) head[lane + j * WARP] = value[j];
    }
    __syncwarp();
    if (part == 2) return;
    const HeadNorm& norm = part == 0 ? a.q_norm : a.k_norm;
    if (static_cast<Norm>(norm.kind) != Norm::None) {
        float mean = 0.0f;
        if (static_cast<Norm>(norm.kind) == Norm::Layer) {
            float sum = 0.0f;
            for (int i = lane; i < dim; i += WARP) sum += head[i];
            mean = warp_sum(sum) / static_cast<float>(dim);
        }
        float squares = 0.0f;
        for (int i = lane; i < dim; i += WARP) {
            const float d = head[i] - mean;
            squares = fmaf(d, d, squares);
        }
        const float factor = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(dim) + norm.eps);
        for (int i = lane; i < dim; i += WARP) {
            const float y = (head[i] - mean) * factor * norm.weight[h * norm.stride + i];
            head[i] = norm.bias ? y + norm.bias[h * norm.stride + i] : y;
        }
        __syncwarp();
    }
    if (!rotates) return;
    const bool adjacent = static_cast<Style>(a.style) == Style::Adjacent;
#pragma unroll
    for (int j = 0; j < EACH / 2; ++j) {
        const int i = lane + j * WARP;
        if (i >= a.pairs) continue;
        const int i0 = adjacent ? 2 * i : i, i1 = adjacent ? 2 * i + 1 : i + a.pairs;
        const float x = head[i0], y = head[i1], c = angle[j].x, s = angle[j].y;
        head[i0] = x * c - y * s;
        head[i1] = x * s + y * c;
    }
    __syncwarp();
}

// Rounds a head of q under its power of two; returns what undoes it.
__device__ __forceinline__ float round_q(const HeadsArgs& a, const float* head, half* out) {
    const int lane = threadIdx.x % WARP;
    float most = 0.0f;
    for (int i = lane; i < a.dim; i += WARP) most = fmaxf(most, fabsf(head[i]));
    const float scale = row_scale(warp_max(most));
    for (int i = lane; i < a.dim; i += WARP) out[i] = __float2half_rn(head[i] * scale);
    return inverse_power(scale);
}

// Where k or v of a token and head goes.
__device__ __forceinline__ half* cache_row(const HeadsArgs& a, int part, int h, int token) {
    const uint32_t position = a.spans.position[token];
    const uint32_t block = physical_block(a.spans, a.spans.span_of[token], a.group, position / KV_BLOCK);
    half* cache = part == 1 ? a.k_cache : a.v_cache;
    return cache + ((static_cast<size_t>(block) * a.kv_heads + h) * KV_BLOCK + position % KV_BLOCK) * a.dim;
}
