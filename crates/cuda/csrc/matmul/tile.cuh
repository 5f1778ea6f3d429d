// Tiles of products of many tokens: what they are of, and what becomes of a tile's sums. A warp has a row group of 16 and
// all TILE_TOKENS of a tile as accumulators of a warpgroup's multiplication.
#pragma once
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
    uint32_t zero;  // which the compiler does not know
};

// Products of few tokens with the same input that are several launches run beside each other: the first one lets the next
// start when its input is there, and that one waits for it at its end only, for who waits for the last one alone.
enum class Beside : int { None = 0, First = 1, Next = 2 };

struct TileArgs {
    TileMatrix m[3];         // of one type, those that are missing without tiles; a gate and its up are the first two
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
    int tiles;
    // Where tiles are shared: how often every block takes a whole one, segments of those behind them, and how many of these a
    // block takes, at most those of a tile, later blocks earlier ones.
    int turns;
    int shared;
    int each;
    int top;  // the first of them that the first block takes
    int beside;  // `enum class Beside`
    float* parts;       // sums of segments whose tile another block finishes: [tile][segment][warp][16][32] quads
    uint32_t* arrived;  // [tile][segment][warp]: 1 where they are, zero before and after
};

namespace wgmma_matmul {

constexpr int TOKENS = TILE_TOKENS;
// Floats of shared memory that a warp has for its sums.
constexpr int SUMS = QT_ROWS * TOKENS;

// Where a tile is.
struct Place {
    int which;   // matrix, of a gate and its up the first one
    int tile;    // of its rows
    int tokens;  // the first tile of them
};

// Segments are a power of two: `segment_begin`.
__device__ __forceinline__ int segment_bits(const TileArgs& a) { return 31 - __clz(a.segments); }
__device__ __forceinline__ int first_unit(const TileArgs& a, int segment) {
    return segment * (a.cols / QT_K) >> segment_bits(a);
}

// What a block sums in a turn: segments `first` up to `end` of a tile. Tiles that are SHARED come behind those that are not:
// a block has segments of one, and perhaps of the next.
template <bool SHARED>
struct Work {
    int tile, first, end;

    __device__ __forceinline__ Work(const TileArgs& a, int turn) {
        const int segments = a.segments, bits = segment_bits(a);
        tile = blockIdx.x + turn * gridDim.x, first = 0, end = segments;
        if (!SHARED) {
            if (tile >= a.tiles) end = 0;
            return;
        }
        if (turn < a.turns) return;
        // Who finishes a tile waits for blocks of lower numbers, which begin no later and do not wait for it: others may
        // have multiprocessors too.
        int at = a.top - static_cast<int>(blockIdx.x) * a.each;
        const int last = min(at + a.each, a.shared);
        if (turn > a.turns) at = ((at >> bits) + 1) << bits;
        tile = a.turns * gridDim.x + (at >> bits), first = at & (segments - 1);
        end = turn > a.turns + 1 ? first : min(segments, first + last - at);
    }
    __device__ __forceinline__ bool there() const { return end > first; }

    // The number of a segment among those that are shared.
    __device__ __forceinline__ int shared(const TileArgs& a, int segment) const {
        return (tile - a.turns * static_cast<int>(gridDim.x)) * a.segments + segment;
    }
};

// Those that share weights run together. WIDTH: tiles of tokens that a block has at a time.
template <bool GATED, int WIDTH = 1>
__device__ __forceinline__ Place place_of(const TileArgs& a, int item) {
    constexpr int EACH = WIDTH * TOKENS;
    const uint32_t token_tiles = (a.tokens + EACH - 1) / EACH, number = item;
    Place out = {0, static_cast<int>(number / token_tiles), static_cast<int>(number % token_tiles) * WIDTH};
    while (!GATED && out.which < 2 && out.tile >= a.m[out.which].tiles) out.tile -= a.m[out.which++].tiles;
    return out;
}

// Row of value i of an accumulator in its warp's 16, and its token in the tile.
__device__ __forceinline__ int row_of(int i) { return threadIdx.x % WARP / 4 + i % 4 / 2 * 8; }
__device__ __forceinline__ int token_of(int i) { return threadIdx.x % 4 * 2 + i / 4 * 8 + i % 2; }

// Where a warp's memory has the value of a token and a row, so that neither the accumulators' owners, who write it, nor
// those of a token's four rows, who read it, meet in a bank.
__device__ __forceinline__ int turned(int token, int row) {
    return (token ^ (token >> 1 & 1)) * QT_ROWS + (row ^ (token >> 2 & 1) * 8);
}

__device__ __forceinline__ void turn(float* own, const float (&sum)[64]) {
    // Every eighth token has the same place among eight: four addresses in all.
    float* at[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) at[i] = own + turned(token_of(i), row_of(i));
#pragma unroll
    for (int i = 0; i < 64; ++i) at[i % 4][i / 4 * 8 * QT_ROWS] = sum[i];
}

// Four rows of a token. WHOLE: they are all there, and lie at a multiple of 16 bytes; else `rows` of them.
template <bool WHOLE>
struct Quad {
    float v[4];
    __device__ __forceinline__ void load(const float* from, int rows) {
        if constexpr (WHOLE) {
            const float4 q = *reinterpret_cast<const float4*>(from);
            v[0] = q.x, v[1] = q.y, v[2] = q.z, v[3] = q.w;
        } else {
#pragma unroll
            for (int k = 0; k < 4; ++k) v[k] = k < rows ? from[k] : 0.0f;
        }
    }
    __device__ __forceinline__ void store(float* to, int rows) const {
        if constexpr (WHOLE) {
            *reinterpret_cast<float4*>(to) = make_float4(v[0], v[1], v[2], v[3]);
        } else {
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                if (k < rows) to[k] = v[k];
            }
        }
    }
    __device__ __forceinline__ void finish(float scale, const float (&bias)[4], bool biased) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            v[k] *= scale;
            if (biased) v[k] += bias[k];
        }
    }
};

__device__ __forceinline__ bool whole_quads(const TileMatrix& m) { return (m.rows | m.out_stride) % 4 == 0; }

__device__ __forceinline__ void load_bias(float (&to)[4], const TileMatrix& m, int row) {
#pragma unroll
    for (int k = 0; k < 4; ++k) to[k] = m.bias && row + k < m.rows ? m.bias[row + k] : 0.0f;
}

// The warp's rows from `row0` on. A lane has four rows of every eighth token; BATCH of them are read, and that for which
// `finish` reads memory, before any is written: a load does not pass a store that may be to the same place. Loops that are
// no longer than they must be: all of this runs once a tile, from instructions that no cache of the multiprocessor has.
template <int BATCH, bool WHOLE, class Last>
__device__ __forceinline__ void finish_rows(const TileArgs& a, const TileMatrix& m, const float* own, int row0, int token0,
                                            Last last) {
    const int lane = threadIdx.x % WARP, row = row0 + lane % 4 * 4, rows = m.rows - row, stride = m.out_stride;
    if (rows <= 0) return;
    const bool biased = m.bias;
    float bias[4];
    load_bias(bias, m, row);
    own += turned(lane / 4, lane % 4 * 4);
    token0 += lane / 4;
    float* out = m.out + static_cast<size_t>(token0) * stride + row;
#pragma unroll 1
    for (int part = 0; part < TOKENS / 8; part += BATCH) {
        float scale[BATCH];
        Quad<WHOLE> before[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; ++j) {
            const bool inside = token0 + 8 * j < a.tokens;
            scale[j] = inside ? a.x_unscale[token0 + 8 * j] : 0.0f;
            if (last.reads() && inside) before[j].load(out + static_cast<size_t>(8 * j) * stride, rows);
        }
#pragma unroll
        for (int j = 0; j < BATCH; ++j) {
            Quad<true> sum;
            sum.load(own + 8 * j * QT_ROWS, 4);
            sum.finish(m.w_unscale * scale[j], bias, biased);
            Quad<WHOLE> y;
#pragma unroll
            for (int k = 0; k < 4; ++k) y.v[k] = last(sum.v[k], last.reads() ? before[j].v[k] : 0.0f);
            if (token0 + 8 * j < a.tokens) y.store(out + static_cast<size_t>(8 * j) * stride, rows);
        }
        own += 8 * BATCH * QT_ROWS;
        out += static_cast<size_t>(8 * BATCH) * stride;
        token0 += 8 * BATCH;
    }
}

struct Store {
    __device__ __forceinline__ bool reads() const { return false; }
    __device__ __forceinline__ float operator()(float y, float) const { return y; }
};
struct Add {
    float factor;
    __device__ __forceinline__ bool reads() const { return true; }
    __device__ __forceinline__ float operator()(float y, float before) const {
        return finish_value(Finish::Residual, y, factor, 0.0f, before);
    }
};
// Logits, and all of them where rows are no multiples of four.
struct Any {
    const TileArgs& a;
    __device__ __forceinline__ Finish finish() const { return static_cast<Finish>(a.finish); }
    __device__ __forceinline__ bool reads() const { return finish() == Finish::Residual; }
    __device__ __forceinline__ float operator()(float y, float before) const {
        return finish_value(finish(), y, a.factor, a.soft_cap, before);
    }
};

template <int WIDTH>
__device__ __forceinline__ void finish_tile(const TileArgs& a, const TileMatrix& m, int row0, int token0, float* own,
                                            const float (&sum)[WIDTH][64]) {
    __syncwarp();
#pragma unroll
    for (int h = 0; h < WIDTH; ++h) turn(own + h * SUMS, sum[h]);
    __syncwarp();
    const Finish finish = static_cast<Finish>(a.finish);
#pragma unroll 1
    for (int h = 0; h < WIDTH; ++h, own += SUMS, token0 += TOKENS) {
        if (whole_quads(m) && finish == Finish::Store) {
            finish_rows<8, true>(a, m, own, row0, token0, Store());
        } else if (whole_quads(m) && finish == Finish::Residual) {
            finish_rows<8, true>(a, m, own, row0, token0, Add{a.factor});
        } else {
            finish_rows<1, false>(a, m, own, row0, token0, Any{a});
        }
    }
    // The next tile's sums come here.
    __syncwarp();
}

// Waits for the warp that has the same rows of the other matrix.
__device__ __forceinline__ void meet(int pair) { asm volatile("bar.sync %0, 64;" ::"r"(1 + pair) : "memory"); }

// The activation of four values. Where quotients of SiLU and what they are found with are far from the ends of their range, a
// reciprocal and two corrections give the bits of a division, without its branch: what a compiler makes of one does the same.
__device__ __forceinline__ void activate_quad(Act act, float (&v)[4]) {
    if (act != Act::Silu) {
#pragma unroll
        for (int k = 0; k < 4; ++k) v[k] = activate(act, v[k]);
        return;
    }
    float d[4];
    bool near = true;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        d[k] = 1.0f + expf(-v[k]);
        const float size = fabsf(v[k]);
        near = near && size > 0x1p-60f && size < 40.0f;
    }
    if (near) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            float r;
            asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d[k]));
            r = __fmaf_rn(__fmaf_rn(-d[k], r, 1.0f), r, r);
            float q = __fmul_rn(v[k], r);
            q = __fmaf_rn(__fmaf_rn(-d[k], q, v[k]), r, q);
            v[k] = __fmaf_rn(__fmaf_rn(-d[k], q, v[k]), r, q);
        }
    } else {
#pragma unroll 1
        for (int k = 0; k < 4; ++k) v[k] = v[k] / d[k];
    }
}

// The activation of a gate's rows times its up's: `sums` is the gate's, `other` its up's, for half of the tokens.
template <bool WHOLE>
__device__ __forceinline__ void finish_half(const TileArgs& a, const float* sums, const float* other, int row0, int token0) {
    const TileMatrix &gate = a.m[0], &up = a.m[1];
    const int lane = threadIdx.x % WARP, row = row0 + lane % 4 * 4, rows = gate.rows - row, stride = gate.out_stride;
    const Act act = static_cast<Act>(a.act);
    float gate_bias[4], up_bias[4], scale[2];
    load_bias(gate_bias, gate, row);
    load_bias(up_bias, up, row);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const int token = token0 + WARP * j + lane;
        scale[j] = token < a.tokens ? a.x_unscale[token] : 0.0f;
    }
    const float gate_unscale = gate.w_unscale, up_unscale = up.w_unscale;
    const bool gate_biased = gate.bias, up_biased = up.bias;
    token0 += lane / 4;
    float* out = gate.out + static_cast<size_t>(token0) * stride + row;
#pragma unroll 2
    for (int j = 0; j < TOKENS / 16; ++j) {
        const float unscale = __shfl_sync(~0u, j < 4 ? scale[0] : scale[1], j % 4 * 8 + lane / 4);
        Quad<true> g, u;
        g.load(sums, 4);
        u.load(other, 4);
        g.finish(gate_unscale * unscale, gate_bias, gate_biased);
        u.finish(up_unscale * unscale, up_bias, up_biased);
        Quad<WHOLE> y;
        float most = 0.0f;
        activate_quad(act, g.v);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            y.v[k] = g.v[k] * u.v[k];
            if (k < rows) most = fmaxf(most, fabsf(y.v[k]));
        }
        const bool inside = token0 < a.tokens;
        if (inside && rows > 0) y.store(out, rows);
#pragma unroll
        for (int d = 1; d < 4; d *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
        if (inside && lane % 4 == 0) atomicMax(a.most + token0, __float_as_uint(most));
        sums += 8 * QT_ROWS, other += 8 * QT_ROWS;
        out += static_cast<size_t>(8) * stride;
        token0 += 8;
    }
}

// A gate and its up: of a warpgroup's warps the first two have rows of the gate and the others the same rows of its up.
// `pair` counts in the block; each of a pair finishes half of a tile's tokens. `memory` is that of the pair's gate.
template <int WIDTH>
__device__ __forceinline__ void finish_gated(const TileArgs& a, int row0, int token0, int pair, float* memory,
                                             const float (&sum)[WIDTH][64]) {
    constexpr int BETWEEN = 2 * WIDTH * SUMS;
    const int up = threadIdx.x / WARP % 4 / 2, lane = threadIdx.x % WARP, first = up * TOKENS / 2;
    __syncwarp();
#pragma unroll
    for (int h = 0; h < WIDTH; ++h) turn(memory + up * BETWEEN + h * SUMS, sum[h]);
    const float* gate = memory + turned(first + lane / 4, lane % 4 * 4);
    meet(pair);
#pragma unroll 1
    for (int h = 0; h < WIDTH; ++h, gate += SUMS, token0 += TOKENS) {
        if (whole_quads(a.m[0])) {
            finish_half<true>(a, gate, gate + BETWEEN, row0, token0 + first);
        } else {
            finish_half<false>(a, gate, gate + BETWEEN, row0, token0 + first);
        }
    }
    // Nobody parks sums where the other one still reads.
    meet(pair);
}

}  // namespace wgmma_matmul
