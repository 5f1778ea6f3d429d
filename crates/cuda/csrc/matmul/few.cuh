// Products of few tokens with a matrix in QT16 on Hopper, with the bits of matmul/wgmma.cuh. Weights
// are what there is to read, so a product is spread as far as it goes: the blocks of a cluster have a segment of K each and
// the same rows, a warp has a row group, and one more warp asks for memory. Sums of the segments meet in the blocks' shared
// memory.
#pragma once
#include "../hopper.cuh"
#include "tile.cuh"

namespace few_matmul {

using wgmma_matmul::Place;
using wgmma_matmul::Quad;

// Row groups of a block, a warp for each; of a gate and its up half as many of either.
constexpr int GROUPS = 8, CONSUMERS = GROUPS * WARP, THREADS = CONSUMERS + WARP, ROWS = GROUPS * QT_ROWS;
// Bytes of a warp's accumulators of 8 tokens.
constexpr int QUADS = WARP * 16;
// Tokens up to which a warp multiplies by itself: what it then reads of shared memory for every row group costs less than
// what a warpgroup's steps need around them.
constexpr int BY_WARPS = 16;
// Shared memory of a block that has a multiprocessor to itself, and of one of two.
constexpr int WHOLE = 227 * 1024, HALF = 228 * 1024 / 2 - 1024;

// N tokens at most. Stages of tokens and of weights that are on their way or at hand.
template <class U, int N>
struct Block {
    // A unit's tokens are PARTS stages, the sums with the last one.
    static constexpr int PARTS = N < 32 ? 1 : U::K / 128, SLABS = U::K / 64 / PARTS;
    static constexpr int X_BYTES = N * SLABS * 128, SUM_BYTES = U::HAS_MIN ? N * QT_SUMS * 2 : 0;
    static constexpr int X_STAGES = N == 8 ? 4 : 3, W_BYTES = GROUPS * U::BYTES, BAR_BYTES = 256;
    // Sums that a block finishes: those of a tile, shared among the cluster.
    static constexpr int PART_BYTES = N == 8 ? 16 * QUADS : N * QUADS;
    static constexpr int OTHERS = X_STAGES * (X_BYTES + SUM_BYTES) + 2 * PART_BYTES + BAR_BYTES;
    static constexpr int BLOCKS = OTHERS + 2 * W_BYTES <= HALF ? 2 : 1;
    static constexpr int MOST = ((BLOCKS == 2 ? HALF : WHOLE) - OTHERS) / W_BYTES, W_STAGES = MOST < 3 ? MOST : 3;
    // Tokens first: where the swizzle starts.
    static constexpr int SUMS = X_STAGES * X_BYTES, W = SUMS + X_STAGES * SUM_BYTES, PART = W + W_STAGES * W_BYTES;
    static constexpr int BARS = PART + 2 * PART_BYTES, PART_FULL = BARS, PART_FREE = PART_FULL + 16;
    static constexpr int X_FULL = PART_FREE + 16, X_EMPTY = X_FULL + 8 * X_STAGES;
    static constexpr int W_FULL = X_EMPTY + 8 * X_STAGES, W_EMPTY = W_FULL + 8 * W_STAGES, SHARED = BARS + BAR_BYTES;
    static_assert(W_STAGES >= 2 && W_EMPTY + 8 * W_STAGES <= SHARED, "stages");
};

// As `shared` of src/matrix/few.rs has it.
static_assert(Block<Qt4K, 8>::SHARED == 89344 && Block<Qt4K, 8>::BLOCKS == 2, "Q4_K, 8 tokens");
static_assert(Block<Qt4K, 32>::SHARED == 97536 && Block<Qt4K, 32>::BLOCKS == 2, "Q4_K, 32 tokens");
static_assert(Block<Qt8_0, 32>::SHARED == 162048 && Block<Qt8_0, 32>::BLOCKS == 1, "Q8_0, 32 tokens");
static_assert(Block<QtHalf, 16>::SHARED == 94464 && Block<QtHalf, 16>::BLOCKS == 2, "F16, 16 tokens");

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

// Two steps of a warp, the `h`th of a slab, with tokens as `TileRow` has them, at `x`.
template <int N>
__device__ __forceinline__ void multiply_two(float (&acc)[N / 2], const uint32_t (&fragment)[2][4], const uint8_t* x, int h,
                                             int lane) {
    // Rows of the matrices are tokens, matrix m is 16-byte chunk 4h + m.
    const uint8_t* at = x + lane % 8 * 128 + ((4 * h + lane / 8) ^ (lane % 8)) * 16;
#pragma unroll
    for (int n = 0; n < N / 8; ++n) {
        uint32_t b[4];
        ldmatrix_x4(b, at + n * 1024);
        float(&sum)[4] = reinterpret_cast<float(&)[4]>(acc[4 * n]);
        mma_m16n8k16(sum, fragment[0], b[0], b[1]);
        mma_m16n8k16(sum, fragment[1], b[2], b[3]);
    }
}

// The step of the minima, with the sums at `x`.
template <int N>
__device__ __forceinline__ void multiply_least(float (&acc)[N / 2], const uint32_t (&least)[4], const uint8_t* x, int lane) {
#pragma unroll
    for (int n = 0; n < N / 8; n += 2) {
        // Whole sums of 8 tokens, what they lost, then the same of the next 8.
        uint32_t b[4];
        ldmatrix_x4(b, x + n * 256 + lane % (N == 8 ? 16 : 32) * 16);
        mma_m16n8k16(reinterpret_cast<float(&)[4]>(acc[4 * n]), least, b[0], b[1]);
        if (N > 8) mma_m16n8k16(reinterpret_cast<float(&)[4]>(acc[4 * n + 4]), least, b[2], b[3]);
    }
}

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

// A product's share: the row group's first row, and its first token. `ready` waits for its sums.
template <class Ready>
__device__ __forceinline__ void finish_share(const TileArgs& a, const TileMatrix& m, const uint8_t* from, int row0,
                                             int token0, Ready ready) {
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
    ready();
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
template <class Ready>
__device__ __forceinline__ void finish_gated(const TileArgs& a, const uint8_t* from, int row0, int token0, Ready ready) {
    const TileMatrix &gate = a.m[0], &up = a.m[1];
    const int lane = threadIdx.x % WARP, token = token0 + lane % 4 * 2, row = row0 + lane / 4;
    float g[4], u[4], scale[2], gate_bias[2], up_bias[2], most[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const bool there = row + 8 * i < gate.rows;
        scale[i] = token + i < a.tokens ? a.x_unscale[token + i] : 0.0f;
        gate_bias[i] = gate.bias && there ? gate.bias[row + 8 * i] : 0.0f;
        up_bias[i] = up.bias && there ? up.bias[row + 8 * i] : 0.0f;
    }
    ready();
    add_segments(g, from, a.segments);
    add_segments(u, from + a.segments * QUADS, a.segments);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        g[i] *= gate.w_unscale * scale[i % 2], u[i] *= up.w_unscale * scale[i % 2];
        if (gate.bias) g[i] += gate_bias[i / 2];
        if (up.bias) u[i] += up_bias[i / 2];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int own = token + i % 2, r = row + i / 2 * 8;
        if (own >= a.tokens || r >= gate.rows) continue;
        const float y = activate(static_cast<Act>(a.act), g[i]) * u[i];
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

// The two halves of `grid_wait`.
__device__ __forceinline__ void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void wait_for_last() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Until the input is there.
__device__ __forceinline__ void input_wait(const TileArgs& a) {
    const Beside beside = static_cast<Beside>(a.beside);
    if (beside != Beside::First) let_next_start();
    if (beside != Beside::Next) wait_for_last();
    if (beside == Beside::First) let_next_start();
}

// What a block does: its segment of K, in units of its type, of every so many'th tile of rows.
template <class U>
struct Work {
    // Segments are a power of two and begin where 256 columns do.
    static constexpr int EACH = QT_K / U::K;
    bool gated;
    int bits, rank, cluster, clusters, tiles, all, first, len;
    __device__ __forceinline__ Work(const TileArgs& a) {
        gated = a.act >= 0;
        bits = 31 - __clz(a.segments), rank = blockIdx.x & (a.segments - 1);
        cluster = blockIdx.x >> bits, clusters = gridDim.x >> bits;
        tiles = gated ? a.m[0].tiles : a.m[0].tiles + a.m[1].tiles + a.m[2].tiles;
        all = a.cols / QT_K;
        first = (rank * all >> bits) * EACH, len = ((rank + 1) * all >> bits) * EACH - first;
    }
    __device__ __forceinline__ Place place(const TileArgs& a, int tile) const {
        return gated ? Place{0, tile, 0} : wgmma_matmul::place_of<false>(a, tile);
    }
    // The matrix of a warp's row group in a tile, and the group's number.
    __device__ __forceinline__ int matrix(const TileArgs& a, int tile, int warp) const {
        return gated ? warp / (GROUPS / 2) : place(a, tile).which;
    }
    __device__ __forceinline__ int group(const TileArgs& a, int tile, int warp) const {
        return gated ? tile * (GROUPS / 2) + warp % (GROUPS / 2) : place(a, tile).tile * GROUPS + warp;
    }
};

// The warp that asks for memory: a lane for each row group's weights, and one for tokens.
template <class U, int N>
__device__ __forceinline__ void ask(const TileArgs& a, const Work<U>& work, uint32_t base) {
    using B = Block<U, N>;
    const int lane = threadIdx.x % WARP, units = work.all * Work<U>::EACH;
    int tile = work.cluster, unit = 0;
    const uint8_t* from = nullptr;
    auto find = [&] {
        const TileMatrix& m = a.m[work.matrix(a, tile, lane % GROUPS)];
        // The last group instead of those beyond the end; its sums are dropped.
        const int group = min(work.group(a, tile, lane % GROUPS), (m.rows + QT_ROWS - 1) / QT_ROWS - 1);
        from = m.w + (static_cast<size_t>(group) * units + work.first) * U::BYTES;
    };
    find();
    auto ask_weights = [&](int stage) {
        if (tile >= work.tiles) return;
        const uint32_t full = base + B::W_FULL + 8 * stage;
        if (lane == 0) bar_expect(full, B::W_BYTES);
        __syncwarp();
        if (lane < GROUPS) bulk_copy(base + B::W + stage * B::W_BYTES + lane * U::BYTES, from, U::BYTES, full);
        from += U::BYTES;
        if (++unit < work.len) return;
        unit = 0;
        tile += work.clusters;
        if (tile < work.tiles) find();
    };
    // The tokens of a part of the segment.
    const half* tokens = a.x + static_cast<size_t>(work.first) * U::K * TILE_TOKENS;
    const half* sums = a.x + (a.cols + work.first / Work<U>::EACH * QT_SUMS) * static_cast<size_t>(TILE_TOKENS);
    auto ask_tokens = [&](int stage, int part) {
        const uint32_t full = base + B::X_FULL + 8 * stage;
        const bool with_sums = U::HAS_MIN && (part + 1) % B::PARTS == 0;
        if (lane == 0) bar_expect(full, B::X_BYTES + (with_sums ? B::SUM_BYTES : 0));
        __syncwarp();
        if (lane < B::SLABS) {
            const half* slab = tokens + (part * B::SLABS + lane) * 64 * TILE_TOKENS;
            bulk_copy(base + stage * B::X_BYTES + lane * N * 128, slab, N * 128, full);
        } else if (lane == B::SLABS && with_sums) {
            const half* of_unit = sums + part / B::PARTS * QT_SUMS * TILE_TOKENS;
            bulk_copy(base + B::SUMS + stage * B::SUM_BYTES, of_unit, B::SUM_BYTES, full);
        }
    };
    // Weights depend on no kernel before: they are asked for before waiting for one.
    for (int s = 0; s < B::W_STAGES; ++s) ask_weights(s);
    input_wait(a);
    const int parts = work.len * B::PARTS;
    for (int s = 0; s < B::X_STAGES && s < parts; ++s) ask_tokens(s, s);
    // A segment that fits is there for all tiles.
    const bool stays = parts <= B::X_STAGES;
    Turn<B::X_STAGES> of_x;
    Turn<B::W_STAGES> of_w;
    int ahead = B::X_STAGES % parts;
#pragma unroll 1
    for (int done = work.cluster; done < work.tiles; done += work.clusters) {
#pragma unroll 1
        for (int part = 0; part < parts; ++part) {
            if (!stays && (done + work.clusters < work.tiles || part + B::X_STAGES < parts)) {
                bar_wait(base + B::X_EMPTY + 8 * of_x.stage, of_x.parity);
                ask_tokens(of_x.stage, ahead);
                of_x.next();
                if (++ahead == parts) ahead = 0;
            }
            if ((part + 1) % B::PARTS != 0 || tile >= work.tiles) continue;
            bar_wait(base + B::W_EMPTY + 8 * of_w.stage, of_w.parity);
            ask_weights(of_w.stage);
            of_w.next();
        }
    }
}

// The sums of a tile's segment in a warp's row group.
template <class U, int N>
__device__ __forceinline__ void sum_tile(float (&acc)[N / 2], const Work<U>& work, float w_scale, const uint8_t* memory,
                                         uint32_t base, int warp, Turn<Block<U, N>::X_STAGES>& of_x,
                                         Turn<Block<U, N>::W_STAGES>& of_w) {
    using B = Block<U, N>;
    const int lane = threadIdx.x % WARP;
    const bool stays = work.len * B::PARTS <= B::X_STAGES;
#pragma unroll 1
    for (int unit = 0; unit < work.len; ++unit) {
        QtRaw raw = {};
        typename U::Scales scales;
        bar_wait(base + B::W_FULL + 8 * of_w.stage, of_w.parity);
        U::template load<FromShared>(raw, memory + B::W + of_w.stage * B::W_BYTES + warp * U::BYTES, lane);
        U::scales(scales, raw, lane, w_scale);
        int stage = 0;
#pragma unroll
        for (int slab = 0; slab < U::K / 64; ++slab) {
            if (slab % B::SLABS == 0) {
                stage = stays ? unit * B::PARTS + slab / B::SLABS : of_x.stage;
                bar_wait(base + B::X_FULL + 8 * stage, stays ? 0 : of_x.parity);
            }
            const bool with_least = U::HAS_MIN && slab == 3;
            const uint32_t x = stage * B::X_BYTES + slab % B::SLABS * N * 128;
            const uint32_t least_x = B::SUMS + stage * B::SUM_BYTES;
            uint32_t least[4];
            typename U::Slab of_slab;
            U::slab(of_slab, scales, slab, lane);
            if constexpr (N <= BY_WARPS) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    uint32_t fragment[2][4];
                    U::fragment(fragment[0], raw, of_slab, slab, 2 * h);
                    U::fragment(fragment[1], raw, of_slab, slab, 2 * h + 1);
                    multiply_two<N>(acc, fragment, memory + x, h, lane);
                }
                if (with_least) {
                    U::min_fragment(least, scales);
                    multiply_least<N>(acc, least, memory + least_x, lane);
                }
            } else {
                // Made anew for every slab, and waited for before anything else: what a warpgroup's step reads while it runs
                // is not safe from the compiler.
                uint32_t fragment[4][4];
#pragma unroll
                for (int step = 0; step < 4; ++step) U::fragment(fragment[step], raw, of_slab, slab, step);
                if (with_least) U::min_fragment(least, scales);
                // The same for all lanes, so that it needs none of their registers.
                const uint32_t at = __shfl_sync(~0u, base + x, 0);
                multiply_begin();
#pragma unroll
                for (int step = 0; step < 4; ++step) {
                    multiply(acc, fragment[step], swizzled_at(at) + 2 * step, unit == 0 && slab == 0 && step == 0);
                }
                if (with_least) multiply(acc, least, sums_at(__shfl_sync(~0u, base + least_x, 0)), false);
                multiply_commit();
                multiply_wait<0>();
            }
            if (slab % B::SLABS < B::SLABS - 1) continue;
            if (!stays) {
                __syncwarp();
                if (lane == 0) bar_arrive(base + B::X_EMPTY + 8 * stage);
            }
            of_x.next();
        }
        // All of the unit has been read.
        __syncwarp();
        if (lane == 0) bar_arrive(base + B::W_EMPTY + 8 * of_w.stage);
        of_w.next();
    }
}

// The warps that multiply.
template <class U, int N>
__device__ __forceinline__ void consume(const TileArgs& a, const Work<U>& work, const Shares<N>& shares, uint8_t* memory,
                                        uint32_t base) {
    using B = Block<U, N>;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, rank = work.rank;
    const bool gated = work.gated, single = a.segments == 1;
    // Sums of a tile go to who finishes them, and are finished behind the next one's units: nobody waits for the others'
    // then. Two tiles take turns at the memory for them.
    const int own = shares.count(rank), part_bytes = own * (gated ? 2 : 1) * a.segments * QUADS;
    auto expect = [&](int turn) {
        if (own > 0 && threadIdx.x == 0) bar_expect(base + B::PART_FULL + 8 * turn, part_bytes);
    };
    expect(0);
    expect(1);
    input_wait(a);
    Turn<B::X_STAGES> of_x;
    Turn<B::W_STAGES> of_w;
    // In every round the sums of a tile are made, and those of the one before are finished: the only place that does, as it
    // comes from instructions that no cache of the multiprocessor has.
#pragma unroll 1
    for (int tile = work.cluster, index = 0;; tile += work.clusters, ++index) {
        const bool makes = tile < work.tiles;
        float acc[N / 2] = {};
        if (makes) {
            const float w_scale = a.m[work.matrix(a, tile, warp)].w_scale;
            sum_tile<U, N>(acc, work, w_scale, memory, base, warp, of_x, of_w);
        }
        // The row group's share of the first 8 tokens, and its place in a share.
        const int first = (gated ? warp % (GROUPS / 2) : warp) * (N / 8), half = gated ? warp / (GROUPS / 2) : 0;
        const uint32_t own_part = B::PART + (index & 1) * B::PART_BYTES + lane * 16;
        if (single && makes) {
            // There is no cluster to send to.
#pragma unroll
            for (int i = 0; i < N / 8; ++i) {
                const int row = gated ? (first + i) * 2 + half : first + i;
                *reinterpret_cast<float4*>(memory + own_part + row * QUADS) =
                    make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]);
            }
            asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");
        }
        if (index == 0) cluster_wait();
        const int done = single ? index : index - 1, done_tile = single ? tile : tile - work.clusters;
        if (done >= 0 && own > 0 && (makes || !single)) {
            const int turn = done & 1;
            auto ready = [&] {
                if (!single) wait_in_cluster(base + B::PART_FULL + 8 * turn, done >> 1 & 1);
            };
            const uint8_t* part = memory + B::PART + turn * B::PART_BYTES + lane * 16;
            const Place place = work.place(a, done_tile);
            for (int i = warp; i < own; i += GROUPS) {
                const int share = shares.first(rank) + i, group = share / (N / 8), token0 = share % (N / 8) * 8;
                if (gated) {
                    const int row0 = (place.tile * (GROUPS / 2) + group) * QT_ROWS;
                    finish_gated(a, part + i * 2 * a.segments * QUADS, row0, token0, ready);
                } else {
                    const int row0 = (place.tile * GROUPS + group) * QT_ROWS;
                    finish_share(a, a.m[place.which], part + i * a.segments * QUADS, row0, token0, ready);
                }
            }
            // For the tile after the next one, if there is one: nobody leaves before what others send it is there.
            if (!single && done_tile + 2 * work.clusters < work.tiles) {
                ready();
                expect(turn);
                __syncwarp();
                if (lane < a.segments) arrive_there(in_block(base + B::PART_FREE + 8 * turn, lane));
            }
        }
        if (!makes) return;
        if (single) continue;
        const int turn = index & 1;
        // Sums of the tile before the last one have been read everywhere.
        if (index > 1) wait_in_cluster(base + B::PART_FREE + 8 * turn, (index >> 1 & 1) ^ 1);
        const uint32_t part_full = base + B::PART_FULL + 8 * turn;
#pragma unroll
        for (int i = 0; i < N / 8; ++i) {
            const int share = first + i, to = shares.rank(share);
            const int row = gated ? shares.place(share) * 2 + half : shares.place(share);
            send(in_block(base + own_part + (row * a.segments + rank) * QUADS, to), acc[4 * i], acc[4 * i + 1],
                 acc[4 * i + 2], acc[4 * i + 3], in_block(part_full, to));
        }
    }
}

// Grid: clusters of as many blocks as there are segments.
template <class U, int N>
__device__ __forceinline__ void body(const TileArgs& a) {
    using B = Block<U, N>;
    extern __shared__ __align__(1024) uint8_t memory[];
    const uint32_t base = shared_address(memory);
    const Work<U> work(a);
    const Shares<N> shares(work.gated, work.bits);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) {
            bar_init(base + B::PART_FULL + 8 * i, 1);
            bar_init(base + B::PART_FREE + 8 * i, (a.segments >> shares.pairs) * GROUPS);
        }
        for (int i = 0; i < B::X_STAGES; ++i) {
            bar_init(base + B::X_FULL + 8 * i, 1);
            bar_init(base + B::X_EMPTY + 8 * i, GROUPS);
        }
        for (int i = 0; i < B::W_STAGES; ++i) {
            bar_init(base + B::W_FULL + 8 * i, 1);
            bar_init(base + B::W_EMPTY + 8 * i, GROUPS);
        }
        bars_made();
    }
    __syncthreads();
    // Others send where barriers have been made; no other memory is handed over.
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
    if (threadIdx.x < CONSUMERS) {
        consume<U, N>(a, work, shares, memory, base);
    } else {
        ask<U, N>(a, work, base);
        cluster_wait();
    }
    if (static_cast<Beside>(a.beside) == Beside::Next) wait_for_last();
}
#else
// Elsewhere the host takes other kernels.
template <class U, int N>
__device__ __forceinline__ void body(const TileArgs&) {}
#endif

}  // namespace few_matmul
