// Products of few tokens with a matrix in QT16 on Hopper, in the arithmetic of matmul/wgmma.cuh and with its bits. Weights
// are what there is to read, so a product is spread as far as it goes: the blocks of a cluster have a segment of K each and
// the same rows, a warp has a row group, and its units come through a ring of its own. Sums of the segments meet in the
// blocks' shared memory.
#pragma once
#include "../hopper.cuh"
#include "tile.cuh"

namespace few_matmul {

using wgmma_matmul::Place;
using wgmma_matmul::Quad;

// Row groups of a block, a warp for each; of a gate and its up half as many of either.
constexpr int GROUPS = 8, THREADS = GROUPS * WARP, ROWS = GROUPS * QT_ROWS;
// Bytes of a warp's accumulators of 8 tokens.
constexpr int QUADS = WARP * 16;
// Shared memory of a block that has a multiprocessor to itself, and of one of two.
constexpr int WHOLE = 227 * 1024, HALF = 228 * 1024 / 2 - 1024;

// N tokens at most. Stages of tokens and of weights that are on their way or at hand.
template <class U, int N>
struct Block {
    // A unit's tokens are PARTS stages, the sums with the last one.
    static constexpr int PARTS = N < 32 ? 1 : U::K / 128, SLABS = U::K / 64 / PARTS;
    static constexpr int X_BYTES = N * SLABS * 128, SUM_BYTES = U::HAS_MIN ? N * QT_SUMS * 2 : 0;
    static constexpr int X_STAGES = N == 8 ? 4 : 3, W_BYTES = GROUPS * U::BYTES, BAR_BYTES = 320;
    // Sums that a block finishes: those of a tile, shared among the cluster.
    static constexpr int PART_BYTES = N == 8 ? 16 * QUADS : N * QUADS;
    static constexpr int OTHERS = X_STAGES * (X_BYTES + SUM_BYTES) + 2 * PART_BYTES + BAR_BYTES;
    static constexpr int BLOCKS = OTHERS + 2 * W_BYTES <= HALF ? 2 : 1;
    static constexpr int MOST = ((BLOCKS == 2 ? HALF : WHOLE) - OTHERS) / W_BYTES, W_STAGES = MOST < 3 ? MOST : 3;
    // Tokens first: where the swizzle starts.
    static constexpr int SUMS = X_STAGES * X_BYTES, W = SUMS + X_STAGES * SUM_BYTES, PART = W + W_STAGES * W_BYTES;
    static constexpr int BARS = PART + 2 * PART_BYTES, PART_FULL = BARS, PART_FREE = PART_FULL + 16;
    static constexpr int X_FULL = PART_FREE + 16, X_DONE = X_FULL + 8 * X_STAGES;
    static constexpr int W_FULL = X_DONE + 8 * X_STAGES, SHARED = BARS + BAR_BYTES;
    static_assert(W_STAGES >= 2 && W_FULL + 8 * GROUPS * W_STAGES <= SHARED, "stages");
};

// As `shared` of src/matrix/few.rs has it.
static_assert(Block<Qt4K, 8>::SHARED == 89408 && Block<Qt4K, 8>::BLOCKS == 2, "Q4_K, 8 tokens");
static_assert(Block<Qt4K, 32>::SHARED == 97600 && Block<Qt4K, 32>::BLOCKS == 2, "Q4_K, 32 tokens");
static_assert(Block<Qt8_0, 32>::SHARED == 162112 && Block<Qt8_0, 32>::BLOCKS == 1, "Q8_0, 32 tokens");
static_assert(Block<QtHalf, 16>::SHARED == 94528 && Block<QtHalf, 16>::BLOCKS == 2, "F16, 16 tokens");

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
using namespace hopper;

// D (64 × N) = A · B, or += unless `fresh`. A: m64k16 in registers, B: k16nN in shared memory; the operands after those of D.
#define FEW_MULTIPLY(N, D, A0, A1, A2, A3, B, FRESH, ...) \
    __device__ __forceinline__ void multiply(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool fresh) { \
        asm volatile("{ .reg .pred p; setp.eq.u32 p, " FRESH ", 0; wgmma.mma_async.sync.aligned.m64n" #N \
                     "k16.f32.f16.f16 {" D "}, {" A0 ", " A1 ", " A2 ", " A3 "}, " B ", p, 1, 1, 0; }" \
                     : __VA_ARGS__ \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<uint32_t>(fresh))); \
    }
#define FEW_OF_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
FEW_MULTIPLY(8, "%0, %1, %2, %3", "%4", "%5", "%6", "%7", "%8", "%9", FEW_OF_4(d, 0))
FEW_MULTIPLY(16, "%0, %1, %2, %3, %4, %5, %6, %7", "%8", "%9", "%10", "%11", "%12", "%13", FEW_OF_4(d, 0), FEW_OF_4(d, 4))
FEW_MULTIPLY(32, "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15", "%16", "%17", "%18", "%19", "%20",
             "%21", FEW_OF_4(d, 0), FEW_OF_4(d, 4), FEW_OF_4(d, 8), FEW_OF_4(d, 12))
FEW_MULTIPLY(64, "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22,"
             " %23, %24, %25, %26, %27, %28, %29, %30, %31", "%32", "%33", "%34", "%35", "%36", "%37", MINFER_OF_32(d))
#undef FEW_MULTIPLY
#undef FEW_OF_4

// Descriptor of the sums, along K: 8 × 16-byte cores, the next along K after 128 bytes, along the tokens after 256.
__device__ __forceinline__ uint64_t sums_at(uint32_t address) {
    return static_cast<uint64_t>(address >> 4 & 0x3fff) | 8ull << 16 | 16ull << 32;
}

// Waits for all blocks of the cluster.
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait;" ::: "memory"); }

// What lies at `address` in this block's shared memory, in that of another one of the cluster.
__device__ __forceinline__ uint32_t in_block(uint32_t address, int rank) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
// Stores that arrive, as so many bytes, at a barrier of the block that they go to.
__device__ __forceinline__ void send(uint32_t to, float a, float b, float c, float d, uint32_t bar) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                 "f"(a), "f"(b), "f"(c), "f"(d), "r"(bar)
                 : "memory");
}
__device__ __forceinline__ void arrive_there(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void wait_in_cluster(uint32_t bar, uint32_t parity) {
    uint32_t done;
    do {
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"(bar), "r"(parity)
            : "memory");
    } while (!done);
}

// Who finishes what of a tile. A *share* is a row group's sums of 8 tokens, gated those of a gate's and its up's; the blocks
// of the cluster have equally many, one after the other, or, if there are too few, every second block has one.
template <int N>
struct Shares {
    int bits, pairs;  // logarithms: of a block's shares, and of the blocks per share
    __device__ __forceinline__ Shares(bool gated, int segment_bits) {
        constexpr int N_BITS = N == 8 ? 3 : N == 16 ? 4 : N == 32 ? 5 : 6;
        bits = N_BITS - (gated ? 1 : 0) - segment_bits;
        pairs = max(-bits, 0);
        bits = max(bits, 0);
    }
    // The block, and the place among its shares.
    __device__ __forceinline__ int rank(int share) const { return share >> bits << pairs; }
    __device__ __forceinline__ int place(int share) const { return share & ((1 << bits) - 1); }
    // How many the block `rank` has, and its first one.
    __device__ __forceinline__ int count(int rank) const { return rank & ((1 << pairs) - 1) ? 0 : 1 << bits; }
    __device__ __forceinline__ int first(int rank) const { return rank >> pairs << bits; }
};

// A lane's sums of a share: rows g and g + 8 of tokens 2t and 2t + 1, of all segments in ascending order. `from`: its quad
// of the first one.
__device__ __forceinline__ void add_segments(float (&sum)[4], const uint8_t* from, int segments) {
    float4 of[8];
#pragma unroll
    for (int s = 0; s < 8; ++s) {
        of[s] = s < segments ? *reinterpret_cast<const float4*>(from + s * QUADS) : float4();
    }
    sum[0] = sum[1] = sum[2] = sum[3] = 0.0f;
#pragma unroll
    for (int s = 0; s < 8; ++s) {
        if (s < segments) sum[0] += of[s].x, sum[1] += of[s].y, sum[2] += of[s].z, sum[3] += of[s].w;
    }
}

// A product's share: the row group's first row, and its first token.
__device__ __forceinline__ void finish_share(const TileArgs& a, const TileMatrix& m, const uint8_t* from, int row0,
                                             int token0) {
    const Finish finish = static_cast<Finish>(a.finish);
    const int lane = threadIdx.x % WARP, token = token0 + lane % 4 * 2, row = row0 + lane / 4;
    float sum[4], scale[2], bias[2], before[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        scale[i] = token + i < a.tokens ? a.x_unscale[token + i] : 0.0f;
        bias[i] = m.bias && row + 8 * i < m.rows ? m.bias[row + 8 * i] : 0.0f;
    }
    float* out = m.out + static_cast<size_t>(token) * m.out_stride + row;
    auto inside = [&](int i) { return token + i % 2 < a.tokens && row + i / 2 * 8 < m.rows; };
    auto at = [&](int i) { return out + i % 2 * m.out_stride + i / 2 * 8; };
#pragma unroll
    for (int i = 0; i < 4; ++i) before[i] = finish == Finish::Residual && inside(i) ? *at(i) : 0.0f;
    add_segments(sum, from, a.segments);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        float y = sum[i] * (m.w_unscale * scale[i % 2]);
        if (m.bias) y += bias[i / 2];
        y = finish_value(finish, y, a.factor, a.soft_cap, before[i]);
        if (inside(i)) *at(i) = y;
    }
}

// The same of a gate's and its up's, `from` and behind it.
__device__ __forceinline__ void finish_gated(const TileArgs& a, const uint8_t* from, int row0, int token0) {
    const TileMatrix &gate = a.m[0], &up = a.m[1];
    const int lane = threadIdx.x % WARP, token = token0 + lane % 4 * 2, row = row0 + lane / 4;
    float g[4], u[4], most[2] = {0.0f, 0.0f};
    add_segments(g, from, a.segments);
    add_segments(u, from + a.segments * QUADS, a.segments);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int own = token + i % 2, r = row + i / 2 * 8;
        if (own >= a.tokens || r >= gate.rows) continue;
        const float scale = a.x_unscale[own];
        float y = g[i] * (gate.w_unscale * scale), other = u[i] * (up.w_unscale * scale);
        if (gate.bias) y += gate.bias[r];
        if (up.bias) other += up.bias[r];
        y = activate(static_cast<Act>(a.act), y) * other;
        gate.out[static_cast<size_t>(own) * gate.out_stride + r] = y;
        most[i % 2] = fmaxf(most[i % 2], fabsf(y));
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        // Lanes of a token are those of the same t.
#pragma unroll
        for (int d = 4; d < WARP; d *= 2) most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], d));
        if (lane < 4 && token + i < a.tokens) atomicMax(a.most + token + i, __float_as_uint(most[i]));
    }
}

// Grid: clusters of as many blocks as there are segments; each takes every so many'th tile of rows.
template <class U, int N>
__device__ __forceinline__ void body(const TileArgs& a) {
    using B = Block<U, N>;
    extern __shared__ __align__(1024) uint8_t memory[];
    const uint32_t base = shared_address(memory), bars = base + B::X_FULL;
    uint32_t* done = reinterpret_cast<uint32_t*>(memory + B::X_DONE);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const bool gated = a.act >= 0;
    // Segments are a power of two.
    const int bits = 31 - __clz(a.segments), rank = blockIdx.x & (a.segments - 1);
    const int cluster = blockIdx.x >> bits, clusters = gridDim.x >> bits;
    const int tiles = gated ? a.m[0].tiles : a.m[0].tiles + a.m[1].tiles + a.m[2].tiles;
    // Segments begin where 256 columns do.
    constexpr int EACH = QT_K / U::K;
    const int all = a.cols / QT_K, units = all * EACH;
    const int first = (rank * all >> bits) * EACH, len = ((rank + 1) * all >> bits) * EACH - first;

    const Shares<N> shares(gated, bits);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) {
            bar_init(base + B::PART_FULL + 8 * i, 1);
            bar_init(base + B::PART_FREE + 8 * i, (a.segments >> shares.pairs) * GROUPS);
        }
        for (int i = 0; i < B::X_STAGES; ++i) bar_init(bars + 8 * i, 1), done[2 * i] = 0;
        for (int i = 0; i < GROUPS * B::W_STAGES; ++i) bar_init(base + B::W_FULL + 8 * i, 1);
        bars_made();
    }
    __syncthreads();
    // Others send where barriers have been made; no other memory is handed over.
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");

    const uint32_t w_bars = base + B::W_FULL + 8 * warp * B::W_STAGES;
    const uint32_t w_ring = B::W + warp * B::W_STAGES * U::BYTES;
    // What is asked for next: the tile, and the unit in the segment. All lanes know, the first one asks.
    int ask_tile = cluster, ask_unit = 0;
    const uint8_t* ask = nullptr;
    auto find = [&] {
        const Place place = gated ? Place{warp / (GROUPS / 2), ask_tile, 0} : wgmma_matmul::place_of<false>(a, ask_tile);
        const TileMatrix& m = a.m[place.which];
        // The last group instead of those beyond the end; its sums are dropped.
        const int group = gated ? place.tile * (GROUPS / 2) + warp % (GROUPS / 2) : place.tile * GROUPS + warp;
        const int last = (m.rows + QT_ROWS - 1) / QT_ROWS - 1;
        ask = m.w + (static_cast<size_t>(min(group, last)) * units + first) * U::BYTES;
    };
    find();
    auto ask_weights = [&](int stage) {
        if (ask_tile >= tiles) return;
        if (lane == 0) {
            bar_expect(w_bars + 8 * stage, U::BYTES);
            bulk_copy(base + w_ring + stage * U::BYTES, ask, U::BYTES, w_bars + 8 * stage);
        }
        ask += U::BYTES;
        if (++ask_unit < len) return;
        ask_unit = 0;
        ask_tile += clusters;
        if (ask_tile < tiles) find();
    };
    // The tokens of a part of the segment.
    const half* sums = a.x + static_cast<size_t>(a.cols) * TILE_TOKENS + first / EACH * QT_SUMS * TILE_TOKENS;
    const half* tokens = a.x + static_cast<size_t>(first) * U::K * TILE_TOKENS;
    auto ask_tokens = [&](int stage, int part) {
        const uint32_t full = bars + 8 * stage;
        const bool with_sums = U::HAS_MIN && (part + 1) % B::PARTS == 0;
        bar_expect(full, B::X_BYTES + (with_sums ? B::SUM_BYTES : 0));
#pragma unroll
        for (int slab = 0; slab < B::SLABS; ++slab) {
            const half* from = tokens + (part * B::SLABS + slab) * 64 * TILE_TOKENS;
            bulk_copy(base + stage * B::X_BYTES + slab * N * 128, from, N * 128, full);
        }
        if (with_sums) {
            const half* from = sums + part / B::PARTS * QT_SUMS * TILE_TOKENS;
            bulk_copy(base + B::SUMS + stage * B::SUM_BYTES, from, B::SUM_BYTES, full);
        }
    };

    // Weights depend on no kernel before: they are asked for before waiting for one.
#pragma unroll
    for (int s = 0; s < B::W_STAGES; ++s) ask_weights(s);
    grid_wait();
    // A segment that fits is there for all tiles.
    const int parts = len * B::PARTS, all_parts = (tiles - cluster + clusters - 1) / clusters * parts;
    const bool stays = parts <= B::X_STAGES;
    if (threadIdx.x < B::X_STAGES && threadIdx.x < parts) ask_tokens(threadIdx.x, threadIdx.x);

    int number = 0;
    Turn<B::X_STAGES> of_x;
    Turn<B::W_STAGES> of_w;
    // Sums of a tile go to who finishes them, and are finished behind the next one's units: nobody waits for the others'
    // then. Two tiles take turns at the memory for them.
    const int own = shares.count(rank), part_bytes = own * (gated ? 2 : 1) * a.segments * QUADS;
    auto expect = [&](int turn) {
        if (own > 0 && threadIdx.x == 0) bar_expect(base + B::PART_FULL + 8 * turn, part_bytes);
    };
    const bool single = a.segments == 1;
    expect(0);
    expect(1);
    // Of a tile that is the `index`th of the cluster's.
    auto finish_all = [&](int tile, int index) {
        const uint8_t* part = memory + B::PART + (index & 1) * B::PART_BYTES + lane * 16;
        const Place place = gated ? Place{0, tile, 0} : wgmma_matmul::place_of<false>(a, tile);
        for (int i = warp; i < own; i += GROUPS) {
            const int share = shares.first(rank) + i, group = share / (N / 8), token0 = share % (N / 8) * 8;
            if (gated) {
                finish_gated(a, part + i * 2 * a.segments * QUADS, (place.tile * (GROUPS / 2) + group) * QT_ROWS, token0);
            } else {
                const TileMatrix& m = a.m[place.which];
                finish_share(a, m, part + i * a.segments * QUADS, (place.tile * GROUPS + group) * QT_ROWS, token0);
            }
        }
    };
    auto finish = [&](int tile, int index) {
        if (own == 0) return;
        const int turn = index & 1;
        wait_in_cluster(base + B::PART_FULL + 8 * turn, index >> 1 & 1);
        finish_all(tile, index);
        expect(turn);
        __syncwarp();
        if (lane < a.segments) arrive_there(in_block(base + B::PART_FREE + 8 * turn, lane));
    };
    int index = 0, last = cluster;
#pragma unroll 1
    for (int tile = cluster; tile < tiles; tile += clusters) {
        const int which = gated ? warp / (GROUPS / 2) : wgmma_matmul::place_of<false>(a, tile).which;
        const float w_scale = a.m[which].w_scale;
        float acc[N / 2];
#pragma unroll 1
        for (int unit = 0; unit < len; ++unit) {
            QtRaw raw = {};
            typename U::Scales scales;
            bar_wait(w_bars + 8 * of_w.stage, of_w.parity);
            U::template load<FromShared>(raw, memory + w_ring + of_w.stage * U::BYTES, lane);
            U::scales(scales, raw, lane, w_scale);
            int stage = 0;
#pragma unroll
            for (int slab = 0; slab < U::K / 64; ++slab) {
                const int part = unit * B::PARTS + slab / B::SLABS;
                if (slab % B::SLABS == 0) {
                    stage = stays ? part : of_x.stage;
                    bar_wait(bars + 8 * stage, stays ? 0 : of_x.parity);
                }
                // Made anew for every slab, and waited for before anything else: what a step reads while it runs is not
                // safe from the compiler.
                uint32_t fragment[4][4], least[4];
                typename U::Slab of_slab;
                U::slab(of_slab, scales, slab, lane);
#pragma unroll
                for (int step = 0; step < 4; ++step) U::fragment(fragment[step], raw, of_slab, slab, step);
                if (U::HAS_MIN && slab == 3) U::min_fragment(least, scales);
                const uint64_t at = swizzled_at(base + stage * B::X_BYTES + slab % B::SLABS * N * 128);
                multiply_begin();
#pragma unroll
                for (int step = 0; step < 4; ++step) {
                    multiply(acc, fragment[step], at + 2 * step, unit == 0 && slab == 0 && step == 0);
                }
                if (U::HAS_MIN && slab == 3) multiply(acc, least, sums_at(base + B::SUMS + stage * B::SUM_BYTES), false);
                multiply_commit();
                multiply_wait<0>();
                if (slab % B::SLABS < B::SLABS - 1) continue;
                // Who reads a stage's tokens last asks for the next ones.
                if (!stays && lane == 0) {
                    const bool last = atomicAdd(done + 2 * stage, 1) % GROUPS == GROUPS - 1;
                    if (last && number + B::X_STAGES < all_parts) ask_tokens(stage, (part + B::X_STAGES) % parts);
                }
                of_x.next();
                ++number;
            }
            // All of the unit has been read.
            __syncwarp();
            ask_weights(of_w.stage);
            of_w.next();
        }
        if (single) {
            // There is no cluster to send to.
            uint8_t* part = memory + B::PART + (index & 1) * B::PART_BYTES + lane * 16;
#pragma unroll
            for (int i = 0; i < N / 8; ++i) {
                const int share = (gated ? warp % (GROUPS / 2) : warp) * (N / 8) + i;
                const int row = gated ? share * 2 + warp / (GROUPS / 2) : share;
                *reinterpret_cast<float4*>(part + row * QUADS) =
                    make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]);
            }
            __syncthreads();
            finish_all(tile, index++);
            continue;
        }
        if (index == 0) cluster_wait();
        else finish(tile - clusters, index - 1);
        const int turn = index & 1;
        // Sums of the tile before the last one have been read everywhere.
        if (index > 1) wait_in_cluster(base + B::PART_FREE + 8 * turn, (index >> 1 & 1) ^ 1);
        const uint32_t part_full = base + B::PART_FULL + 8 * turn;
        const uint32_t part = base + B::PART + turn * B::PART_BYTES + lane * 16;
#pragma unroll
        for (int i = 0; i < N / 8; ++i) {
            const int share = (gated ? warp % (GROUPS / 2) : warp) * (N / 8) + i, to = shares.rank(share);
            const int row = gated ? shares.place(share) * 2 + warp / (GROUPS / 2) : shares.place(share);
            send(in_block(part + (row * a.segments + rank) * QUADS, to), acc[4 * i], acc[4 * i + 1], acc[4 * i + 2],
                 acc[4 * i + 3], in_block(part_full, to));
        }
        ++index;
        last = tile;
    }
    if (single) return;
    finish(last, index - 1);
    // Nobody leaves before what others send it, arrivals too, is there.
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    cluster_wait();
}
#else
// Elsewhere the host takes other kernels.
template <class U, int N>
__device__ __forceinline__ void body(const TileArgs&) {}
#endif

}  // namespace few_matmul
