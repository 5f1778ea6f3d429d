// Kernels over rows of activations: norms, and inputs of products. A block per row.
#include "prepare_int8.cuh"

namespace {
struct PrepareArgs {
    RowArgs row;             // of row 0
    const uint32_t* gather;  // row of x for each row of the result, or null
    half* out;               // [rows][out_stride], see `prepare_part` and `prepare_part_q8`
    float* unscale;          // [rows]
    uint32_t* clear;         // [rows] that become zero, or null
    int x_stride;            // of x and other
    int out_stride;
};

struct NormRowsArgs {
    const float* x;  // [rows][x_stride]
    float* out;      // [rows][out_stride]; may be x
    NormArgs norm;
    int add;  // out = out + factor · y instead of y
    float factor;
    int n;
    int x_stride;
    int out_stride;
};
}  // namespace

namespace {
// What becomes of rows.
enum class Form { Fragments, Tiles, Bytes, ByteTiles };
// What they go through before: anything, or, known to the compiler, which then needs half the registers, a norm without a
// bias, or nothing.
enum class Through { Any, Rms, Nothing };

template <Form FORM, Through THROUGH = Through::Any>
__device__ __forceinline__ void prepare(const PrepareArgs& a) {
    constexpr bool BYTES = FORM == Form::Bytes || FORM == Form::ByteTiles;
    __shared__ float shared[BYTES ? Q8_SHARED : 2 * PREPARE_WARPS];
    grid_wait();
    const int row = blockIdx.x, n = a.row.n, padded = (n + QT_K - 1) / QT_K * QT_K, thread = 4 * threadIdx.x;
    const size_t from = static_cast<size_t>(a.gather ? a.gather[row] : row) * a.x_stride;
    RowArgs own = a.row;
    if (THROUGH != Through::Any) {
        own.norm.kind = static_cast<int>(THROUGH == Through::Rms ? Norm::Rms : Norm::None);
        own.norm.bias = nullptr;
        own.act = static_cast<int>(Act::None);
        own.other = nullptr;
        own.plain = nullptr;
    }
    own.x += from;
    if (own.other) own.other += from;
    if (own.plain) own.plain += static_cast<size_t>(row) * n;
    if (own.most) own.most += row;
    if (a.clear && threadIdx.x == 0) a.clear[row] = 0;
    float unscale;
    if (FORM == Form::Bytes) {
        RowBatch batch;
        batch.load_norm(own, thread);
        uint8_t* out = reinterpret_cast<uint8_t*>(a.out + static_cast<size_t>(row) * a.out_stride);
        unscale = prepare_part_q8(own, batch, Q8Row{out}, 0, padded, shared);
    } else if (FORM == Form::ByteTiles) {
        RowBatch batch;
        batch.load_norm(own, thread);
        half* tile = a.out + static_cast<size_t>(row / Q8Tile::TOKENS * Q8Tile::TOKENS) * a.out_stride;
        const Q8TileRow out = {reinterpret_cast<uint8_t*>(tile), row % Q8Tile::TOKENS};
        unscale = prepare_part_q8(own, batch, out, 0, padded, shared);
    } else if (FORM == Form::Tiles) {
        half* tile = a.out + static_cast<size_t>(row / TILE_TOKENS * TILE_TOKENS) * a.out_stride;
        if (THROUGH == Through::Nothing) {
            // Where the largest magnitude is known, blocks have parts of a row.
            const int units = padded / QT_K, part = blockIdx.y, parts = gridDim.y;
            const int begin = units * part / parts * QT_K, end = units * (part + 1) / parts * QT_K;
            RowBatch batch;
            batch.load_norm(own, begin + thread);
            const TileRow out(tile, padded, row % TILE_TOKENS, begin + thread);
            unscale = prepare_part(own, batch, out, begin, end, shared);
        } else {
            unscale = prepare_row(own, TileRow(tile, padded, row % TILE_TOKENS, thread), padded, shared);
        }
    } else {
        half* out = a.out + static_cast<size_t>(row) * a.out_stride;
        unscale = prepare_row(own, FragmentRow(out, padded, thread), padded, shared);
    }
    if (threadIdx.x == 0) a.unscale[row] = unscale;
}
}  // namespace

#define KERNEL(BOUNDS, name, ...) \
    extern "C" __global__ void __launch_bounds__ BOUNDS name(const PrepareArgs a) { \
        prepare<__VA_ARGS__>(a); \
    }
KERNEL((PREPARE_THREADS), prepare_rows, Form::Fragments)
KERNEL((PREPARE_THREADS), prepare_tiles, Form::Tiles)
KERNEL((PREPARE_THREADS), prepare_tiles_rms, Form::Tiles, Through::Rms)
KERNEL((PREPARE_THREADS), prepare_tiles_plain, Form::Tiles, Through::Nothing)
KERNEL((PREPARE_THREADS, 2), prepare_bytes, Form::Bytes)
KERNEL((PREPARE_THREADS, 2), prepare_byte_tiles, Form::ByteTiles)
KERNEL((PREPARE_THREADS, 2), prepare_byte_tiles_rms, Form::ByteTiles, Through::Rms)
KERNEL((PREPARE_THREADS, 2), prepare_byte_tiles_plain, Form::ByteTiles, Through::Nothing)

// A norm of whole rows, stored or added.
extern "C" __global__ void __launch_bounds__(PREPARE_THREADS) norm_rows(const NormRowsArgs a) {
    __shared__ float shared[2 * PREPARE_WARPS];
    grid_wait();
    RowArgs row = {};
    row.x = a.x + static_cast<size_t>(blockIdx.x) * a.x_stride;
    row.norm = a.norm;
    row.act = static_cast<int>(Act::None);
    row.n = a.n;
    float* out = a.out + static_cast<size_t>(blockIdx.x) * a.out_stride;
    float most;
    RowBatch batch;
    const int own = 4 * threadIdx.x;
    batch.load_norm(row, own);
    batch.load_values(row, own);
    const Moments m = row_moments(row, batch, most, shared);
    for (int first = own; first < a.n; first += BATCH * QUADS) {
        if (first != own) {
            batch.load_norm(row, first);
            batch.load_values(row, first);
        }
#pragma unroll
        for (int j = 0; j < BATCH; ++j) {
            const int i = first + j * QUADS;
            if (i >= a.n) continue;
            const float4 y = batch.value(row, m, j);
            float4* to = reinterpret_cast<float4*>(out + i);
            const float4 before = a.add ? *to : float4();
            *to = a.add ? make_float4(before.x + a.factor * y.x, before.y + a.factor * y.y, before.z + a.factor * y.z,
                                      before.w + a.factor * y.w)
                        : y;
        }
    }
}
