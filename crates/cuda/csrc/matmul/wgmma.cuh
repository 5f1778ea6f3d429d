// Products of many tokens with a matrix in QT16 on Hopper: warpgroups make A fragments of weights in registers, tokens come
// from shared memory, and the tensor cores work while the next fragments are made. The chain of m64n128k16 steps has the
// bits of m16n8k16's, so the sums are those of matmul/qt16.cuh.
#pragma once
#include "../hopper.cuh"
#include "../matmul.cuh"
#include "../prepare.cuh"
#include "../qt16.cuh"

struct TileMatrix {
    const uint8_t* w;   // QT16
    const float* bias;  // [rows], or null
    float* out;         // [tokens][out_stride]
    float w_scale;
    float w_unscale;
    int rows;
    int tiles;  // of rows
    int out_stride;
    int unused;
};

struct TileArgs {
    TileMatrix m[3];         // of one type; a gate and its up are the first two
    const half* x;           // tiles, see `TileRow`
    const float* x_unscale;  // [tokens]: what undoes each row's power of two
    uint32_t* most;          // gated: [tokens], bits of the largest magnitude of what is stored, zero before
    int cols;
    int x_stride;
    int tokens;
    int segments;
    int act;  // gated
    int finish;
    float factor;
    float soft_cap;
};

namespace wgmma_matmul {

// A tile of the result: a warpgroup has 64 rows, four row groups, and all tokens. In a gated tile they are the same rows,
// one warpgroup's of the gate and the other's of its up.
constexpr int CONSUMERS = 2;
constexpr int GROUPS = 4 * CONSUMERS;
constexpr int TOKENS = TILE_TOKENS;
constexpr int THREADS = 128 * (1 + CONSUMERS);
// Steps of 64 columns of tokens, and units of weights with the sums of their tokens, that are on their way or at hand.
constexpr int X_STAGES = 6;
constexpr int W_STAGES = 3;
constexpr int X_BYTES = TOKENS * 64 * 2;
constexpr int SUM_BYTES = TOKENS * QT_SUMS * 2;

template <class U>
constexpr int W_BYTES = GROUPS * U::BYTES + SUM_BYTES;

// Barriers follow what they are for. A stage of tokens begins at a multiple of 1024, where the swizzle starts.
template <class U>
constexpr int SHARED = X_STAGES * X_BYTES + W_STAGES * W_BYTES<U> + 16 * (X_STAGES + W_STAGES);

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
using namespace hopper;

// D (64 × 128) = A · B, or += unless `fresh`. A: m64k16 in registers, B: k16n128 in shared memory.
__device__ __forceinline__ void multiply(float (&d)[64], const uint32_t (&a)[4], uint64_t b, bool fresh) {
    asm volatile("{ .reg .pred p; setp.eq.u32 p, %69, 0;"
                 " wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " MINFER_64
                 ", {%64, %65, %66, %67}, %68, p, 1, 1, 0; }"
                 : MINFER_OF_64(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<uint32_t>(fresh)));
}

// Descriptor of the sums, along K: 8 × 16-byte cores, the next along K after 128 bytes, along the tokens after 256.
__device__ __forceinline__ uint64_t sums_at(uint32_t address) {
    return static_cast<uint64_t>(address >> 4 & 0x3fff) | 8ull << 16 | 16ull << 32;
}

// Where a block's tile is.
struct Place {
    int which;  // matrix of the first warpgroup
    int tile;   // of its rows
};

template <bool GATED>
__device__ __forceinline__ Place place_of(const TileArgs& a) {
    Place out = {0, static_cast<int>(blockIdx.y)};
    while (!GATED && out.which < 2 && out.tile >= a.m[out.which].tiles) out.tile -= a.m[out.which++].tiles;
    return out;
}

// A thread that asks for tokens.
__device__ __forceinline__ void ask_tokens(const TileArgs& a, uint32_t x, uint32_t x_full, uint32_t x_empty) {
    const half* from = a.x + static_cast<size_t>(blockIdx.x) * TOKENS * a.x_stride;
    Turn<X_STAGES> turn;
#pragma unroll 1
    for (int s = 0; s < a.cols / 64; ++s) {
        bar_wait(x_empty + 8 * turn.stage, turn.parity ^ 1);
        bar_expect(x_full + 8 * turn.stage, X_BYTES);
        bulk_copy(x + turn.stage * X_BYTES, from, X_BYTES, x_full + 8 * turn.stage);
        from += 64 * TOKENS;
        turn.next();
    }
}

// A warp that asks for weights, a lane for each row group, and for the sums of their tokens.
template <class U, bool GATED>
__device__ __forceinline__ void ask_weights(const TileArgs& a, uint32_t w, uint32_t w_full, uint32_t w_empty) {
    const Place place = place_of<GATED>(a);
    const int lane = threadIdx.x % WARP, units = a.cols / QT_K, each = GATED ? GROUPS / CONSUMERS : GROUPS;
    const bool sums = lane == GROUPS;
    const TileMatrix& m = a.m[place.which + (lane < GROUPS ? lane / each : 0)];
    // The last group instead of those beyond the end; its sums are dropped.
    const int group = min(place.tile * each + lane % each, (m.rows + QT_ROWS - 1) / QT_ROWS - 1);
    const uint8_t* from = m.w + static_cast<size_t>(group) * units * U::BYTES;
    if (sums) {
        const half* tile = a.x + static_cast<size_t>(blockIdx.x) * TOKENS * a.x_stride;
        from = reinterpret_cast<const uint8_t*>(tile + static_cast<size_t>(a.cols) * TOKENS);
    }
    const int bytes = sums ? SUM_BYTES : U::BYTES;
    Turn<W_STAGES> turn;
#pragma unroll 1
    for (int u = 0; u < units; ++u) {
        const uint32_t to = w + turn.stage * W_BYTES<U> + lane * U::BYTES, full = w_full + 8 * turn.stage;
        bar_wait(w_empty + 8 * turn.stage, turn.parity ^ 1);
        if (lane == 0) bar_expect(full, W_BYTES<U>);
        __syncwarp();
        if (lane <= GROUPS) bulk_copy(to, from, bytes, full);
        from += bytes;
        turn.next();
    }
}

// Row of value i of an accumulator in its warp's 16, and its token in the tile.
__device__ __forceinline__ int row_of(int i) { return threadIdx.x % WARP / 4 + i % 4 / 2 * 8; }
__device__ __forceinline__ int token_of(int i) { return threadIdx.x % 4 * 2 + i / 4 * 8 + i % 2; }

// A gate and its up: each warpgroup finishes half of the tokens, for which the other one leaves its values in `memory`,
// that nobody reads any more once all have met.
__device__ __forceinline__ void finish_gated(const TileArgs& a, const TileMatrix& m, float (&y)[64], int tile,
                                             float* memory) {
    const int group = threadIdx.x / 128 - 1, thread = threadIdx.x % 128, warp = thread / WARP, lane = threadIdx.x % WARP;
    const int row0 = tile * 64 + warp * QT_ROWS, token0 = blockIdx.x * TOKENS;
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        const int row = row0 + row_of(i), token = token0 + token_of(i);
        y[i] *= m.w_unscale * (token < a.tokens ? a.x_unscale[token] : 0.0f);
        if (m.bias && row < m.rows) y[i] += m.bias[row];
    }
    asm volatile("bar.sync 1, 256;" ::: "memory");
    // The gate's warpgroup has the first 32 values of a thread, the up's the last.
    float* other = memory + group * 32 * 128;
#pragma unroll
    for (int i = 0; i < 32; ++i) other[i * 128 + thread] = group == 0 ? y[32 + i] : y[i];
    asm volatile("bar.sync 1, 256;" ::: "memory");
    other = memory + (1 - group) * 32 * 128;
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
        float most[2] = {};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const int at = group * 32 + i + k, row = row0 + row_of(k), token = token0 + token_of(at);
            const float mine = group == 0 ? y[i + k] : y[32 + i + k], theirs = other[(i + k) * 128 + thread];
            const float v = activate(static_cast<Act>(a.act), group == 0 ? mine : theirs) * (group == 0 ? theirs : mine);
            if (row < m.rows && token < a.tokens) {
                a.m[0].out[static_cast<size_t>(token) * a.m[0].out_stride + row] = v;
                most[k % 2] = fmaxf(most[k % 2], fabsf(v));
            }
        }
#pragma unroll
        for (int k = 0; k < 2; ++k) {
#pragma unroll
            for (int d = 4; d < WARP; d *= 2) most[k] = fmaxf(most[k], __shfl_xor_sync(~0u, most[k], d));
            const int token = token0 + group * 64 + i / 4 * 8 + lane * 2 + k;
            if (lane < 4 && token < a.tokens) atomicMax(a.most + token, __float_as_uint(most[k]));
        }
    }
}

template <class U, bool GATED>
__device__ __forceinline__ void consume(const TileArgs& a, uint8_t* memory, uint32_t x, uint32_t w, uint32_t bars) {
    const int warp = threadIdx.x / WARP - 4, lane = threadIdx.x % WARP;
    const int units = a.cols / QT_K, segments = a.segments;
    const Place place = place_of<GATED>(a);
    // Copied: what an index into the parameters names is loaded anew wherever it is used.
    const TileMatrix m = a.m[place.which + (GATED ? warp / 4 : 0)];
    Turn<X_STAGES> of_x;
    Turn<W_STAGES> of_w;
    const uint32_t x_full = bars, x_empty = x_full + 8 * X_STAGES, w_full = x_empty + 8 * X_STAGES;
    const uint32_t w_empty = w_full + 8 * W_STAGES;
    float sum[64], acc[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) sum[i] = 0.0f;
    QtRaw raw;
    typename U::Scales scales;
    int segment = 0, end = segment_begin(units, segments, 1);
    bool fresh = true;
#pragma unroll 1
    for (int u = 0; u < units; ++u) {
        const uint32_t unit = of_w.stage * W_BYTES<U>;
        bar_wait(w_full + 8 * of_w.stage, of_w.parity);
        U::template load<FromShared>(raw, memory + X_STAGES * X_BYTES + unit + warp * U::BYTES, lane);
        U::scales(scales, raw, lane, m.w_scale);
#pragma unroll
        for (int slab = 0; slab < 4; ++slab) {
            // Made anew for every slab, and waited for before anything else: while this warpgroup makes fragments, the
            // other one multiplies. (Registers that a step reads while it runs are not safe from the compiler.)
            uint32_t fragment[4][4], least[4];
            typename U::Slab of_slab;
            U::slab(of_slab, scales, slab, lane);
#pragma unroll
            for (int step = 0; step < 4; ++step) U::fragment(fragment[step], raw, of_slab, slab, step);
            if (U::HAS_MIN && slab == 3) U::min_fragment(least, scales);
            bar_wait(x_full + 8 * of_x.stage, of_x.parity);
            const uint64_t tokens = swizzled_at(x + of_x.stage * X_BYTES);
            multiply_begin();
#pragma unroll
            for (int step = 0; step < 4; ++step) {
                multiply(acc, fragment[step], tokens + 2 * step, fresh && slab == 0 && step == 0);
            }
            if (U::HAS_MIN && slab == 3) multiply(acc, least, sums_at(w + unit + GROUPS * U::BYTES), false);
            multiply_commit();
            multiply_wait<0>();
            if (lane == 0) bar_arrive(x_empty + 8 * of_x.stage);
            of_x.next();
        }
        if (lane == 0) bar_arrive(w_empty + 8 * of_w.stage);
        of_w.next();
        fresh = u + 1 == end;
        if (fresh) {
            // Segments in ascending order.
#pragma unroll
            for (int i = 0; i < 64; ++i) sum[i] += acc[i];
            ++segment;
            end = segment_begin(units, segments, segment + 1);
        }
    }
    if (GATED) {
        finish_gated(a, m, sum, place.tile, reinterpret_cast<float*>(memory));
        return;
    }
    const int row0 = (place.tile * GROUPS + warp) * QT_ROWS + row_of(0), token0 = blockIdx.x * TOKENS + token_of(0);
    const Finish finish = static_cast<Finish>(a.finish);
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        const int row = row0 + i % 4 / 2 * 8, token = token0 + i / 4 * 8 + i % 2;
        if (row >= m.rows || token >= a.tokens) continue;
        float y = sum[i] * (m.w_unscale * a.x_unscale[token]);
        if (m.bias) y += m.bias[row];
        float* out = m.out + static_cast<size_t>(token) * m.out_stride + row;
        *out = finish_value(finish, y, a.factor, a.soft_cap, finish == Finish::Residual ? *out : 0.0f);
    }
}

// Grid: tiles of tokens × tiles of rows; those that share weights run together.
template <class U, bool GATED>
__device__ __forceinline__ void body(const TileArgs& a) {
    extern __shared__ __align__(1024) uint8_t memory[];
    const uint32_t x = shared_address(memory), w = x + X_STAGES * X_BYTES, bars = w + W_STAGES * W_BYTES<U>;
    if (threadIdx.x == 0) {
        for (int i = 0; i < X_STAGES + W_STAGES; ++i) {
            const int full = i < X_STAGES ? i : X_STAGES + i, empty = full + (i < X_STAGES ? X_STAGES : W_STAGES);
            bar_init(bars + 8 * full, 1);
            bar_init(bars + 8 * empty, GROUPS);
        }
        bars_made();
    }
    __syncthreads();
    grid_wait();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        const uint32_t x_empty = bars + 8 * X_STAGES, w_full = x_empty + 8 * X_STAGES, w_empty = w_full + 8 * W_STAGES;
        if (threadIdx.x == 0) ask_tokens(a, x, bars, x_empty);
        if (threadIdx.x / WARP == 1) ask_weights<U, GATED>(a, w, w_full, w_empty);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        consume<U, GATED>(a, memory, x, w, bars);
    }
}
#else
// Elsewhere the host takes other kernels.
template <class U, bool GATED>
__device__ __forceinline__ void body(const TileArgs&) {}
#endif

}  // namespace wgmma_matmul
