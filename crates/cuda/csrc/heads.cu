// Kernels over heads: angles of the rotation, and what follows the products of q, k and v.
#include "step.cuh"

namespace {
constexpr int WARPS = 4;
constexpr int THREADS = WARPS * WARP;

struct RopeArgs {
    const double* inv_freq;    // [pairs]
    const uint32_t* position;  // [tokens]
    float* table;              // [tokens][pairs][cos, sin]
    float magnitude;
    int pairs;
};

enum class Style : int { None = 0, Adjacent = 1, Halves = 2 };
enum class Norm : int { None = 0, Rms = 1, Layer = 2 };

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
    half* k_cache;    // of the layer: [block][kv_head][KV_BLOCK][dim]
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
};

// Rounded to half; what does not fit becomes the largest that does, so that a weight of zero times it is zero.
__device__ __forceinline__ half saturated(float v) {
    return __float2half_rn(isnan(v) ? v : fminf(fmaxf(v, -65504.0f), 65504.0f));
}
}  // namespace

// In double precision before the rounding, as on the CPU. A thread per pair.
extern "C" __global__ void __launch_bounds__(THREADS) rope_angles(const RopeArgs a) {
    grid_wait();
    const int token = blockIdx.x;
    for (int i = threadIdx.x; i < a.pairs; i += THREADS) {
        double sine, cosine;
        sincos(static_cast<double>(a.position[token]) * a.inv_freq[i], &sine, &cosine);
        float* out = a.table + (static_cast<size_t>(token) * a.pairs + i) * 2;
        out[0] = static_cast<float>(cosine) * a.magnitude;
        out[1] = static_cast<float>(sine) * a.magnitude;
    }
}

// Norm and rotation of a head, then q in half precision, or k and v into the cache. Grid: q, k and v heads × tokens.
extern "C" __global__ void __launch_bounds__(THREADS) finish_heads(const HeadsArgs a) {
    __shared__ float shared[WARPS];
    __shared__ float head[256];
    grid_wait();
    const int token = blockIdx.y, dim = a.dim;
    int h = blockIdx.x;
    const int part = h < a.q_heads ? 0 : h < a.q_heads + a.kv_heads ? 1 : 2;
    h -= part == 0 ? 0 : part == 1 ? a.q_heads : a.q_heads + a.kv_heads;
    const float* from = part == 0 ? a.q : part == 1 ? a.k : a.v;
    from += (static_cast<size_t>(token) * (part == 0 ? a.q_heads : a.kv_heads) + h) * dim;
    for (int i = threadIdx.x; i < dim; i += THREADS) head[i] = from[i];
    __syncthreads();
    if (part < 2) {
        const HeadNorm& norm = part == 0 ? a.q_norm : a.k_norm;
        if (static_cast<Norm>(norm.kind) != Norm::None) {
            float mean = 0.0f;
            if (static_cast<Norm>(norm.kind) == Norm::Layer) {
                float sum = 0.0f;
                for (int i = threadIdx.x; i < dim; i += THREADS) sum += head[i];
                mean = block_sum<WARPS>(sum, shared) / static_cast<float>(dim);
            }
            float squares = 0.0f;
            for (int i = threadIdx.x; i < dim; i += THREADS) {
                float d = head[i] - mean;
                squares = fmaf(d, d, squares);
            }
            const float factor = 1.0f / sqrtf(block_sum<WARPS>(squares, shared) / static_cast<float>(dim) + norm.eps);
            for (int i = threadIdx.x; i < dim; i += THREADS) {
                float y = (head[i] - mean) * factor * norm.weight[h * norm.stride + i];
                head[i] = norm.bias ? y + norm.bias[h * norm.stride + i] : y;
            }
            __syncthreads();
        }
        const Style style = static_cast<Style>(a.style);
        if (style != Style::None) {
            const float* angles = a.angles + static_cast<size_t>(token) * a.pairs * 2;
            for (int i = threadIdx.x; i < a.pairs; i += THREADS) {
                const int i0 = style == Style::Adjacent ? 2 * i : i;
                const int i1 = style == Style::Adjacent ? 2 * i + 1 : i + a.pairs;
                const float x = head[i0], y = head[i1], c = angles[2 * i], s = angles[2 * i + 1];
                head[i0] = x * c - y * s;
                head[i1] = x * s + y * c;
            }
            __syncthreads();
        }
    }
    if (part == 0) {
        float most = 0.0f;
        for (int i = threadIdx.x; i < dim; i += THREADS) most = fmaxf(most, fabsf(head[i]));
        const float scale = row_scale(block_max<WARPS>(most, shared));
        const size_t at = static_cast<size_t>(token) * a.q_heads + h;
        for (int i = threadIdx.x; i < dim; i += THREADS) a.q16[at * dim + i] = __float2half_rn(head[i] * scale);
        if (threadIdx.x == 0) a.q_unscale[at] = inverse_power(scale);
        return;
    }
    const uint32_t position = a.spans.position[token];
    const uint32_t block = physical_block(a.spans, a.spans.span_of[token], a.group, position / KV_BLOCK);
    half* cache = part == 1 ? a.k_cache : a.v_cache;
    cache += ((static_cast<size_t>(block) * a.kv_heads + h) * KV_BLOCK + position % KV_BLOCK) * dim;
    for (int i = threadIdx.x; i < dim; i += THREADS) cache[i] = saturated(head[i]);
}
