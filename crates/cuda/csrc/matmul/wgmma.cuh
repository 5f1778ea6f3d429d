// Products of many tokens with a matrix in QT16 on Hopper: warpgroups make A fragments of weights in registers, tokens come
// from shared memory, and the tensor cores work while the next fragments are made. The chain of m64n128k16 steps has the
// bits of m16n8k16's, so the sums are those of matmul/qt16.cuh.
#pragma once
#include "../hopper.cuh"
#include "tile.cuh"

namespace wgmma_matmul {

constexpr int X_BYTES = TOKENS * 64 * 2;
// All that a block can have.
constexpr int SHARED = 227 * 1024;

// A block of CONSUMERS warpgroups that multiply and one that asks for memory. In a tile of the result each warp has a row
// group and all tokens; in a gated tile the first half of the warps have rows of the gate, the others the same of its up.
template <class U, int CONSUMERS>
struct Block {
    static constexpr int GROUPS = 4 * CONSUMERS, THREADS = 128 * (1 + CONSUMERS);
    static constexpr int SUM_BYTES = U::HAS_MIN ? TOKENS * QT_SUMS * 2 : 0;
    static constexpr int W_BYTES = GROUPS * U::BYTES + SUM_BYTES;
    // Two warpgroups have registers for the sums of earlier segments, three park them where a tile is turned.
    static constexpr bool PARKS = CONSUMERS > 2;
    // Two warpgroups take turns at the tensor cores, which three keep busy anyhow.
    static constexpr bool TURNS = CONSUMERS == 2;
    static constexpr int PARK_BYTES = GROUPS * SUMS * 4, BAR_BYTES = 256;
    // Steps of 64 columns of tokens, and units of weights with the sums of their tokens, that are on their way or at hand.
    static constexpr int FREE = SHARED - PARK_BYTES - BAR_BYTES;
    static constexpr int W_STAGES = FREE - 2 * W_BYTES >= 3 * X_BYTES ? 2 : 1;
    static constexpr int MOST = (FREE - W_STAGES * W_BYTES) / X_BYTES, X_STAGES = MOST < 6 ? MOST : 6;
    static_assert(X_STAGES >= 3 && (W_STAGES == 2 || !U::HAS_MIN), "stages");
    // Tokens first: a stage begins at a multiple of 1024, where the swizzle starts.
    static constexpr int PARK = X_STAGES * X_BYTES, W = PARK + PARK_BYTES, BARS = W + W_STAGES * W_BYTES;
    static constexpr int X_FULL = BARS, X_EMPTY = X_FULL + 8 * X_STAGES;
    static constexpr int W_FULL = X_EMPTY + 8 * X_STAGES, W_EMPTY = W_FULL + 8 * W_STAGES;
};

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

// A thread that asks for tokens.
template <class B, bool GATED>
__device__ __forceinline__ void ask_tokens(const TileArgs& a, uint32_t base) {
    const int tiles = tiles_of<GATED>(a);
    Turn<B::X_STAGES> turn;
#pragma unroll 1
    for (int item = blockIdx.x; item < tiles; item += gridDim.x) {
        const half* from = a.x + static_cast<size_t>(place_of<GATED>(a, item).tokens) * TOKENS * a.x_stride;
#pragma unroll 1
        for (int s = 0; s < a.cols / 64; ++s) {
            const uint32_t full = base + B::X_FULL + 8 * turn.stage;
            bar_wait(base + B::X_EMPTY + 8 * turn.stage, turn.parity ^ 1);
            bar_expect(full, X_BYTES);
            bulk_copy(base + turn.stage * X_BYTES, from, X_BYTES, full);
            from += 64 * TOKENS;
            turn.next();
        }
    }
}

// A warp that asks for weights, a lane for each row group, and for the sums of their tokens.
template <class U, class B, bool GATED>
__device__ __forceinline__ void ask_weights(const TileArgs& a, uint32_t base) {
    const int lane = threadIdx.x % WARP, units = a.cols / U::K, each = GATED ? B::GROUPS / 2 : B::GROUPS;
    const bool sums = lane == B::GROUPS, asks = lane < B::GROUPS + (U::HAS_MIN ? 1 : 0);
    const int bytes = sums ? B::SUM_BYTES : U::BYTES, tiles = tiles_of<GATED>(a);
    Turn<B::W_STAGES> turn;
#pragma unroll 1
    for (int item = blockIdx.x; item < tiles; item += gridDim.x) {
        const Place place = place_of<GATED>(a, item);
        const TileMatrix& m = a.m[place.which + (GATED && lane < B::GROUPS ? lane / each : 0)];
        // The last group instead of those beyond the end; its sums are dropped.
        const int group = min(place.tile * each + lane % each, (m.rows + QT_ROWS - 1) / QT_ROWS - 1);
        const uint8_t* from = m.w + static_cast<size_t>(group) * units * U::BYTES;
        if (sums) {
            const half* tile = a.x + static_cast<size_t>(place.tokens) * TOKENS * a.x_stride;
            from = reinterpret_cast<const uint8_t*>(tile + static_cast<size_t>(a.cols) * TOKENS);
        }
#pragma unroll 1
        for (int u = 0; u < units; ++u) {
            const uint32_t to = base + B::W + turn.stage * B::W_BYTES + lane * U::BYTES;
            const uint32_t full = base + B::W_FULL + 8 * turn.stage;
            bar_wait(base + B::W_EMPTY + 8 * turn.stage, turn.parity ^ 1);
            if (lane == 0) bar_expect(full, B::W_BYTES);
            __syncwarp();
            if (asks) bulk_copy(to, from, bytes, full);
            from += bytes;
            turn.next();
        }
    }
}

// A segment's sums `acc` and those of the segments before it, of which there are none at the `first`: `parked`, a lane's
// quads in its warp's memory. After the last segment they are `acc`.
__device__ __forceinline__ void add_parked(float (&acc)[64], float4* parked, bool first, bool last) {
#pragma unroll
    for (int i = 0; i < 64; i += 4) {
        float4 sum = first ? float4() : parked[i / 4 * WARP];
        sum = make_float4(sum.x + acc[i], sum.y + acc[i + 1], sum.z + acc[i + 2], sum.w + acc[i + 3]);
        if (!last) parked[i / 4 * WARP] = sum;
        acc[i] = sum.x, acc[i + 1] = sum.y, acc[i + 2] = sum.z, acc[i + 3] = sum.w;
    }
}

// The same in registers.
__device__ __forceinline__ void add_kept(float (&acc)[64], float (&kept)[64], bool first, bool last) {
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        kept[i] = (first ? 0.0f : kept[i]) + acc[i];
        if (last) acc[i] = kept[i];
    }
}

// Says that a stage is empty once all that a lane loaded from it has arrived: an arrival alone does not wait for that.
__device__ __forceinline__ void empty_when_loaded(uint32_t bar, const QtRaw& raw, uint32_t zero) {
    uint32_t all = raw.more[0].x | raw.more[1].x | raw.rest.x | raw.rest.y | raw.rest.z | raw.rest.w;
#pragma unroll
    for (int i = 0; i < 8; ++i) all |= raw.q[i].x;
    bar += all & zero;
    __syncwarp();
    if (threadIdx.x % WARP == 0) bar_arrive(bar);
}

// One of two warpgroups waits until the other one's steps are on their way, and says that its own are.
__device__ __forceinline__ void take_turn(int own) { asm volatile("bar.sync %0, 256;" ::"r"(8 + own) : "memory"); }
__device__ __forceinline__ void give_turn(int other) { asm volatile("bar.arrive %0, 256;" ::"r"(8 + other) : "memory"); }

// A tile: its sums over `all` times 256 columns, where segments begin.
template <class U, class B>
__device__ __forceinline__ void sum_tile(float (&acc)[64], const TileMatrix& m, int all, int segments, uint8_t* memory,
                                         uint32_t base, int warp, Turn<B::X_STAGES>& of_x, Turn<B::W_STAGES>& of_w) {
    const int lane = threadIdx.x % WARP;
    float4* parked = reinterpret_cast<float4*>(memory + B::PARK) + warp * (SUMS / 4) + lane;
    float kept[64];
    QtRaw raw = {};
    typename U::Scales scales;
    constexpr int EACH = QT_K / U::K;
    int segment = 0, end = segment_begin(all, segments, 1) * EACH;
    bool fresh = true;
#pragma unroll 1
    for (int u = 0; u < all * EACH; ++u) {
        const uint32_t unit = B::W + of_w.stage * B::W_BYTES, w_empty = base + B::W_EMPTY + 8 * of_w.stage;
        bar_wait(base + B::W_FULL + 8 * of_w.stage, of_w.parity);
        U::template load<FromShared>(raw, memory + unit + warp * U::BYTES, lane);
        U::scales(scales, raw, lane, m.w_scale);
        if (B::W_STAGES == 1) empty_when_loaded(w_empty, raw, m.zero);
        of_w.next();
#pragma unroll
        for (int slab = 0; slab < U::K / 64; ++slab) {
            // Made anew for every slab, and waited for before anything else: while this warpgroup makes fragments, the
            // others multiply. (Registers that a step reads while it runs are not safe from the compiler.)
            uint32_t fragment[4][4], least[4];
            typename U::Slab of_slab;
            U::slab(of_slab, scales, slab, lane);
#pragma unroll
            for (int step = 0; step < 4; ++step) U::fragment(fragment[step], raw, of_slab, slab, step);
            if (U::HAS_MIN && slab == 3) U::min_fragment(least, scales);
            bar_wait(base + B::X_FULL + 8 * of_x.stage, of_x.parity);
            const uint64_t tokens = swizzled_at(base + of_x.stage * X_BYTES);
            if (B::TURNS) take_turn(warp / 4);
            multiply_begin();
#pragma unroll
            for (int step = 0; step < 4; ++step) {
                multiply(acc, fragment[step], tokens + 2 * step, fresh && slab == 0 && step == 0);
            }
            if (U::HAS_MIN && slab == 3) multiply(acc, least, sums_at(base + unit + B::GROUPS * U::BYTES), false);
            multiply_commit();
            if (B::TURNS) give_turn((warp / 4 + 1) % (B::GROUPS / 4));
            multiply_wait<0>();
            if (lane == 0) bar_arrive(base + B::X_EMPTY + 8 * of_x.stage);
            of_x.next();
        }
        if (B::W_STAGES > 1 && lane == 0) bar_arrive(w_empty);
        fresh = u + 1 == end;
        if (fresh) {
            // Segments in ascending order.
            const bool last = segment + 1 == segments;
            if (B::PARKS) {
                add_parked(acc, parked, segment == 0, last);
            } else {
                add_kept(acc, kept, segment == 0, last);
            }
            ++segment;
            end = segment_begin(all, segments, segment + 1) * EACH;
        }
    }
}

template <class U, class B, bool GATED>
__device__ __forceinline__ void consume(const TileArgs& a, uint8_t* memory, uint32_t base) {
    const int warp = threadIdx.x / WARP - 4, tiles = tiles_of<GATED>(a);
    float* sums = reinterpret_cast<float*>(memory + B::PARK);
    Turn<B::X_STAGES> of_x;
    Turn<B::W_STAGES> of_w;
    if (B::TURNS && warp / 4 == 1) give_turn(0);
#pragma unroll 1
    for (int item = blockIdx.x; item < tiles; item += gridDim.x) {
        const Place place = place_of<GATED>(a, item);
        // Copied: what an index into the parameters names is loaded anew wherever it is used.
        const TileMatrix m = a.m[place.which + (GATED ? warp / (B::GROUPS / 2) : 0)];
        float acc[64];
        sum_tile<U, B>(acc, m, a.cols / QT_K, a.segments, memory, base, warp, of_x, of_w);
        if (GATED) {
            finish_gated<B::GROUPS / 2>(a, place, warp, sums, acc);
        } else {
            finish_tile(a, m, (place.tile * B::GROUPS + warp) * QT_ROWS, place.tokens * TOKENS, sums + warp * SUMS, acc);
        }
    }
}

// Grid: as many blocks as run at a time; each takes every gridDim.x-th tile.
template <class U, bool GATED, int CONSUMERS>
__device__ __forceinline__ void body(const TileArgs& a) {
    using B = Block<U, CONSUMERS>;
    extern __shared__ __align__(1024) uint8_t memory[];
    const uint32_t base = shared_address(memory);
    if (threadIdx.x == 0) {
        for (int i = 0; i < B::X_STAGES; ++i) {
            bar_init(base + B::X_FULL + 8 * i, 1);
            bar_init(base + B::X_EMPTY + 8 * i, B::GROUPS);
        }
        for (int i = 0; i < B::W_STAGES; ++i) {
            bar_init(base + B::W_FULL + 8 * i, 1);
            bar_init(base + B::W_EMPTY + 8 * i, B::GROUPS);
        }
        bars_made();
    }
    __syncthreads();
    grid_wait();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(CONSUMERS == 2 ? 40 : 32));
        if (threadIdx.x == 0) ask_tokens<B, GATED>(a, base);
        if (threadIdx.x / WARP == 1) ask_weights<U, B, GATED>(a, base);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMERS == 2 ? 232 : 160));
        consume<U, B, GATED>(a, memory, base);
    }
}
#else
// Elsewhere the host takes other kernels.
template <class U, bool GATED, int CONSUMERS>
__device__ __forceinline__ void body(const TileArgs&) {}
#endif

}  // namespace wgmma_matmul
