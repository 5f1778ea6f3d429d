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
};

namespace wgmma_matmul {

constexpr int TOKENS = TILE_TOKENS;
// Floats of shared memory that a warp has for its sums.
constexpr int SUMS = QT_ROWS * TOKENS;

// Where a tile is.
struct Place {
    int which;   // matrix, of a gate and its up the first one
    int tile;    // of its rows
    int tokens;  // tile of them
};

template <bool GATED>
__device__ __forceinline__ int tiles_of(const TileArgs& a) {
    return (a.tokens + TOKENS - 1) / TOKENS * (GATED ? a.m[0].tiles : a.m[0].tiles + a.m[1].tiles + a.m[2].tiles);
}

// Those that share weights run together.
template <bool GATED>
__device__ __forceinline__ Place place_of(const TileArgs& a, int item) {
    const int token_tiles = (a.tokens + TOKENS - 1) / TOKENS;
    Place out = {0, item / token_tiles, item % token_tiles};
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
#pragma unroll
    for (int i = 0; i < 64; ++i) own[turned(token_of(i), row_of(i))] = sum[i];
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
            if (Last::READS && inside) before[j].load(out + static_cast<size_t>(8 * j) * stride, rows);
        }
#pragma unroll
        for (int j = 0; j < BATCH; ++j) {
            Quad<true> sum;
            sum.load(own + 8 * j * QT_ROWS, 4);
            sum.finish(m.w_unscale * scale[j], bias, biased);
            Quad<WHOLE> y;
#pragma unroll
            for (int k = 0; k < 4; ++k) y.v[k] = last(sum.v[k], Last::READS ? before[j].v[k] : 0.0f);
            if (token0 + 8 * j < a.tokens) y.store(out + static_cast<size_t>(8 * j) * stride, rows);
        }
        own += 8 * BATCH * QT_ROWS;
        out += static_cast<size_t>(8 * BATCH) * stride;
        token0 += 8 * BATCH;
    }
}

struct Store {
    static constexpr bool READS = false;
    __device__ __forceinline__ float operator()(float y, float) const { return y; }
};
struct Add {
    static constexpr bool READS = true;
    float factor;
    __device__ __forceinline__ float operator()(float y, float before) const {
        return finish_value(Finish::Residual, y, factor, 0.0f, before);
    }
};
// All of them, and rows that are no multiples of four.
template <bool READ>
struct Any {
    static constexpr bool READS = READ;
    Finish finish;
    float factor, soft_cap;
    __device__ __forceinline__ float operator()(float y, float before) const {
        return finish_value(finish, y, factor, soft_cap, before);
    }
};

__device__ __forceinline__ void finish_tile(const TileArgs& a, const TileMatrix& m, int row0, int token0, float* own,
                                            const float (&sum)[64]) {
    __syncwarp();
    turn(own, sum);
    __syncwarp();
    const Finish finish = static_cast<Finish>(a.finish);
    if (whole_quads(m) && finish == Finish::Store) {
        finish_rows<8, true>(a, m, own, row0, token0, Store());
    } else if (whole_quads(m) && finish == Finish::Residual) {
        finish_rows<8, true>(a, m, own, row0, token0, Add{a.factor});
    } else if (finish == Finish::Residual) {
        finish_rows<1, false>(a, m, own, row0, token0, Any<true>{finish, a.factor, a.soft_cap});
    } else {
        finish_rows<1, false>(a, m, own, row0, token0, Any<false>{finish, a.factor, a.soft_cap});
    }
    // The next tile's sums come here.
    __syncwarp();
}

// Waits for the warp that has the same rows of the other matrix.
__device__ __forceinline__ void meet(int pair) { asm volatile("bar.sync %0, 64;" ::"r"(1 + pair) : "memory"); }

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
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            y.v[k] = activate(act, g.v[k]) * u.v[k];
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

// A gate and its up: the PAIRS first warps have rows of the gate, the others the same rows of its up, and each of a pair
// finishes half of the tokens. `memory` is that of all warps.
template <int PAIRS>
__device__ __forceinline__ void finish_gated(const TileArgs& a, const Place& place, int warp, float* memory,
                                             const float (&sum)[64]) {
    const int pair = warp % PAIRS, up = warp / PAIRS, lane = threadIdx.x % WARP, first = up * TOKENS / 2;
    __syncwarp();
    turn(memory + warp * SUMS, sum);
    const float* gate = memory + pair * SUMS + turned(first + lane / 4, lane % 4 * 4);
    const int row0 = (place.tile * PAIRS + pair) * QT_ROWS, token0 = place.tokens * TOKENS + first;
    meet(pair);
    if (whole_quads(a.m[0])) {
        finish_half<true>(a, gate, gate + PAIRS * SUMS, row0, token0);
    } else {
        finish_half<false>(a, gate, gate + PAIRS * SUMS, row0, token0);
    }
    // Nobody parks sums where the other one still reads.
    meet(pair);
}

}  // namespace wgmma_matmul
