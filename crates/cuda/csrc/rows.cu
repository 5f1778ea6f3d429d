// Kernels over rows of activations: norms, and the f16 profile's input of a product. A block of 1024 threads per row,
// as with one token a single block does it and everything waits. Sums over a row are taken in an order that its length
// fixes.
#include "common.cuh"

namespace {
constexpr int WARPS = 32;
constexpr int THREADS = WARPS * WARP;

enum class Norm : int { None = 0, Rms = 1, Layer = 2 };

struct NormArgs {
    const float* weight;
    const float* bias;  // or null
    float eps;
    int kind;
};

// Mean to subtract and factor of a norm over `n` values.
struct Moments {
    float mean;
    float factor;
};

__device__ __forceinline__ Moments moments(const NormArgs& norm, const float* x, int n, float* shared) {
    const Norm kind = static_cast<Norm>(norm.kind);
    Moments m = {0.0f, 1.0f};
    if (kind == Norm::None) return m;
    if (kind == Norm::Layer) {
        float sum = 0.0f;
        for (int i = threadIdx.x; i < n; i += THREADS) sum += x[i];
        m.mean = block_sum<WARPS>(sum, shared) / static_cast<float>(n);
    }
    float squares = 0.0f;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        float d = x[i] - m.mean;
        squares = fmaf(d, d, squares);
    }
    float variance = block_sum<WARPS>(squares, shared) / static_cast<float>(n);
    m.factor = 1.0f / sqrtf(variance + norm.eps);
    return m;
}

__device__ __forceinline__ float normed(const NormArgs& norm, const Moments& m, float x, int i) {
    if (static_cast<Norm>(norm.kind) == Norm::None) return x;
    float y = (x - m.mean) * m.factor * norm.weight[i];
    return norm.bias ? y + norm.bias[i] : y;
}

enum class Act : int { None = -1, Silu = 0, GeluTanh = 1 };

__device__ __forceinline__ float activate(Act act, float x) {
    switch (act) {
        case Act::Silu: return x / (1.0f + expf(-x));
        case Act::GeluTanh: {
            float u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
            return 0.5f * x * (1.0f + tanhf(u));
        }
        default: return x;
    }
}

struct PrepareArgs {
    const float* x;          // [rows][x_stride]
    const float* other;      // for a gated activation: [rows][x_stride], or null
    const uint32_t* gather;  // row of x for each row of the result, or null
    half* out;               // [rows][out_stride] at `fragment_place`, zero beyond n
    float* unscale;          // [rows]
    float* plain;            // the same before the scale, [rows][n], or null
    NormArgs norm;
    int act;
    int n;
    int x_stride;
    int out_stride;
};

struct NormRowsArgs {
    const float* x;  // [rows][x_stride]
    float* out;      // [rows][out_stride]; may be x
    NormArgs norm;
    int add;  // out = out + factor · y instead of y
    float factor;
    int n;
    int x_stride;
    int out_stride;
};
}  // namespace

// A product's input: norm or activation, then half precision under the row's power of two.
extern "C" __global__ void __launch_bounds__(THREADS) prepare_rows(const PrepareArgs a) {
    __shared__ float shared[WARPS];
    grid_wait();
    const int row = blockIdx.x;
    const size_t from = static_cast<size_t>(a.gather ? a.gather[row] : row) * a.x_stride;
    const float* x = a.x + from;
    const float* other = a.other ? a.other + from : nullptr;
    const Moments m = moments(a.norm, x, a.n, shared);
    auto value = [&](int i) {
        float y = activate(static_cast<Act>(a.act), normed(a.norm, m, x[i], i));
        return other ? y * other[i] : y;
    };
    float most = 0.0f;
    for (int i = threadIdx.x; i < a.n; i += THREADS) most = fmaxf(most, fabsf(value(i)));
    const float scale = row_scale(block_max<WARPS>(most, shared));
    half* out = a.out + static_cast<size_t>(row) * a.out_stride;
    for (int i = threadIdx.x; i < a.out_stride; i += THREADS) {
        float y = i < a.n ? value(i) : 0.0f;
        out[fragment_place(i)] = __float2half_rn(y * scale);
        if (a.plain && i < a.n) a.plain[static_cast<size_t>(row) * a.n + i] = y;
    }
    if (threadIdx.x == 0) a.unscale[row] = inverse_power(scale);
}

// A norm of whole rows, stored or added.
extern "C" __global__ void __launch_bounds__(THREADS) norm_rows(const NormRowsArgs a) {
    __shared__ float shared[WARPS];
    grid_wait();
    const float* x = a.x + static_cast<size_t>(blockIdx.x) * a.x_stride;
    float* out = a.out + static_cast<size_t>(blockIdx.x) * a.out_stride;
    const Moments m = moments(a.norm, x, a.n, shared);
    for (int i = threadIdx.x; i < a.n; i += THREADS) {
        float y = normed(a.norm, m, x[i], i);
        out[i] = a.add ? out[i] + a.factor * y : y;
    }
}
