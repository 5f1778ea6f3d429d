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
// group and all tokens; in a gated tile half of a warpgroup's warps have rows of the gate, the others the same of its up.
// WIDTH: tiles of tokens that it multiplies its fragments with.
template <class U, bool GATED_, int CONSUMERS, int WIDTH_>
struct Block {
    static constexpr bool GATED = GATED_;
    static constexpr int WIDTH = WIDTH_;
    static constexpr int GROUPS = 4 * CONSUMERS, THREADS = 128 * (1 + CONSUMERS);
    static constexpr int SUM_BYTES = U::HAS_MIN ? TOKENS * QT_SUMS * 2 : 0;
    static constexpr int W_BYTES = GROUPS * U::BYTES + SUM_BYTES;
    static_assert(WIDTH == 1 || !U::HAS_MIN, "sums of one tile of tokens");
    // Two warpgroups with a tile each have registers for the sums of earlier segments, others park them where it is turned.
    static constexpr bool PARKS = CONSUMERS > 2 || WIDTH > 1;
    // Two warpgroups take turns at the tensor cores; three find something to do.
    static constexpr bool TURNS = CONSUMERS == 2;
    // A gate and its up have enough tiles.
    static constexpr bool SHARES = PARKS && !GATED;
    using Work = wgmma_matmul::Work<SHARES>;
    __device__ __forceinline__ static Place place(const TileArgs& a, int tile) { return place_of<GATED, WIDTH>(a, tile); }
    static constexpr int PARK_BYTES = GROUPS * WIDTH * SUMS * 4, BAR_BYTES = 256;
    // Steps of 64 columns of tokens, and units of weights with the sums of their tokens, that are on their way or at hand.
    static constexpr int FREE = SHARED - PARK_BYTES - BAR_BYTES;
    static constexpr int LEAST = WIDTH > 1 ? 2 * WIDTH : 3;
    static constexpr int W_STAGES = FREE - 2 * W_BYTES >= LEAST * X_BYTES ? 2 : 1;
    static constexpr int MOST = (FREE - W_STAGES * W_BYTES) / X_BYTES, X_STAGES = MOST < 6 ? MOST : 6;
    static_assert(X_STAGES >= LEAST && (W_STAGES == 2 || !U::HAS_MIN), "stages");
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

// `Turn` in one register, of which consumers have few.
template <int STAGES>
struct Ring {
    uint32_t at = 0;
    __device__ __forceinline__ uint32_t stage() const { return at < STAGES ? at : at - STAGES; }
    __device__ __forceinline__ uint32_t parity() const { return at < STAGES ? 0 : 1; }
    __device__ __forceinline__ void next() { at = at + 1 == 2 * STAGES ? 0 : at + 1; }
};

// A thread that asks for tokens.
template <class B>
__device__ __forceinline__ void ask_tokens(const TileArgs& a, uint32_t base) {
    Turn<B::X_STAGES> ring;
#pragma unroll 1
    for (int turn = 0; typename B::Work(a, turn).there(); ++turn) {
        const typename B::Work work(a, turn);
        const int begin = first_unit(a, work.first), end = first_unit(a, work.end), tile = B::place(a, work.tile).tokens;
        const half* from[B::WIDTH];
        // The last tile instead of one beyond the end; its sums are dropped.
#pragma unroll
        for (int h = 0; h < B::WIDTH; ++h) {
            from[h] = a.x + static_cast<size_t>(min(tile + h, (a.tokens - 1) / TOKENS)) * TOKENS * a.x_stride;
            from[h] += static_cast<size_t>(begin) * QT_K * TOKENS;
        }
#pragma unroll 1
        for (int s = 4 * begin; s < 4 * end; ++s) {
#pragma unroll
            for (int h = 0; h < B::WIDTH; ++h) {
                const uint32_t full = base + B::X_FULL + 8 * ring.stage;
                bar_wait(base + B::X_EMPTY + 8 * ring.stage, ring.parity ^ 1);
                bar_expect(full, X_BYTES);
                bulk_copy(base + ring.stage * X_BYTES, from[h], X_BYTES, full);
                from[h] += 64 * TOKENS;
                ring.next();
            }
        }
    }
}

// A warp that asks for weights, a lane for each row group, and for the sums of their tokens.
template <class U, class B>
__device__ __forceinline__ void ask_weights(const TileArgs& a, uint32_t base) {
    constexpr int EACH = QT_K / U::K, ROWS = B::GATED ? B::GROUPS / 2 : B::GROUPS;
    const int lane = threadIdx.x % WARP;
    const bool sums = lane == B::GROUPS, asks = lane < B::GROUPS + (U::HAS_MIN ? 1 : 0);
    const int bytes = sums ? B::SUM_BYTES : U::BYTES;
    Turn<B::W_STAGES> ring;
#pragma unroll 1
    for (int turn = 0; typename B::Work(a, turn).there(); ++turn) {
        const typename B::Work work(a, turn);
        const int begin = first_unit(a, work.first) * EACH, end = first_unit(a, work.end) * EACH;
        const Place place = B::place(a, work.tile);
        const TileMatrix& m = a.m[place.which + (B::GATED ? lane % 4 / 2 : 0)];
        // The last group instead of those beyond the end; its sums are dropped.
        const int of_tile = B::GATED ? lane / 4 * 2 + lane % 2 : lane;
        const int group = min(place.tile * ROWS + of_tile, (m.rows + QT_ROWS - 1) / QT_ROWS - 1);
        // Found anew: this warp has few registers.
        int units = a.cols / U::K;
        asm volatile("" : "+r"(units));
        const uint8_t* from = m.w + static_cast<size_t>(group) * units * U::BYTES;
        if (sums) {
            const half* tile = a.x + static_cast<size_t>(place.tokens) * TOKENS * a.x_stride;
            from = reinterpret_cast<const uint8_t*>(tile + static_cast<size_t>(a.cols) * TOKENS);
        }
        from += static_cast<size_t>(begin) * bytes;
#pragma unroll 1
        for (int u = begin; u < end; ++u) {
            const uint32_t to = base + B::W + ring.stage * B::W_BYTES + lane * U::BYTES;
            const uint32_t full = base + B::W_FULL + 8 * ring.stage;
            bar_wait(base + B::W_EMPTY + 8 * ring.stage, ring.parity ^ 1);
            if (lane == 0) bar_expect(full, B::W_BYTES);
            __syncwarp();
            if (asks) bulk_copy(to, from, bytes, full);
            from += bytes;
            ring.next();
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

// Where a warp's sums of a segment lie that another block adds.
template <class B>
__device__ __forceinline__ float4* part_of(const TileArgs& a, int at) {
    return reinterpret_cast<float4*>(a.parts) + static_cast<size_t>(at) * (B::WIDTH * SUMS / 4) + threadIdx.x % WARP;
}

// Sums of a segment that a warp leaves for the one that finishes its tile.
template <class B>
__device__ __forceinline__ void leave_part(const TileArgs& a, const typename B::Work& work, int segment, int warp,
                                           const float (&acc)[B::WIDTH][64]) {
    const int at = work.shared(a, segment) * B::GROUPS + warp;
    float4* to = part_of<B>(a, at);
#pragma unroll
    for (int h = 0; h < B::WIDTH; ++h, to += SUMS / 4) {
        const float (&v)[64] = acc[h];
#pragma unroll
        for (int i = 0; i < 64; i += 4) __stcg(to + i / 4 * WARP, make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]));
    }
    __syncwarp();
    if (threadIdx.x % WARP == 0) {
        asm volatile("fence.acq_rel.gpu; st.relaxed.gpu.global.u32 [%0], 1;" ::"l"(a.arrived + at) : "memory");
    }
}

// Adds what others have left of a tile, segments in ascending order, once all of it is there.
template <class B>
__device__ __forceinline__ void add_parts(const TileArgs& a, const typename B::Work& work, int warp,
                                          float (&acc)[B::WIDTH][64]) {
    const int lane = threadIdx.x % WARP, parts = a.segments - work.end;
    if (lane < parts) {
        uint32_t* arrived = a.arrived + work.shared(a, work.end + lane) * B::GROUPS + warp;
        uint32_t there;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(there) : "l"(arrived) : "memory");
        } while (!there);
        *arrived = 0;
    }
    __syncwarp();
    const float4* from = part_of<B>(a, work.shared(a, work.end) * B::GROUPS + warp);
#pragma unroll 1
    for (int s = 0; s < parts; ++s, from += B::GROUPS * B::WIDTH * (SUMS / 4)) {
#pragma unroll
        for (int h = 0; h < B::WIDTH; ++h) {
            float (&v)[64] = acc[h];
#pragma unroll
            for (int i = 0; i < 64; i += 4) {
                const float4 part = __ldcg(from + h * (SUMS / 4) + i / 4 * WARP);
                v[i] += part.x, v[i + 1] += part.y, v[i + 2] += part.z, v[i + 3] += part.w;
            }
        }
    }
}

// The sums of a tile, or of its first segments; of others each segment is left for who finishes the tile.
template <class U, class B>
__device__ __forceinline__ void sum_tile(float (&acc)[B::WIDTH][64], const TileArgs& a, float w_scale, uint32_t zero,
                                         int turn, uint8_t* memory, uint32_t base, int warp, Ring<B::X_STAGES>& of_x,
                                         Ring<B::W_STAGES>& of_w) {
    const int lane = threadIdx.x % WARP;
    float4* parked = reinterpret_cast<float4*>(memory + B::PARK) + warp * (B::WIDTH * SUMS / 4) + lane;
    float kept[64];
    QtRaw raw = {};
    typename U::Scales scales;
    constexpr int EACH = QT_K / U::K;
    int segment = typename B::Work(a, turn).first, end = first_unit(a, segment + 1) * EACH;
    bool fresh = true;
#pragma unroll 1
    for (int u = first_unit(a, segment) * EACH;; ++u) {
        const uint32_t unit = B::W + of_w.stage() * B::W_BYTES, w_empty = base + B::W_EMPTY + 8 * of_w.stage();
        bar_wait(base + B::W_FULL + 8 * of_w.stage(), of_w.parity());
        U::template load<FromShared>(raw, memory + unit + warp * U::BYTES, lane);
        U::scales(scales, raw, lane, w_scale);
        if (B::W_STAGES == 1) empty_when_loaded(w_empty, raw, zero);
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
            uint64_t tokens[B::WIDTH];
            Ring<B::X_STAGES> x = of_x;
#pragma unroll
            for (int h = 0; h < B::WIDTH; ++h) {
                if (h > 0) x.next();
                bar_wait(base + B::X_FULL + 8 * x.stage(), x.parity());
                tokens[h] = swizzled_at(base + x.stage() * X_BYTES);
            }
            if (B::TURNS) asm volatile("bar.sync %0, 256;" ::"r"(8 + warp / 4) : "memory");
            multiply_begin();
#pragma unroll
            for (int h = 0; h < B::WIDTH; ++h) {
#pragma unroll
                for (int step = 0; step < 4; ++step) {
                    multiply(acc[h], fragment[step], tokens[h] + 2 * step, fresh && slab == 0 && step == 0);
                }
                if (U::HAS_MIN && slab == 3) multiply(acc[h], least, sums_at(base + unit + B::GROUPS * U::BYTES), false);
                multiply_commit();
            }
            if (B::TURNS) asm volatile("bar.arrive %0, 256;" ::"r"(9 - warp / 4) : "memory");
            if (B::WIDTH > 1) {
                multiply_wait<1>();
                if (lane == 0) bar_arrive(base + B::X_EMPTY + 8 * of_x.stage());
                of_x.next();
            }
            multiply_wait<0>();
            if (lane == 0) bar_arrive(base + B::X_EMPTY + 8 * of_x.stage());
            of_x.next();
        }
        if (B::W_STAGES > 1 && lane == 0) bar_arrive(w_empty);
        fresh = u + 1 == end;
        if (fresh) {
            // Segments in ascending order. What they are of is found anew: registers are for the sums.
            if (B::SHARES) asm volatile("" : "+r"(turn));
            const typename B::Work work(a, turn);
            if (B::SHARES && work.first > 0) {
                leave_part<B>(a, work, segment, warp, acc);
            } else if (B::PARKS) {
#pragma unroll
                for (int h = 0; h < B::WIDTH; ++h) {
                    add_parked(acc[h], parked + h * (SUMS / 4), segment == 0, segment + 1 == work.end);
                }
            } else {
                add_kept(acc[0], kept, segment == 0, segment + 1 == work.end);
            }
            if (++segment == work.end) break;
            end = first_unit(a, segment + 1) * EACH;
        }
    }
    if (!B::SHARES) return;
    asm volatile("" : "+r"(turn));
    const typename B::Work work(a, turn);
    if (work.first == 0 && work.end < a.segments) add_parts<B>(a, work, warp, acc);
}

template <class U, class B>
__device__ __forceinline__ void consume(const TileArgs& a, uint8_t* memory, uint32_t base) {
    const int warp = threadIdx.x / WARP - 4;
    float* sums = reinterpret_cast<float*>(memory + B::PARK);
    Ring<B::X_STAGES> of_x;
    Ring<B::W_STAGES> of_w;
    if (B::TURNS && warp / 4 == 1) asm volatile("bar.arrive 8, 256;" ::: "memory");
#pragma unroll 1
    for (int turn = 0; typename B::Work(a, turn).there(); ++turn) {
        float acc[B::WIDTH][64];
        {
            const Place place = B::place(a, typename B::Work(a, turn).tile);
            const TileMatrix& m = a.m[place.which + (B::GATED ? warp % 4 / 2 : 0)];
            sum_tile<U, B>(acc, a, m.w_scale, m.zero, turn, memory, base, warp, of_x, of_w);
        }
        if (B::SHARES) asm volatile("" : "+r"(turn));
        const typename B::Work work(a, turn);
        if (B::SHARES && work.first > 0) continue;
        const Place place = B::place(a, work.tile);
        if (B::GATED) {
            const int pair = warp / 4 * 2 + warp % 2, row0 = (place.tile * (B::GROUPS / 2) + pair) * QT_ROWS;
            finish_gated<B::WIDTH>(a, row0, place.tokens * TOKENS, pair, sums + (warp & ~2) * B::WIDTH * SUMS, acc);
        } else {
            // Copied: what an index into the parameters names is loaded anew wherever it is used.
            const TileMatrix m = a.m[place.which];
            finish_tile<B::WIDTH>(a, m, (place.tile * B::GROUPS + warp) * QT_ROWS, place.tokens * TOKENS,
                                  sums + warp * B::WIDTH * SUMS, acc);
        }
    }
}

// Grid: as many blocks as run at a time.
template <class U, bool GATED, int CONSUMERS, int WIDTH>
__device__ __forceinline__ void body(const TileArgs& a) {
    using B = Block<U, GATED, CONSUMERS, WIDTH>;
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
        if (threadIdx.x == 0) ask_tokens<B>(a, base);
        if (threadIdx.x / WARP == 1) ask_weights<U, B>(a, base);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMERS == 2 ? 232 : 160));
        consume<U, B>(a, memory, base);
    }
}
#else
// Elsewhere the host takes other kernels.
template <class U, bool GATED, int CONSUMERS, int WIDTH>
__device__ __forceinline__ void body(const TileArgs&) {}
#endif

}  // namespace wgmma_matmul
