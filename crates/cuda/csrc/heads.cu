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

namespace {
constexpr int PLAIN_THREADS = 256;
// Heads that a group of lanes reads at once.
constexpr int PLAIN_HEADS = 5;
}  // namespace

// The same for heads of 64 or 128 channels without a norm, of which all channels turn or none, and an f16 cache: dim / 4
// lanes have a head, each two pairs of its channels, in registers. Grid: tokens.
extern "C" __global__ void __launch_bounds__(PLAIN_THREADS) finish_heads_plain(const HeadsArgs a) {
    grid_wait();
    const int token = blockIdx.x, dim = a.dim, lanes = dim / 4, groups = PLAIN_THREADS / lanes;
    const int l = threadIdx.x % lanes, all = a.q_heads + 2 * a.kv_heads;
    const Style style = static_cast<Style>(a.style);
    const bool adjacent = style == Style::Adjacent;
    const int at0 = adjacent ? 4 * l : 2 * l, at1 = adjacent ? 4 * l + 2 : dim / 2 + 2 * l;
    // Cosine and sine of either pair.
    float4 angle = make_float4(1.0f, 0.0f, 1.0f, 0.0f);
    if (style != Style::None) {
        angle = __ldcg(reinterpret_cast<const float4*>(a.angles + static_cast<size_t>(token) * a.pairs * 2) + l);
    }
    const uint32_t position = a.spans.position[token];
    const uint32_t block = physical_block(a.spans, a.spans.span_of[token], a.group, position / KV_BLOCK);
#pragma unroll 1
    for (int first = threadIdx.x / lanes; first - static_cast<int>(threadIdx.x) / lanes < all; first += PLAIN_HEADS * groups) {
        float2 low[PLAIN_HEADS], high[PLAIN_HEADS];
#pragma unroll
        for (int j = 0; j < PLAIN_HEADS; ++j) {
            const int h = first + j * groups, k = h - a.q_heads, v = k - a.kv_heads;
            low[j] = high[j] = float2();
            if (h >= all) continue;
            const float* from = k < 0   ? a.q + (static_cast<size_t>(token) * a.q_heads + h) * dim
                                : v < 0 ? a.k + (static_cast<size_t>(token) * a.kv_heads + k) * dim
                                        : a.v + (static_cast<size_t>(token) * a.kv_heads + v) * dim;
            low[j] = __ldcg(reinterpret_cast<const float2*>(from + at0));
            high[j] = __ldcg(reinterpret_cast<const float2*>(from + at1));
        }
#pragma unroll
        for (int j = 0; j < PLAIN_HEADS; ++j) {
            const int h = first + j * groups, k = h - a.q_heads, v = k - a.kv_heads;
            if (v < 0 && style != Style::None) {
                const float x0 = low[j].x, y0 = adjacent ? low[j].y : high[j].x;
                const float x1 = adjacent ? high[j].x : low[j].y, y1 = high[j].y;
                const float2 pair0 = make_float2(x0 * angle.x - y0 * angle.y, x0 * angle.y + y0 * angle.x);
                const float2 pair1 = make_float2(x1 * angle.z - y1 * angle.w, x1 * angle.w + y1 * angle.z);
                low[j] = adjacent ? pair0 : make_float2(pair0.x, pair1.x);
                high[j] = adjacent ? pair1 : make_float2(pair0.y, pair1.y);
            }
            float most = fmaxf(fmaxf(fabsf(low[j].x), fabsf(low[j].y)), fmaxf(fabsf(high[j].x), fabsf(high[j].y)));
#pragma unroll
            for (int d = WARP / 2; d > 0; d /= 2) {
                if (d < lanes) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
            }
            if (h >= all) continue;
            half2 *to0, *to1;
            if (k < 0) {
                const size_t row = static_cast<size_t>(token) * a.q_heads + h;
                const float scale = row_scale(most);
                if (l == 0) a.q_unscale[row] = inverse_power(scale);
                to0 = reinterpret_cast<half2*>(a.q16 + row * dim + at0);
                to1 = reinterpret_cast<half2*>(a.q16 + row * dim + at1);
                *to0 = __floats2half2_rn(low[j].x * scale, low[j].y * scale);
                *to1 = __floats2half2_rn(high[j].x * scale, high[j].y * scale);
            } else {
                half* cache = v < 0 ? a.k_cache : a.v_cache;
                const size_t row = (static_cast<size_t>(block) * a.kv_heads + (v < 0 ? k : v)) * KV_BLOCK + position % KV_BLOCK;
                to0 = reinterpret_cast<half2*>(cache + row * dim + at0);
                to1 = reinterpret_cast<half2*>(cache + row * dim + at1);
                *to0 = __halves2half2(saturated(low[j].x), saturated(low[j].y));
                *to1 = __halves2half2(saturated(high[j].x), saturated(high[j].y));
            }
        }
    }
}
