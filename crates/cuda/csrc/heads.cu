// Kernels over heads: angles of the rotation, and what follows the products of q, k and v.
#include "cache.cuh"

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

namespace {
// F16: the cache is.
template <bool F16>
__device__ __forceinline__ void finish(const HeadsArgs& a) {
    __shared__ float heads[WARPS][MAX_HEAD];
    grid_wait();
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, token = blockIdx.y;
    int h = blockIdx.x * WARPS + warp;
    if (h >= a.q_heads + 2 * a.kv_heads) return;
    const int part = h < a.q_heads ? 0 : h < a.q_heads + a.kv_heads ? 1 : 2;
    h -= part == 0 ? 0 : part == 1 ? a.q_heads : a.q_heads + a.kv_heads;
    float* head = heads[warp];
    head_values(a, part, h, token, head);
    if (part == 0) {
        const size_t at = static_cast<size_t>(token) * a.q_heads + h;
        const float unscale = round_q(a, head, a.q16 + at * a.dim);
        if (lane == 0) a.q_unscale[at] = unscale;
        return;
    }
    if (F16) {
        half* to = cache_row(a, part, h, token);
        for (int i = lane; i < a.dim; i += WARP) to[i] = saturated(head[i]);
    } else {
        cache_head(a, static_cast<Kv>(part == 1 ? a.k_type : a.v_type), part, h, token, head, Nowhere());
    }
}
}  // namespace

// A warp per head. Grid: groups of WARPS of the q, k and v heads × tokens.
extern "C" __global__ void __launch_bounds__(THREADS) finish_heads(const HeadsArgs a) { finish<true>(a); }
// The same with a cache of any types.
extern "C" __global__ void __launch_bounds__(THREADS) finish_heads_any(const HeadsArgs a) { finish<false>(a); }
