// The int8 profile's input of a product: a row's values as bytes under a scale for every 32 or 256 of them, where the B
// fragments of m16n8k32 steps come from. The factor of a root mean square norm without offset is not in it: it belongs to
// all values, so it is applied to the result, and neither scales nor bytes wait for it.
#pragma once
#include "prepare.cuh"
#include "qt16.cuh"

// Values that have a scale, perhaps the same as their neighbours, and sums.
constexpr int Q8_GROUP = 32;

// A group's scale, and the sums of its first and of its last 16 bytes.
struct alignas(8) Q8Scale {
    float scale;
    int16_t sums[2];
};

// 256 values: for each group and t of a quad the bytes of its two k16 steps, in the order of Plane::bytes; then scales.
constexpr int Q8_UNIT = QT_K + QT_K / Q8_GROUP * static_cast<int>(sizeof(Q8Scale));

// A row of such units.
struct Q8Row {
    uint8_t* to;
    // Word `t` of k16 step `step` of group `group`: bytes of the step's values 2t, 2t + 8, 2t + 1 and 2t + 9.
    __device__ __forceinline__ void word(int group, int step, int t, uint32_t bytes) const {
        *reinterpret_cast<uint32_t*>(to + group / 8 * Q8_UNIT + group % 8 * Q8_GROUP + t * 8 + step * 4) = bytes;
    }
    __device__ __forceinline__ void scale(int group, float scale, int first, int last) const {
        const Q8Scale both = {scale, {static_cast<int16_t>(first), static_cast<int16_t>(last)}};
        *reinterpret_cast<Q8Scale*>(to + group / 8 * Q8_UNIT + QT_K + group % 8 * sizeof(Q8Scale)) = both;
    }
};

// What tf32 has of a number, and of the rest.
struct Tf32Pair {
    float most, rest;
};
__device__ __forceinline__ float tf32_of(float v) {
    uint32_t t;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(t) : "f"(v));
    return __uint_as_float(t);
}
__device__ __forceinline__ Tf32Pair tf32_pair(float v) {
    const float most = tf32_of(v);
    return {most, tf32_of(v - most)};
}

// Two integers as halves: magnitudes up to 2048, and multiples of 64 up to 4096, are exact.
__device__ __forceinline__ uint32_t half_sums(int low, int high) {
    return as_u32(__floats2half2_rn(static_cast<float>(low), static_cast<float>(high)));
}

// Tiles of tokens for the kernels for many. For each unit of 256 values: of every 32 tokens four slabs of bytes, [token][64]
// with 16-byte chunks exclusive-ored with half of the token's number, and behind them scales, [group][token]; then of
// every 32 the B fragments of the minima's steps, [token][t]: where groups have scales of their own, {most, rest} of pairs of
// groups of 32; where they have one, sums of groups of 32, their multiples of 64 and the rest; the same of groups of 16.
struct Q8Tile {
    static constexpr int TOKENS = TILE_TOKENS, PART = 32, SLAB = PART * 64;
    static constexpr int SCALES_AT = 4 * SLAB, SCALES = PART * 4, SLABS = SCALES_AT + 8 * SCALES, PARTS = TOKENS / PART;
    static constexpr int SUMS = PART * 64, SUMS_AT = PARTS * SLABS;
    static constexpr int WHOLE = PART * 32, WHOLE_AT = SUMS_AT + PARTS * SUMS, WHOLE_16_AT = WHOLE_AT + PARTS * WHOLE;
    static constexpr int UNIT = WHOLE_16_AT + PARTS * WHOLE;
};

// A row of a tile.
struct Q8TileRow {
    uint8_t* tile;
    int token;
    __device__ __forceinline__ uint8_t* part(int group) const {
        return tile + group / 8 * Q8Tile::UNIT + token / Q8Tile::PART * Q8Tile::SLABS;
    }
    __device__ __forceinline__ void word(int group, int step, int t, uint32_t bytes) const {
        const int chunk = (group % 2 * 2 + step) ^ (token / 2 & 3), place = token % Q8Tile::PART;
        uint8_t* slab = part(group) + group % 8 / 2 * Q8Tile::SLAB;
        *reinterpret_cast<uint32_t*>(slab + place * 64 + chunk * 16 + t * 4) = bytes;
    }
    __device__ __forceinline__ void scale(int group, float scale, int first, int last) const {
        const int half_of_slab = group % 2, slab = group % 8 / 2, place = token % Q8Tile::PART, number = token / Q8Tile::PART;
        *reinterpret_cast<float*>(part(group) + Q8Tile::SCALES_AT + group % 8 * Q8Tile::SCALES + place * 4) = scale;
        uint8_t* unit = tile + group / 8 * Q8Tile::UNIT;
        const int all = first + last;
        const Tf32Pair scaled = tf32_pair(scale * static_cast<float>(all));
        float* pairs = reinterpret_cast<float*>(unit + Q8Tile::SUMS_AT + number * Q8Tile::SUMS + place * 64 + slab * 16);
        pairs[half_of_slab] = scaled.most;
        pairs[2 + half_of_slab] = scaled.rest;
        uint8_t* whole = unit + Q8Tile::WHOLE_AT + number * Q8Tile::WHOLE + place * 32 + slab * 8;
        half* sums = reinterpret_cast<half*>(whole);
        sums[half_of_slab] = __float2half_rn(static_cast<float>(all & ~63));
        sums[2 + half_of_slab] = __float2half_rn(static_cast<float>(all & 63));
        reinterpret_cast<uint32_t*>(whole + Q8Tile::WHOLE_16_AT - Q8Tile::WHOLE_AT)[half_of_slab] = half_sums(first, last);
    }
};

// Larger of two magnitudes; NaN if one is.
__device__ __forceinline__ float max_or_nan(float a, float b) {
    float v;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
    return v;
}

// Largest magnitude of the quads of a group's eight lanes, or of a warp.
__device__ __forceinline__ float most_of_lanes(const float4& y, bool together) {
    float most = max_or_nan(max_or_nan(fabsf(y.x), fabsf(y.y)), max_or_nan(fabsf(y.z), fabsf(y.w)));
#pragma unroll
    for (int d = 1; d < 8; d *= 2) most = max_or_nan(most, __shfl_xor_sync(~0u, most, d));
    if (!together) return most;
#pragma unroll
    for (int d = 8; d < WARP; d *= 2) most = max_or_nan(most, __shfl_xor_sync(~0u, most, d));
    return most;
}

// Four values of a row, `k` the first one's column, of a thread that has the same eighth of a group as its lane: stored as
// bytes with what belongs to their group; `most` is the largest magnitude of those under one scale. All lanes of a warp; those beyond
// the end do not `store`.
template <class Row>
__device__ __forceinline__ void store_q8(const Row& out, int k, const float4& y, float most, bool store) {
    // NaN and infinities stay in the scale, and what is too small for an inverse is zero. Products of the largest value
    // with an inverse that is off by its last bit still round to 127.
    float inverse;
    asm("rcp.approx.f32 %0, %1;" : "=f"(inverse) : "f"(most));
    inverse = most >= 127.0f * 1.17549435e-38f ? 127.0f * inverse : 0.0f;
    const uint32_t x = __float2int_rn(y.x * inverse) & 255, z = __float2int_rn(y.z * inverse) & 255;
    const uint32_t yy = __float2int_rn(y.y * inverse) & 255, w = __float2int_rn(y.w * inverse) & 255;
    const uint32_t own = x | yy << 8 | z << 16 | w << 24;
    int sum = __dp4a(static_cast<int>(own), 0x01010101, 0);
    // The values 8 further on, or back: together they are two words, of which each thread stores one.
    const uint32_t other = __shfl_xor_sync(~0u, own, 2);
    const bool second = threadIdx.x & 2;
    const uint32_t word = second ? prmt(own, other, 0x3726) : prmt(own, other, 0x5140);
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const int last = __shfl_xor_sync(~0u, sum, 4);
    if (!store) return;
    // Of 16 values k16 … + 15, thread i of four has 4i …; words are t = 0 … 3, and a group's two steps alternate.
    out.word(k / Q8_GROUP, k % Q8_GROUP / 16, k % 8 / 4 * 2 + (second ? 1 : 0), word);
    if (threadIdx.x % 8 == 0) out.scale(k / Q8_GROUP, most * (1.0f / 127.0f), sum, last);
}

// Floats of shared memory that `prepare_part_q8` takes: those of `row_moments`, and of a warp's quads the largest magnitudes,
// twice.
constexpr int Q8_SHARED = 2 * PREPARE_WARPS + 2 * BATCH * PREPARE_WARPS;

// Columns `begin` to `end` of a row, multiples of 256, to `out`. Returns what their products are to be multiplied with.
// `batch` has what `load_norm` gives for `begin`. All threads of the block, which has come together after the last store.
template <class Row>
__device__ __forceinline__ float prepare_part_q8(const RowArgs& a, RowBatch& batch, const Row& out, int begin, int end,
                                                 float* shared) {
    const Norm kind = static_cast<Norm>(a.norm.kind);
    const bool late = kind == Norm::Rms && !a.norm.bias && a.act < 0 && !a.other;
    const int own = 4 * threadIdx.x;
    batch.load_values(a, begin + own);
    Moments m = {0.0f, 1.0f};
    if (kind != Norm::None && !late) {
        float unused;
        m = row_moments(a, batch, unused, shared);
    }
    float squares = 0.0f;
    // Two warps have the 256 values that go together. Batches alternate between two places: who is ahead writes where nobody reads any more.
    const int warp = threadIdx.x / WARP;
    float(*places)[PREPARE_WARPS] = reinterpret_cast<float(*)[PREPARE_WARPS]>(shared + 2 * PREPARE_WARPS);
    for (int first = 0; first < end - begin; first += BATCH * QUADS) {
        if (first != 0) {
            batch.load_norm(a, begin + own + first);
            batch.load_values(a, begin + own + first);
        }
        float(*place)[PREPARE_WARPS] = places + first / (BATCH * QUADS) % 2 * BATCH;
        float most[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; ++j) {
            const int i = begin + own + first + j * QUADS;
            // What a whole warp has beyond the end.
            if (i - 4 * static_cast<int>(threadIdx.x % WARP) >= end) break;
            const float4 v = batch.x[j], w = batch.weight[j];
            float4 y = make_float4(v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w);
            if (late) {
                squares = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, squares))));
            } else {
                y = i < a.n ? batch.value(a, m, j) : float4();
            }
            if (a.plain && !late && i < a.n) *reinterpret_cast<float4*>(a.plain + i) = y;
            batch.x[j] = y;
            most[j] = most_of_lanes(y, a.together);
            if (a.together && threadIdx.x % WARP == 0) place[j][warp] = most[j];
        }
        if (a.together) __syncthreads();
#pragma unroll
        for (int j = 0; j < BATCH; ++j) {
            const int i = begin + own + first + j * QUADS;
            if (i - 4 * static_cast<int>(threadIdx.x % WARP) >= end) break;
            if (a.together) most[j] = max_or_nan(most[j], place[j][warp ^ 1]);
            store_q8(out, i - begin, batch.x[j], most[j], i < end);
        }
    }
    if (late) {
        squares = warp_sum(squares);
        if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = squares;
        __syncthreads();
        squares = shared[0];
#pragma unroll
        for (int w = 1; w < PREPARE_WARPS; ++w) squares += shared[w];
        m.factor = 1.0f / sqrtf(squares / static_cast<float>(a.n) + a.norm.eps);
        // Values, where they are wanted too: read once more, for the few rows that have them.
        for (int i = own; a.plain && i < a.n; i += QUADS) {
            const float4 v = quad_of<true>(a.x, i, a.n), w = quad_of(a.norm.weight, i, a.n);
            auto one = [&](float x, float weight) { return RowBatch::one(a, m, x, 0.0f, weight, 0.0f); };
            *reinterpret_cast<float4*>(a.plain + i) = make_float4(one(v.x, w.x), one(v.y, w.y), one(v.z, w.z), one(v.w, w.w));
        }
        return m.factor;
    }
    __syncthreads();
    return 1.0f;
}
