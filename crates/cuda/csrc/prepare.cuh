// A product's input: norm or activation of a row, then half precision under the row's power of two, where the tensor
// cores' B fragments want it. A block of PREPARE_THREADS threads per row; kernels that only do this and kernels that do
// it before their product share the code, hence the bits. Sums over a row are taken in an order that its length fixes:
// per thread over its quads of values in ascending order, a butterfly, warps ascending.
#pragma once
#include "common.cuh"

constexpr int PREPARE_THREADS = 256;
constexpr int PREPARE_WARPS = PREPARE_THREADS / WARP;

enum class Norm : int { None = 0, Rms = 1, Layer = 2 };

struct NormArgs {
    const float* weight;
    const float* bias;  // or null
    float eps;
    int kind;
};

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

// What a row of a product's input is made of.
struct RowArgs {
    const float* x;          // the row, or the first of them
    const float* other;      // multiplies the activation of x, or null
    const uint32_t* most;    // bits of the largest magnitude, if it is known
    float* plain;            // where the values go before they are scaled, or null
    NormArgs norm;
    int act;
    int n;
    int together;  // bytes: 256 values have one scale, not 32
    int unused;
};

// Mean to subtract and factor of a norm over `n` values.
struct Moments {
    float mean;
    float factor;
};

// Quads of a row that a thread has in flight: those that begin at i, i + QUADS, …
constexpr int BATCH = 5;
constexpr int QUADS = 4 * PREPARE_THREADS;

// FRESH: past L1, for what the kernel before may still be writing.
template <bool FRESH = false>
__device__ __forceinline__ float4 quad_of(const float* x, int i, int n) {
    const float4* from = reinterpret_cast<const float4*>(x + i);
    return i < n ? (FRESH ? __ldcg(from) : *from) : float4();
}

__device__ __forceinline__ float quad_max(float most, const float4& v) {
    return fmaxf(fmaxf(fmaxf(fmaxf(most, fabsf(v.x)), fabsf(v.y)), fabsf(v.z)), fabsf(v.w));
}

// Two reductions over the block for one pair of barriers.
__device__ __forceinline__ void block_sum_max(float& sum, float& most, float* shared) {
    sum = warp_sum(sum);
    most = warp_max(most);
    __syncthreads();
    if (threadIdx.x % WARP == 0) {
        shared[threadIdx.x / WARP] = sum;
        shared[PREPARE_WARPS + threadIdx.x / WARP] = most;
    }
    __syncthreads();
    sum = shared[0];
    most = shared[PREPARE_WARPS];
#pragma unroll
    for (int w = 1; w < PREPARE_WARPS; ++w) {
        sum += shared[w];
        most = fmaxf(most, shared[PREPARE_WARPS + w]);
    }
}

// A batch of a row as it lies in memory.
struct RowBatch {
    float4 x[BATCH], other[BATCH], weight[BATCH], bias[BATCH];

    // What no kernel before writes.
    __device__ __forceinline__ void load_norm(const RowArgs& a, int first) {
#pragma unroll
        for (int j = 0; j < BATCH; ++j) {
            const int i = first + j * QUADS;
            weight[j] = a.norm.kind ? quad_of(a.norm.weight, i, a.n) : float4();
            bias[j] = a.norm.kind && a.norm.bias ? quad_of(a.norm.bias, i, a.n) : float4();
        }
    }

    __device__ __forceinline__ void load_values(const RowArgs& a, int first) {
#pragma unroll
        for (int j = 0; j < BATCH; ++j) x[j] = quad_of<true>(a.x, first + j * QUADS, a.n);
#pragma unroll
        for (int j = 0; j < BATCH; ++j) {
            if (a.other) other[j] = quad_of<true>(a.other, first + j * QUADS, a.n);
        }
    }

    __device__ __forceinline__ static float one(const RowArgs& a, const Moments& m, float x, float other, float weight,
                                                float bias) {
        float y = x;
        if (static_cast<Norm>(a.norm.kind) != Norm::None) y = (x - m.mean) * m.factor * weight;
        if (static_cast<Norm>(a.norm.kind) != Norm::None && a.norm.bias) y += bias;
        y = activate(static_cast<Act>(a.act), y);
        return a.other ? y * other : y;
    }

    // Quad j after norm, activation and gate.
    __device__ __forceinline__ float4 value(const RowArgs& a, const Moments& m, int j) const {
        return make_float4(one(a, m, x[j].x, other[j].x, weight[j].x, bias[j].x),
                           one(a, m, x[j].y, other[j].y, weight[j].y, bias[j].y),
                           one(a, m, x[j].z, other[j].z, weight[j].z, bias[j].z),
                           one(a, m, x[j].w, other[j].w, weight[j].w, bias[j].w));
    }
};

// Moments of the norm, and the largest magnitude of the row's values. `batch` is the row's first one. `shared`: 2 ·
// PREPARE_WARPS floats.
__device__ __forceinline__ Moments row_moments(const RowArgs& a, RowBatch& batch, float& most, float* shared) {
    const Norm kind = static_cast<Norm>(a.norm.kind);
    Moments m = {0.0f, 1.0f};
    const float n = static_cast<float>(a.n);
    const bool simple = a.act < 0 && !a.other && !a.norm.bias && kind != Norm::Layer;
    const int own = 4 * threadIdx.x;
    most = 0.0f;
    // f(i, quad's number in the batch) for all quads of the row; the batch is the first one again afterwards.
    auto for_quads = [&](auto f) {
        for (int first = own; first < a.n; first += BATCH * QUADS) {
            if (first != own) {
                batch.load_norm(a, first);
                batch.load_values(a, first);
            }
#pragma unroll
            for (int j = 0; j < BATCH; ++j) {
                if (first + j * QUADS < a.n) f(j);
            }
        }
        if (a.n > BATCH * QUADS) {
            batch.load_norm(a, own);
            batch.load_values(a, own);
        }
    };
    if (kind == Norm::Layer) {
        float sum = 0.0f, unused = 0.0f;
        for_quads([&](int j) { sum += (batch.x[j].x + batch.x[j].y) + (batch.x[j].z + batch.x[j].w); });
        block_sum_max(sum, unused, shared);
        m.mean = sum / n;
    }
    if (kind != Norm::None || (simple && !a.most)) {
        float squares = 0.0f, largest = 0.0f;
        for_quads([&](int j) {
            const float4 v = batch.x[j], w = batch.weight[j];
            const float4 d = make_float4(v.x - m.mean, v.y - m.mean, v.z - m.mean, v.w - m.mean);
            squares = fmaf(d.x, d.x, fmaf(d.y, d.y, fmaf(d.z, d.z, fmaf(d.w, d.w, squares))));
            if (!simple) return;
            const bool plain = kind == Norm::None;
            largest = quad_max(largest, make_float4(plain ? v.x : v.x * w.x, plain ? v.y : v.y * w.y,
                                                    plain ? v.z : v.z * w.z, plain ? v.w : v.w * w.w));
        });
        block_sum_max(squares, largest, shared);
        if (kind != Norm::None) m.factor = 1.0f / sqrtf(squares / n + a.norm.eps);
        // One factor for all: the largest product with the weights is the largest value.
        most = m.factor * largest;
    }
    if (a.most) {
        most = __uint_as_float(__ldcg(a.most));
    } else if (!simple) {
        float largest = 0.0f, unused = 0.0f;
        for_quads([&](int j) { largest = quad_max(largest, batch.value(a, m, j)); });
        block_sum_max(unused, largest, shared);
        most = largest;
    }
    return m;
}

// Where the sums of the groups of 32 of a row lie: behind its fragments, 16 halves per 256 values. They are the B
// fragment of one more step: for each t the sums of groups 2t and 2t + 1 rounded to half, then what that lost.
__device__ __forceinline__ int sum_place(int k) { return k / 256 * 16 + k % 256 / 64 * 4 + k % 64 / 32; }

// A row, or a part of one, where m16n8k16's B fragments come from.
struct FragmentRow {
    half *to, *sum_to;
    // `columns` of it go to `out`; `own` is the thread's first one.
    __device__ __forceinline__ FragmentRow(half* out, int columns, int own)
        : to(out + fragment_place(own)), sum_to(out + columns + sum_place(own)) {}
    // Four values and the sum of a group of 32, `on` columns after the first, a multiple of 256.
    __device__ __forceinline__ void values(int on, half2 low, half2 high) const {
        *reinterpret_cast<half2*>(to + on) = low;
        *reinterpret_cast<half2*>(to + on + 16) = high;
    }
    __device__ __forceinline__ void sum(int on, half whole, half rest) const {
        sum_to[on / 16] = whole;
        sum_to[on / 16 + 2] = rest;
    }
};

// Tokens of a tile of a product's input for warpgroups.
constexpr int TILE_TOKENS = 128;

// A row of a tile: [columns / 64][TILE_TOKENS][64] with 16-byte chunks exclusive-ored with the token's number, and behind
// all of it the sums as B of one more step per 256 columns: 8 × 16-byte cores, of whole sums and of what they lost.
struct TileRow {
    half *to, *sum_to;
    __device__ __forceinline__ TileRow(half* tile, int columns, int token, int own)
        : to(tile + own / 64 * 64 * TILE_TOKENS + token * 64 + ((own % 64 / 8) ^ (token & 7)) * 8 + own % 8),
          sum_to(tile + (columns + own / 256 * 16) * TILE_TOKENS + token / 8 * 128 + token % 8 * 8 + own % 256 / 32) {}
    __device__ __forceinline__ void values(int on, half2 low, half2 high) const {
        *reinterpret_cast<uint2*>(to + on * TILE_TOKENS) = make_uint2(as_u32(low), as_u32(high));
    }
    __device__ __forceinline__ void sum(int on, half whole, half rest) const {
        half* place = sum_to + on / 16 * TILE_TOKENS;
        place[0] = whole;
        place[64] = rest;
    }
};

// Columns `begin` to `end` of a row, multiples of 256, to `out` with sums of groups, zero from n on. Returns what undoes the row's power of two. `batch` has what
// `load_norm` gives for `begin`. All threads of the block; no barrier after the last store.
template <class Row>
__device__ __forceinline__ float prepare_part(const RowArgs& a, RowBatch& batch, const Row& out, int begin, int end,
                                              float* shared) {
    float most;
    const int own = begin + 4 * threadIdx.x;
    batch.load_values(a, own);
    // A part has no moments to find, only a whole row.
    const Moments m = row_moments(a, batch, most, shared);
    const float scale = row_scale(most);
    // QUADS is a multiple of 256: a thread's quads lie equally far from each other in the result.
    for (int first = 0; first < end - begin; first += BATCH * QUADS) {
        if (first != 0) {
            batch.load_norm(a, own + first);
            batch.load_values(a, own + first);
        }
#pragma unroll
        for (int j = 0; j < BATCH; ++j) {
            const int i = own + first + j * QUADS;
            // What a whole warp has beyond the end; pairs of quads keep each other company.
            if (j % 2 == 0 && i - 4 * static_cast<int>(threadIdx.x % WARP) >= end) break;
            const float4 y = i < a.n ? batch.value(a, m, j) : float4();
            const half2 low = __floats2half2_rn(y.x * scale, y.y * scale);
            const half2 high = __floats2half2_rn(y.z * scale, y.w * scale);
            if (i < end) out.values(first + j * QUADS, low, high);
            if (a.plain && i < a.n) *reinterpret_cast<float4*>(a.plain + i) = y;
            const float2 l = __half22float2(low), h = __half22float2(high);
            float sum = (l.x + l.y) + (h.x + h.y);
#pragma unroll
            for (int d = 1; d < 8; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
            if (threadIdx.x % 8 == 0 && i < end) {
                const half whole = __float2half_rn(sum);
                out.sum(first + j * QUADS, whole, __float2half_rn(sum - __half2float(whole)));
            }
        }
    }
    return inverse_power(scale);
}

// A whole row, padded to a multiple of 256.
template <class Row>
__device__ __forceinline__ float prepare_row(const RowArgs& a, const Row& out, int padded, float* shared) {
    RowBatch batch;
    batch.load_norm(a, 4 * threadIdx.x);
    return prepare_part(a, batch, out, 0, padded, shared);
}
