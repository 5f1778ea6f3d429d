// Attention of many tokens on Hopper, in the order of attention.cuh. A block has a tile of 128 rows of one key head. A
// warpgroup brings keys and values into a ring; two others have 64 rows each and multiply in turn: while one weighs the
// scores of a segment, the other one has the tensor cores for its values and the next scores.
//
// Scores of a segment are 128 registers a thread, and become weights of 64; a chain of 64 values for 64 channels is 32, the
// sum of four chains 32, the output of earlier segments 32 for each 64 channels. So values are taken 64 channels at a time,
// and scores of the next segment only when they are done.
//
// Heads of 256 channels have an output of 128 registers a thread, which there are not: a tile has 64 rows, both warpgroups
// find its weights, and each has 128 channels of its values.
#include "attention.cuh"
#include "hopper.cuh"

using namespace attention;

namespace {
constexpr int GROUPS = 2;
constexpr int TILE_THREADS = 128 * (1 + GROUPS);
// Keys or values that are copied, and multiplied, at a time; channels of a panel, whose rows have 128 bytes.
constexpr int UNIT = 128;
constexpr int PANEL = 64;

struct Tile {
    int span, start, position0;  // its span, the first token of that, and its position
    int first_row, rows;         // among the rows of the span
    int first_seen, last_position;
    int from_segment, segments;
};

// How heads of D channels are shared out.
template <int D>
struct Plan {
    // Panels of a head, the last one perhaps half full, and of a warpgroup's output.
    static constexpr int PANELS = (D + PANEL - 1) / PANEL, OWN = D > 128 ? PANELS / GROUPS : PANELS;
    // Whether warpgroups have channels of the same rows instead of rows.
    static constexpr bool SPLIT = OWN < PANELS;
    static constexpr int TILES = SPLIT ? 1 : GROUPS, ROWS = 64 * TILES;
    static constexpr int STAGES = PANELS == 1 ? 8 : PANELS == 2 ? 6 : 3;
    // In a turn a group waits for a segment's values and the next one's keys, while the other one has not seen the former:
    // with fewer stages than those there are no turns.
    static constexpr bool TURNS = STAGES >= 4;
    static constexpr int UNIT_BYTES = PANELS * UNIT * PANEL * 2;
};

// What the host reserves, device/stages.rs. A panel begins at a multiple of 1024, where the swizzle starts.
template <int D>
struct Shared {
    using P = Plan<D>;
    half q[P::TILES][P::PANELS][64 * PANEL];
    half ring[P::STAGES][P::PANELS][UNIT * PANEL];
    uint64_t full[P::STAGES];
    uint64_t empty[P::STAGES];
    Tile tile;
};
static_assert(sizeof(Shared<64>) == 147624 && sizeof(Shared<128>) == 229512 && sizeof(Shared<96>) == sizeof(Shared<128>) &&
                  sizeof(Shared<256>) == 229464,
              "attention_wgmma_shared");

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
using namespace hopper;

// Chains of values, and units of keys, of a segment.
constexpr int CHAINS = ATTN_SEGMENT / WARP_KEYS;
constexpr int UNITS = ATTN_SEGMENT / UNIT;

// D (64 × 128) = A · Bᵀ, or += unless `fresh`: A of 64 rows and B of 128, both in shared memory.
__device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b, bool fresh) {
    asm volatile("{ .reg .pred p; setp.eq.u32 p, %66, 0;"
                 " wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " MINFER_64 ", %64, %65, p, 1, 1, 0, 0; }"
                 : MINFER_OF_64(d)
                 : "l"(a), "l"(b), "r"(static_cast<uint32_t>(fresh)));
}

// D (64 × 64) = A · B, or += unless `fresh`: A in registers, B in shared memory, rows along K.
__device__ __forceinline__ void multiply(float (&d)[32], const uint32_t (&a)[4], uint64_t b, bool fresh) {
    asm volatile("{ .reg .pred p; setp.eq.u32 p, %37, 0;"
                 " wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " MINFER_32
                 ", {%32, %33, %34, %35}, %36, p, 1, 1, 1; }"
                 : MINFER_OF_32(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<uint32_t>(fresh)));
}

// Keeps the compiler from moving what reads or writes registers of multiplications past those that it does not see.
template <int N>
__device__ __forceinline__ void pin(float (&v)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(v[i])::"memory");
}

// The tile of this block: tiles are numbered through all spans, the last ones, which see most, first.
template <int TILE_ROWS>
__device__ __forceinline__ bool find(const AttentionArgs& a, Tile& tile) {
    const int share = a.q_heads / a.kv_heads;
    int number = gridDim.y - 1 - blockIdx.y, span = 0;
    for (;; ++span) {
        if (span == a.spans.spans) return false;
        const int tiles = (a.spans.len[span] * share + TILE_ROWS - 1) / TILE_ROWS;
        if (number < tiles) break;
        number -= tiles;
    }
    tile.span = span;
    tile.start = a.spans.start[span];
    tile.position0 = a.spans.position[tile.start];
    tile.first_row = number * TILE_ROWS;
    tile.rows = min(TILE_ROWS, static_cast<int>(a.spans.len[span]) * share - tile.first_row);
    tile.first_seen = seen_from(a, tile.position0 + tile.first_row / share);
    tile.last_position = tile.position0 + (tile.first_row + tile.rows - 1) / share;
    tile.from_segment = tile.first_seen / ATTN_SEGMENT;
    tile.segments = tile.last_position / ATTN_SEGMENT + 1 - tile.from_segment;
    return true;
}

// Brings keys and values of the tile: of each segment two units of keys, then two of values. What no row sees is zero: it
// may hold what another sequence left there, NaN even.
template <int D>
__device__ __forceinline__ void produce(const AttentionArgs& a, const Tile& tile, Shared<D>& shared) {
    // Threads for a row, of which those beyond its end have nothing to copy.
    constexpr int ROW_THREADS = Plan<D>::PANELS * PANEL / 8, STEP = 128 / ROW_THREADS;
    static_assert(STEP % 4 == 0, "a thread's rows have one or two places in the swizzle");
    const int key = threadIdx.x / ROW_THREADS, c = threadIdx.x % ROW_THREADS;
    const bool copies = c * 8 < D;
    const uint32_t place = c / 8 * (UNIT * PANEL * 2) + key * 128, chunk = ((c ^ key) & 7) * 16;
    const uint32_t ring = shared_address(shared.ring), full = shared_address(shared.full), empty = shared_address(shared.empty);
    const uint32_t entry = tile.span * a.spans.groups + a.group;
    const uint32_t* blocks = a.spans.blocks + a.spans.table[entry] - a.spans.first_block[entry];
    const int first = tile.first_seen / KV_BLOCK, last = tile.last_position / KV_BLOCK;
    const uint32_t block_values = a.kv_heads * KV_BLOCK * D;
    const size_t offset = static_cast<size_t>(blockIdx.x) * KV_BLOCK * D + key * D + c * 8;
    // First block of unit j; where a block lies, those outside of what the tile sees as if they were the nearest inside.
    auto block_of = [&](int j) { return tile.from_segment * (ATTN_SEGMENT / KV_BLOCK) + j / 4 * 4 + j % 2 * 2; };
    auto lies = [&](int block) { return blocks[min(max(block, first), last)]; };
    uint32_t next0 = lies(block_of(0)), next1 = lies(block_of(0) + 1);
    Turn<Plan<D>::STAGES> turn;
#pragma unroll 1
    for (int j = 0; j < tile.segments * 2 * UNITS; ++j) {
        const half* tensor = (j % 4 < 2 ? a.k : a.v) + offset;
        const uint32_t block0 = next0, block1 = next1;
        next0 = lies(block_of(j + 1));
        next1 = lies(block_of(j + 1) + 1);
        bar_wait(empty + 8 * turn.stage, turn.parity ^ 1);
        const uint32_t to = ring + turn.stage * Plan<D>::UNIT_BYTES + place;
#pragma unroll
        for (int b = 0; b < UNIT / KV_BLOCK; ++b) {
            const int block = block_of(j) + b;
            const half* from = tensor + static_cast<size_t>(b == 0 ? block0 : block1) * block_values;
            // Known keys, from this thread's first one on.
            const int known = (block >= first && block <= last ? tile.last_position + 1 - block * KV_BLOCK : 0) - key;
#pragma unroll
            for (int i = 0; i < KV_BLOCK; i += STEP) {
                if (!copies) continue;
                copy_or_zero16(to + (b * KV_BLOCK + i) * 128 + (chunk ^ (i % 8 * 16)), from + i * D, i < known);
            }
        }
        copies_arrive(full + 8 * turn.stage);
        turn.next();
    }
    // A block's memory outlives its copies.
    copy_commit();
    copy_wait<0>();
}

// 64 rows of the tile, all channels or half of them: thread 4g + t of a warp has rows g and g + 8 of the warp's 16, and of
// each eight columns 2t and 2t + 1.
template <int D>
__device__ __forceinline__ void consume(const AttentionArgs& a, const Tile& tile, Shared<D>& shared) {
    using P = Plan<D>;
    constexpr int HALVES = P::OWN;
    const int group = threadIdx.x / 128 - 1, thread = threadIdx.x % 128, warp = thread / WARP, lane = thread % WARP;
    const int row0 = P::SPLIT ? 0 : 64 * group, panel0 = P::SPLIT ? HALVES * group : 0;
    const int g = lane / 4, t = lane % 4, share = a.q_heads / a.kv_heads;
    // Row r of the tile among all rows of queries.
    auto row_of = [&](int r) {
        const int row = tile.first_row + r;
        return static_cast<size_t>(tile.start + row / share) * a.q_heads + blockIdx.x * share + row % share;
    };
    const uint32_t q = shared_address(shared.q[P::SPLIT ? 0 : group]);
    constexpr int COPIERS = P::SPLIT ? 128 * GROUPS : 128;
    for (int i = P::SPLIT ? threadIdx.x - 128 : thread; i < 64 * (D / 8); i += COPIERS) {
        const int r = i / (D / 8), c = i % (D / 8);
        const bool has = row0 + r < tile.rows;
        const half* from = a.q + (has ? row_of(row0 + r) * D + c * 8 : 0);
        copy_or_zero16(q + c / 8 * (64 * PANEL * 2) + r * 128 + ((c ^ r) & 7) * 16, from, has);
    }
    copy_commit();

    const int r0 = row0 + warp * ROWS + g, r1 = r0 + 8;
    const bool has0 = r0 < tile.rows, has1 = r1 < tile.rows;
    auto position_of = [&](int r) { return tile.position0 + (tile.first_row + r) / share; };
    const int p0 = position_of(r0), p1 = position_of(r1);
    const float scale0 = has0 ? a.q_unscale[row_of(r0)] * a.scale : 1.0f;
    const float scale1 = has1 ? a.q_unscale[row_of(r1)] * a.scale : 1.0f;
    // Positions that all rows of this group see, or none.
    const int seen_to = position_of(row0), seen_by_all = seen_from(a, position_of(row0 + 63));
    float run_m0 = -INFINITY, run_m1 = -INFINITY, run_l0 = 0.0f, run_l1 = 0.0f;
    float keep0 = 1.0f, keep1 = 1.0f, take0 = 0.0f, take1 = 0.0f;
    uint32_t p[CHAINS][WARP_KEYS / 8][2];
    float out[HALVES][32];
#pragma unroll
    for (int h = 0; h < HALVES; ++h) {
#pragma unroll
        for (int i = 0; i < 32; ++i) out[h][i] = 0.0f;
    }
    copy_wait<0>();
    seen_by_multiply();
    asm volatile("bar.sync %0, %1;" ::"r"(P::SPLIT ? 3 : 3 + group), "n"(COPIERS) : "memory");

    const uint32_t ring = shared_address(shared.ring), full = shared_address(shared.full), empty = shared_address(shared.empty);
    Turn<P::STAGES> turn;
    // Waits for the next unit: its stage.
    auto arrived = [&]() {
        const int stage = turn.stage;
        bar_wait(full + 8 * stage, turn.parity);
        turn.next();
        return stage;
    };
    auto unit_at = [&](int stage) { return swizzled_at(ring + stage * P::UNIT_BYTES); };
    auto release = [&](int stage) {
        if (lane == 0) bar_arrive(empty + 8 * stage);
    };
    // Groups have the tensor cores in turn, the first one first.
    if (P::TURNS && group == 1) asm volatile("bar.arrive 1, 256;" ::: "memory");
#pragma unroll 1
    for (int n = 0;; ++n) {
        if (P::TURNS) asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
        if (n > 0) {
            // Values of the segment before.
            const int first = arrived(), second = arrived();
            seen_by_multiply();
            const uint32_t own = panel0 * (UNIT * PANEL * 2 / 16);
            const uint64_t at[UNITS] = {unit_at(first) + own, unit_at(second) + own};
            auto chain = [&](float (&to)[32], int h, int c) {
                multiply_begin();
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    const uint32_t w[4] = {p[c][2 * k][0], p[c][2 * k][1], p[c][2 * k + 1][0], p[c][2 * k + 1][1]};
                    const int bytes = h * UNIT * PANEL * 2 + (c % 2 * WARP_KEYS + 16 * k) * 128;
                    multiply(to, w, at[c / 2] + bytes / 16, k == 0);
                }
                multiply_commit();
            };
            auto add = [&](float (&to)[32], float (&more)[32]) {
                pin(to);
                pin(more);
#pragma unroll
                for (int i = 0; i < 32; ++i) to[i] += more[i];
                pin(to);
            };
            auto merge_out = [&](int h, float (&sum)[32]) {
#pragma unroll
                for (int i = 0; i < 32; ++i) {
                    out[h][i] = out[h][i] * (i % 4 < 2 ? keep0 : keep1) + sum[i] * (i % 4 < 2 ? take0 : take1);
                }
            };
            float x[32], y[32];
            if constexpr (HALVES == 1) {
                float z[32];
                chain(x, 0, 0);
                chain(y, 0, 1);
                chain(z, 0, 2);
                multiply_wait<1>();
                add(x, y);
                chain(y, 0, 3);
                multiply_wait<1>();
                add(x, z);
                release(first);
                multiply_wait<0>();
                release(second);
                add(x, y);
                merge_out(0, x);
            } else {
                chain(x, 0, 0);
                chain(y, 0, 1);
                multiply_wait<0>();
                add(x, y);
                chain(y, 0, 2);
                multiply_wait<0>();
                add(x, y);
                chain(y, 0, 3);
                multiply_wait<0>();
                add(x, y);
                if (P::SPLIT) merge_out(0, x);
                chain(y, 1, 0);
                if (!P::SPLIT) merge_out(0, x);
                chain(x, 1, 1);
                multiply_wait<0>();
                add(y, x);
                chain(x, 1, 2);
                multiply_wait<0>();
                add(y, x);
                chain(x, 1, 3);
                release(first);
                multiply_wait<0>();
                release(second);
                add(y, x);
                merge_out(1, y);
            }
        }
        if (n == tile.segments) break;
        // Scores.
        float s[UNITS][64];
        const int first = arrived(), second = arrived();
        seen_by_multiply();
#pragma unroll
        for (int u = 0; u < UNITS; ++u) {
            const uint64_t rows = swizzled_at(q), keys = unit_at(u == 0 ? first : second);
            multiply_begin();
#pragma unroll
            for (int k = 0; k < D / 16; ++k) {
                const int panel = k * 16 / PANEL, along = k * 16 % PANEL * 2;
                multiply(s[u], rows + (panel * 64 * PANEL * 2 + along) / 16, keys + (panel * UNIT * PANEL * 2 + along) / 16,
                         k == 0);
            }
            multiply_commit();
        }
        if (P::TURNS) asm volatile("bar.arrive %0, 256;" ::"r"(2 - group) : "memory");
        multiply_wait<1>();
        release(first);
        multiply_wait<0>();
        release(second);
        pin(s[0]);
        pin(s[1]);

        const int segment_key = (tile.from_segment + n) * ATTN_SEGMENT;
        // Where registers are short, positions are found anew of the tile, which is in shared memory.
        const int all_to = P::SPLIT ? position_of(row0) : seen_to;
        const int all_from = P::SPLIT ? seen_from(a, position_of(row0 + 63)) : seen_by_all;
        if (segment_key + ATTN_SEGMENT - 1 > all_to || segment_key < all_from) {
            const int lane_key = segment_key + 2 * t;
            const int last0 = P::SPLIT ? position_of(r0) : p0, last1 = P::SPLIT ? position_of(r1) : p1;
            const int from0 = seen_from(a, last0) - lane_key, from1 = seen_from(a, last1) - lane_key;
            const int to0 = last0 - lane_key, to1 = last1 - lane_key;
#pragma unroll
            for (int u = 0; u < UNITS; ++u) {
#pragma unroll
                for (int i = 0; i < 64; ++i) {
                    const int key = u * UNIT + i / 4 * 8 + i % 2;
                    const bool sees = i % 4 < 2 ? key >= from0 && key <= to0 : key >= from1 && key <= to1;
                    s[u][i] = sees ? s[u][i] : -INFINITY;
                }
            }
        }
        // The largest score: products with a scale, which is above zero, keep their order.
        float most[2][CHAINS];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
            for (int c = 0; c < CHAINS; ++c) {
                most[r][c] = -INFINITY;
#pragma unroll
                for (int i = 2 * r; i < 32; i += 4) {
                    const float* v = &s[c / 2][c % 2 * 32 + i];
                    most[r][c] = fmaxf(most[r][c], fmaxf(v[0], v[1]));
                }
            }
        }
        float m0 = fmaxf(fmaxf(most[0][0], most[0][1]), fmaxf(most[0][2], most[0][3]));
        float m1 = fmaxf(fmaxf(most[1][0], most[1][1]), fmaxf(most[1][2], most[1][3]));
#pragma unroll
        for (int d = 1; d <= 2; d *= 2) {
            m0 = fmaxf(m0, __shfl_xor_sync(~0u, m0, d));
            m1 = fmaxf(m1, __shfl_xor_sync(~0u, m1, d));
        }
        m0 *= scale0;
        m1 *= scale1;
        const float base0 = m0 == -INFINITY ? 0.0f : m0, base1 = m1 == -INFINITY ? 0.0f : m1;
        float l0 = 0.0f, l1 = 0.0f;
#pragma unroll
        for (int c = 0; c < CHAINS; ++c) {
            float c0 = 0.0f, c1 = 0.0f;
#pragma unroll
            for (int k = 0; k < WARP_KEYS / 8; ++k) {
                const float* v = &s[c / 2][c % 2 * 32 + 4 * k];
                const float w0 = exp2f((v[0] * scale0 - base0) * LOG2_E), w1 = exp2f((v[1] * scale0 - base0) * LOG2_E);
                const float w2 = exp2f((v[2] * scale1 - base1) * LOG2_E), w3 = exp2f((v[3] * scale1 - base1) * LOG2_E);
                c0 = c0 + w0 + w1;
                c1 = c1 + w2 + w3;
                p[c][k][0] = as_u32(__floats2half2_rn(w0, w1));
                p[c][k][1] = as_u32(__floats2half2_rn(w2, w3));
            }
#pragma unroll
            for (int d = 1; d <= 2; d *= 2) {
                c0 += __shfl_xor_sync(~0u, c0, d);
                c1 += __shfl_xor_sync(~0u, c1, d);
            }
            l0 = c == 0 ? c0 : l0 + c0;
            l1 = c == 0 ? c1 : l1 + c1;
        }
        merge(run_m0, run_l0, m0, l0, keep0, take0);
        merge(run_m1, run_l1, m1, l1, keep1, take1);
    }
    if (P::TURNS && group == 0) asm volatile("bar.arrive 2, 256;" ::: "memory");
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        if ((r ? r1 : r0) >= tile.rows) continue;
        const float l = r ? run_l1 : run_l0;
        float* to = a.out + row_of(r ? r1 : r0) * D + panel0 * PANEL + 2 * t;
#pragma unroll
        for (int h = 0; h < HALVES; ++h) {
#pragma unroll
            for (int i = 2 * r; i < 32; i += 4) {
                if (h * PANEL + i / 4 * 8 >= D) continue;
                *reinterpret_cast<float2*>(to + h * PANEL + i / 4 * 8) = make_float2(out[h][i] / l, out[h][i + 1] / l);
            }
        }
    }
}

template <int D>
__device__ __forceinline__ void attend(const AttentionArgs& a) {
    extern __shared__ __align__(1024) uint8_t memory[];
    Shared<D>& shared = *reinterpret_cast<Shared<D>*>(memory);
    if (threadIdx.x == 0) {
        for (int i = 0; i < Plan<D>::STAGES; ++i) {
            bar_init(shared_address(shared.full + i), 128);
            bar_init(shared_address(shared.empty + i), 4 * GROUPS);
        }
        bars_made();
    }
    grid_wait();
    Tile tile;
    const bool there = find<Plan<D>::ROWS>(a, tile);
    if (threadIdx.x == 0) shared.tile = tile;
    __syncthreads();
    if (!there) return;
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        produce<D>(a, tile, shared);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        consume<D>(a, Plan<D>::SPLIT ? shared.tile : tile, shared);
    }
}
#else
// Elsewhere the host takes other kernels.
template <int D>
__device__ __forceinline__ void attend(const AttentionArgs&) {}
#endif
}  // namespace

// Grid: key heads × tiles. Without a soft cap, and with a scale above zero.
#define KERNEL(D) \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS, 1) attention_wgmma_d##D(const __grid_constant__ AttentionArgs a) { \
        attend<D>(a); \
    }
KERNEL(64)
KERNEL(96)
KERNEL(128)
KERNEL(256)
