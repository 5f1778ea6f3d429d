// Products of many tokens in the int8 profile: a block has 128 rows of the result (64 of a gate and as many of its up) and
// 8 · NT tokens. Units of weights and tokens are copied into one of two stages while the other one is multiplied. A warp
// has 32 of the rows: a slab's A fragments stay in registers while the tokens' B fragments pass.
//
// What follows a step of 16 × 8 × 32 is what these kernels wait for. Where scales of groups are integers, its four values
// cost four integer multiply-adds, and the rest is for 256 columns. Elsewhere they cost eight fused multiply-adds: sums begin
// at MAGIC, whose bits as an integer count like those of a float, so that one of these makes s · Σ of it, exactly rounded,
// where a conversion and a product would be two. Codes with a zero become signed, so that every sum begins at one number.
#pragma once
#include "../matmul.cuh"
#include "../qt16.cuh"
#include "../qt16/integer.cuh"

struct ByteTileMatrix {
    const uint8_t* w;   // QT16
    const float* bias;  // [rows], or null
    float* out;         // [tokens][out_stride]
    int rows;
    int tiles;  // of rows
    int out_stride;
    int unused;
};

struct ByteTileArgs {
    ByteTileMatrix m[3];     // of one type, those that are missing without tiles; a gate and its up are the first two
    const half* x;           // tiles, see `Q8Tile`
    const float* x_unscale;  // [tokens]: what each row's products are multiplied with
    int cols;
    int x_stride;  // halves
    int tokens;
    int segments;
    int act;  // gated
    int finish;
    float factor;
    float soft_cap;
};

namespace byte_tiles {

constexpr int WARPS = 4, THREADS = WARPS * WARP;
// Row groups of a warp: neighbours, or those of the same rows of a gate and its up; and of a block.
constexpr int MT = 2, GROUPS = MT * WARPS;

// 3 · 2^22 and its bits: integers of magnitude below 2^22 may be added to either.
constexpr float MAGIC = 12582912.0f;
constexpr int MAGIC_BITS = 0x4b400000;

// D = A · B + BEGIN of codes as they are, or signed; of half as many, from zero.
template <bool SIGNED, int BEGIN>
__device__ __forceinline__ void multiply_k32(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#define MINFER_STEP(TYPE) \
    asm("mma.sync.aligned.m16n8k32.row.col.s32." TYPE ".s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};" \
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(BEGIN))
    if (SIGNED) {
        MINFER_STEP("s8");
    } else {
        MINFER_STEP("u8");
    }
#undef MINFER_STEP
}
template <bool SIGNED>
__device__ __forceinline__ void multiply_k16(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
#define MINFER_STEP(TYPE) \
    asm("mma.sync.aligned.m16n8k16.row.col.s32." TYPE ".s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};" \
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) \
        : "r"(a0), "r"(a1), "r"(b), "r"(0))
    if (SIGNED) {
        MINFER_STEP("s8");
    } else {
        MINFER_STEP("u8");
    }
#undef MINFER_STEP
}

// Codes of a fragment less the type's zero, signed. Row g + 8 is times BYTE_UPPER.
template <class U>
__device__ __forceinline__ void make_signed(uint32_t (&a)[4]) {
    if (U::ZERO == 0) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        constexpr int upper = U::ZERO * U::Plane::BYTE_UPPER;
        const uint32_t on = 128 - (i % 2 ? upper : U::ZERO);
        a[i] = (a[i] + on * 0x01010101u) ^ 0x80808080u;
    }
}

// A copy of 16 bytes, both addresses as far from what is given.
template <int ON_TO, int ON_FROM>
__device__ __forceinline__ void copy16(uint32_t to, const uint8_t* from) {
    asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %3], 16;" ::"r"(to), "l"(from), "n"(ON_TO), "n"(ON_FROM)
                 : "memory");
}

// BYTES from each of THREADS threads' first 16 on; `thread` is this one's number.
template <int THREADS, int BYTES, int ON_TO, int ON_FROM, int AT = 0>
__device__ __forceinline__ void copy_all(uint32_t to, const uint8_t* from, int thread) {
    if constexpr (AT + THREADS * 16 <= BYTES) {
        copy16<ON_TO + AT, ON_FROM + AT>(to, from);
        copy_all<THREADS, BYTES, ON_TO, ON_FROM, AT + THREADS * 16>(to, from, thread);
    } else if constexpr (AT < BYTES) {
        if (thread * 16 < BYTES - AT) copy16<ON_TO + AT, ON_FROM + AT>(to, from);
    }
}

template <int V>
struct Constant {
    static constexpr int value = V;
};

template <class U, int NT>
struct Layout {
    static constexpr int TOKENS = 8 * NT, PARTS = TOKENS / Q8Tile::PART;
    // Scales and minima of a slab are SETS of those of two groups.
    static constexpr int SETS = U::GROUPS / 2;
    static constexpr int SUMS_OF_PART = U::INTEGER ? Q8Tile::WHOLE : Q8Tile::SUMS;
    static constexpr int SUMS = U::OFFSET ? PARTS * SUMS_OF_PART : 0;
    // Of 32 tokens: slabs, and scales, of which integers need those of one group.
    static constexpr int X_PART = Q8Tile::SCALES_AT + (U::INTEGER ? 1 : 8) * Q8Tile::SCALES;
    static constexpr int CODES = U::Plane::BYTES, META = U::BYTES - CODES;
    static constexpr int X_AT = GROUPS * CODES, SUMS_AT = X_AT + PARTS * X_PART, STAGE = SUMS_AT + SUMS;
    // What rows of a unit are multiplied with: {scales of row g, of row g + 8} of two groups, integers if they are,
    // [row group][slab][g]; minima as A fragments, [row group][lane]; their factors, and what integers are times, [row group][row].
    static constexpr int SCALES = GROUPS * 4 * 8 * 16 * SETS;
    static constexpr int MINIMA = U::OFFSET ? GROUPS * WARP * (U::INTEGER ? 8 * SETS : 16) : 0;
    static constexpr int FACTORS = U::INTEGER && U::OFFSET ? GROUPS * QT_ROWS * 4 : 0;
    static constexpr int UNITS_AT = SCALES + MINIMA + FACTORS, UNITS = U::INTEGER ? GROUPS * QT_ROWS * 4 : 0;
    static constexpr int TABLE = UNITS_AT + UNITS, METAS = GROUPS * META;
    static constexpr int TABLES_AT = 2 * STAGE, METAS_AT = TABLES_AT + 2 * TABLE, SHARED = METAS_AT + 2 * METAS;
    // Floats of a warp's result, [token][row], padded so that a fragment's values lie in different banks.
    static constexpr int OUT_STRIDE = MT * QT_ROWS + 4, OUT = TOKENS * OUT_STRIDE;
    static_assert(4 * WARPS * OUT <= 2 * STAGE, "the result takes the place of the stages");
};

// The matrix of a tile of rows; `tile` becomes its number there.
template <bool GATED>
__device__ __forceinline__ int matrix_of(const ByteTileArgs& a, int& tile) {
    int which = 0;
    while (!GATED && which < 2 && tile >= a.m[which].tiles) tile -= a.m[which++].tiles;
    return which;
}

// The row of B fragments that a lane names is of token lane % 8, chunk lane / 8.
__device__ __forceinline__ int fragment_row(int lane) { return lane % 8 * 64 + ((lane / 8) ^ (lane % 8 / 2)) * 16; }

// What minima need: this lane's part of their A fragment, factors from row g on, B fragments of the tokens' sums.
template <class U>
struct Least {
    const uint8_t* minima;
    const float* factors;
    const uint8_t* sums;

    __device__ __forceinline__ void fragment(uint32_t (&a)[4]) const {
        const uint2 first = *reinterpret_cast<const uint2*>(minima);
        const uint2 second = U::GROUPS == 2 ? first : *reinterpret_cast<const uint2*>(minima + 8);
        a[0] = first.x, a[1] = first.y, a[2] = second.x, a[3] = second.y;
    }
    // Of eight tokens.
    __device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], int n) const {
        const uint2 b = *reinterpret_cast<const uint2*>(sums + n * 8 * 32);
        mma_m16n8k16_first(d, a, b.x, b.y);
    }
};

// Scales of token 2t and of the next one of eight tokens, where those of a group of all are.
__device__ __forceinline__ float2 token_scales(const uint8_t* scales, int n, int t) {
    return *reinterpret_cast<const float2*>(scales + (2 * t + n % 4 * 8) * 4);
}

// A unit of a row group whose scales are integers times all tokens: one integer for each value, then acc ← fma(a, d · it, acc).
// `x`: the tokens' slabs, `codes` and `scales` those of the row group, `scales` and what they are times from row g on.
template <class U, int NT>
__device__ __forceinline__ void add_integers(float (&acc)[NT][4], const uint8_t* x, const uint8_t* codes, const int4* scales,
                                             const float* units, const Least<U>& least, int lane) {
    constexpr int SETS = U::GROUPS / 2;
    constexpr bool SIGNED = U::ZERO != 0;
    const int t = lane % 4, b_row = fragment_row(lane);
    // A slab's codes and scales are read while the one before is multiplied.
    QtRaw raw;
    int4 next[SETS];
    auto read = [&](int slab) {
        U::Plane::template load_slab<FromShared>(raw, codes, lane, slab);
#pragma unroll
        for (int h = 0; h < SETS; ++h) next[h] = scales[(slab * SETS + h) * 8];
    };
    int sum[NT][4] = {};
    read(0);
#pragma unroll 2
    for (int slab = 0; slab < 4; ++slab) {
        uint32_t w[2][4];
        int s[SETS][4];
#pragma unroll
        for (int block = 0; block < 2; ++block) {
            U::Plane::bytes(w[block], raw, block);
            make_signed<U>(w[block]);
        }
#pragma unroll
        for (int h = 0; h < SETS; ++h) s[h][0] = next[h].x, s[h][1] = next[h].y, s[h][2] = next[h].z, s[h][3] = next[h].w;
        // Behind the last one, the first again: read for nothing.
        read((slab + 1) % 4);
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            uint32_t b[4];
            ldmatrix_x4(b, x + n / 4 * Layout<U, NT>::X_PART + slab * Q8Tile::SLAB + b_row + n % 4 * 8 * 64);
#pragma unroll
            for (int block = 0; block < 2; ++block) {
#pragma unroll
                for (int h = 0; h < SETS; ++h) {
                    // Group of the slab.
                    const int j = block * SETS + h;
                    int d[4];
                    if (SETS == 1) {
                        multiply_k32<SIGNED, 0>(d, w[block], b[2 * block], b[2 * block + 1]);
                    } else {
                        multiply_k16<SIGNED>(d, w[block][2 * h], w[block][2 * h + 1], b[2 * block + h]);
                    }
#pragma unroll
                    for (int e = 0; e < 4; ++e) sum[n][e] += s[j / 2][e / 2 * 2 + j % 2] * d[e];
                }
            }
        }
    }
    const float unit[2] = {units[0], units[8]};
    float factor[2] = {};
    uint32_t m[4];
    if constexpr (U::OFFSET) {
        factor[0] = least.factors[0];
        factor[1] = least.factors[8];
        least.fragment(m);
    }
#pragma unroll
    for (int n = 0; n < NT; ++n) {
        const float2 v = token_scales(x + n / 4 * Layout<U, NT>::X_PART + Q8Tile::SCALES_AT, n, t);
        const float scale[2] = {v.x, v.y};
        float d[4];
        if constexpr (U::OFFSET) least.multiply(d, m, n);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float y = unit[e / 2] * static_cast<float>(sum[n][e]);
            if (U::OFFSET) y = fmaf(factor[e / 2], d[e], y);
            acc[n][e] = fmaf(scale[e % 2], y, acc[n][e]);
        }
    }
}

// A unit of a warp's row groups times all tokens, of types whose scales are no integers: a group after the other.
template <class U, int NT>
__device__ __forceinline__ void add_floats(float (&acc)[MT][NT][4], const uint8_t* x, const uint8_t* stage, const float4* scales,
                                           int warp, int lane) {
    static_assert(U::GROUPS == 2, "groups of 32");
    constexpr bool SIGNED = U::ZERO != 0;
    using L = Layout<U, NT>;
    const int t = lane % 4, b_row = fragment_row(lane);
    // A slab's codes and scales are read while the one before is multiplied.
    QtRaw raw[MT];
    float4 next[MT];
    auto read = [&](int slab) {
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            const int slot = MT * warp + m;
            U::Plane::template load_slab<FromShared>(raw[m], stage + slot * L::CODES, lane, slab);
            next[m] = scales[(slot * 4 + slab) * 8];
        }
    };
    read(0);
#pragma unroll 1
    for (int slab = 0; slab < 4; ++slab) {
        uint32_t w[MT][2][4];
        float s[MT][4], minus[MT][4];
#pragma unroll
        for (int m = 0; m < MT; ++m) {
#pragma unroll
            for (int block = 0; block < 2; ++block) {
                U::Plane::bytes(w[m][block], raw[m], block);
                make_signed<U>(w[m][block]);
            }
            s[m][0] = next[m].x, s[m][1] = next[m].y, s[m][2] = next[m].z, s[m][3] = next[m].w;
#pragma unroll
            for (int i = 0; i < 4; ++i) minus[m][i] = s[m][i] * -MAGIC;
        }
        // Behind the last one, the first again: read for nothing.
        read((slab + 1) % 4);
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            const uint8_t* part = x + n / 4 * L::X_PART;
            uint32_t b[4];
            ldmatrix_x4(b, part + slab * Q8Tile::SLAB + b_row + n % 4 * 8 * 64);
            const uint8_t* scales_of = part + Q8Tile::SCALES_AT + 2 * slab * Q8Tile::SCALES;
            const float2 first = token_scales(scales_of, n, t), second = token_scales(scales_of + Q8Tile::SCALES, n, t);
            const float scale[2][2] = {{first.x, second.x}, {first.y, second.y}};
#pragma unroll
            for (int m = 0; m < MT; ++m) {
#pragma unroll
                for (int block = 0; block < 2; ++block) {
                    int d[4];
                    multiply_k32<SIGNED, MAGIC_BITS>(d, w[m][block], b[2 * block], b[2 * block + 1]);
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const int at = e / 2 * 2 + block;
                        const float v = fmaf(s[m][at], __int_as_float(d[e]), minus[m][at]);
                        acc[m][n][e] = fmaf(scale[e % 2][block], v, acc[m][n][e]);
                    }
                }
            }
        }
    }
}

template <class U, bool GATED, int NT>
__device__ __forceinline__ void body(const ByteTileArgs& a) {
    using L = Layout<U, NT>;
    constexpr int SETS = L::SETS, TOKENS = L::TOKENS;
    extern __shared__ __align__(128) uint8_t memory[];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    int tile = blockIdx.y;
    const int which = matrix_of<GATED>(a, tile);
    const int units = a.cols / QT_K, segments = a.segments;

    auto weights_of = [&](int slot) {
        const ByteTileMatrix& m = a.m[GATED ? slot % 2 : which];
        const int group = GATED ? tile * (GROUPS / 2) + slot / 2 : tile * GROUPS + slot;
        // The last group instead of those beyond the end; its sums are dropped.
        return m.w + static_cast<size_t>(min(group, (m.rows + QT_ROWS - 1) / QT_ROWS - 1)) * units * U::BYTES;
    };
    const uint32_t shared = shared_address(memory);
    const int first_part = blockIdx.x * L::PARTS % (Q8Tile::TOKENS / Q8Tile::PART);
    const size_t x_row = static_cast<size_t>(blockIdx.x) * TOKENS / Q8Tile::TOKENS * Q8Tile::TOKENS;
    const uint8_t* x_from = reinterpret_cast<const uint8_t*>(a.x + x_row * a.x_stride);
    constexpr int SUMS_FROM = !U::INTEGER ? Q8Tile::SUMS_AT : SETS == 1 ? Q8Tile::WHOLE_AT : Q8Tile::WHOLE_16_AT;
    const uint8_t* sums_from = x_from + SUMS_FROM + first_part * L::SUMS_OF_PART;
    x_from += first_part * Q8Tile::SLABS;
    // A warp copies, and prepares, the weights of its row groups: codes of a unit, and what scales them, of the next one.
    const uint8_t* w_from[MT];
#pragma unroll
    for (int m = 0; m < MT; ++m) w_from[m] = weights_of(MT * warp + m) + lane * 16;
    auto copy_codes = [&](uint32_t stage) {
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            copy_all<WARP, L::CODES, 0, 0>(stage + (MT * warp + m) * L::CODES + lane * 16, w_from[m], lane);
            w_from[m] += U::BYTES;
        }
    };
    auto copy_meta = [&](int parity, auto units_on) {
        constexpr int FROM = decltype(units_on)::value * U::BYTES + L::CODES;
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            const uint32_t to = shared + parity * L::METAS + (MT * warp + m) * L::META + lane * 16;
            copy_all<WARP, L::META, L::METAS_AT, FROM>(to, w_from[m], lane);
        }
    };
    // All threads copy tokens.
    x_from += threadIdx.x * 16;
    sums_from += threadIdx.x * 16;
    auto copy_tokens = [&](uint32_t stage) {
        const uint32_t to = stage + threadIdx.x * 16;
        copy_all<THREADS, L::X_PART, L::X_AT, 0>(to, x_from, threadIdx.x);
        if constexpr (L::PARTS == 2) {
            copy_all<THREADS, L::X_PART, L::X_AT + L::X_PART, Q8Tile::SLABS>(to, x_from, threadIdx.x);
        }
        if (U::OFFSET) copy_all<THREADS, L::SUMS, L::SUMS_AT, 0>(to, sums_from, threadIdx.x);
        x_from += Q8Tile::UNIT;
        sums_from += Q8Tile::UNIT;
    };
    // Weights depend on no kernel before: they are asked for before waiting for one.
    copy_meta(0, Constant<0>());
    copy_commit();
    if (units > 1) copy_meta(1, Constant<1>());
    copy_codes(shared);
    grid_wait();
    copy_tokens(shared);
    copy_commit();
    copy_wait<1>();
    // Each warp reads what its own lanes copied.
    __syncwarp();
    auto ask = [&](int u) {
        const uint32_t next = shared + u % 2 * L::STAGE;
        if (u + 1 < units) copy_meta((u + 1) % 2, Constant<1>());
        copy_codes(next);
        copy_tokens(next);
        copy_commit();
    };

    // Of the rows of a group.
    auto prepare_group = [&](int slot, int u) {
        uint8_t* const scale_table = memory + L::TABLES_AT + u % 2 * L::TABLE;
        uint8_t* const minima_table = scale_table + L::SCALES;
        uint8_t* const factor_table = minima_table + L::MINIMA;
        float* const unit_table = reinterpret_cast<float*>(scale_table + L::UNITS_AT) + slot * QT_ROWS;
        const uint8_t* const meta = memory + L::METAS_AT + u % 2 * L::METAS + slot * L::META;
        constexpr float upper = 1.0f / U::Plane::BYTE_UPPER;
        if constexpr (U::BY_ROWS) {
            // A lane has half of a row.
            const int row = lane % QT_ROWS, half = lane / QT_ROWS;
            int s[4];
            uint32_t m[2];
            float unit, factor;
            U::template of_row<FromShared>(s, unit, m, factor, meta, row, half);
            int2* const to = reinterpret_cast<int2*>(scale_table) + ((slot * 4 + 2 * half) * 8 + row % 8) * 2 + row / 8;
            uint32_t* const m_to = reinterpret_cast<uint32_t*>(minima_table) + (slot * WARP + row % 8 * 4 + 2 * half) * 2 + row / 8;
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                to[j * 16] = make_int2(s[2 * j], s[2 * j + 1]);
                m_to[j * 2] = m[j];
            }
            if (half == 0) {
                reinterpret_cast<float*>(factor_table)[slot * QT_ROWS + row] = factor;
                unit_table[row] = row < 8 ? unit : unit * upper;
            }
        } else {
            QtRaw raw;
            U::template load_meta<FromShared>(raw, meta - L::CODES, lane);
            const int place = (slot * 4 + t) * SETS * 8 + g;
            if constexpr (U::INTEGER) {
                int s[2][U::GROUPS];
                float unit[2];
                U::whole_scales(s, unit, raw, lane);
#pragma unroll
                for (int h = 0; h < SETS; ++h) {
                    int4* to = reinterpret_cast<int4*>(scale_table) + place + h * 8;
                    *to = make_int4(s[0][2 * h], s[0][2 * h + 1], s[1][2 * h], s[1][2 * h + 1]);
                }
                if (t == 0) {
                    unit_table[g] = unit[0];
                    unit_table[g + 8] = unit[1] * upper;
                }
            } else {
                float s[2][U::GROUPS];
                U::group_scales(s, raw, lane);
#pragma unroll
                for (int h = 0; h < SETS; ++h) {
                    float4* to = reinterpret_cast<float4*>(scale_table) + place + h * 8;
                    *to = make_float4(s[0][2 * h], s[0][2 * h + 1], s[1][2 * h] * upper, s[1][2 * h + 1] * upper);
                }
            }
            if constexpr (U::OFFSET) {
                if constexpr (U::INTEGER) {
                    uint32_t m[4];
                    float factor[2];
                    U::minima(m, factor, raw, lane);
                    uint2* const to = reinterpret_cast<uint2*>(minima_table) + (slot * WARP + lane) * SETS;
#pragma unroll
                    for (int h = 0; h < SETS; ++h) to[h] = make_uint2(m[2 * h], m[2 * h + 1]);
                    if (t == 0) {
                        float* factors = reinterpret_cast<float*>(factor_table) + slot * QT_ROWS + g;
                        factors[0] = factor[0];
                        factors[8] = factor[1];
                    }
                } else {
                    float m[2][2];
                    U::float_minima(m, raw);
                    float4* const to = reinterpret_cast<float4*>(minima_table) + slot * WARP + lane;
                    *to = make_float4(m[0][0], m[1][0], m[0][1], m[1][1]);
                }
            }
        }
    };

    auto prepare_rows = [&](int u) {
#pragma unroll
        for (int m = 0; m < MT; ++m) prepare_group(MT * warp + m, u);
    };
    prepare_rows(0);

    float acc[MT][NT][4], sum[MT][NT][4];
#pragma unroll
    for (int m = 0; m < MT; ++m) {
#pragma unroll
        for (int n = 0; n < NT; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[m][n][e] = sum[m][n][e] = 0.0f;
        }
    }
    int segment = 0, end = segment_begin(units, segments, 1);
#pragma unroll 1
    for (int u = 0; u < units; ++u) {
        uint8_t* const stage = memory + u % 2 * L::STAGE;
        copy_wait<0>();
        __syncthreads();
        if (u + 1 < units) ask(u + 1);
        if (u + 1 < units) prepare_rows(u + 1);
        const uint8_t* const scale_table = memory + L::TABLES_AT + u % 2 * L::TABLE;
        const uint8_t* const minima_table = scale_table + L::SCALES;
        const uint8_t* const factor_table = minima_table + L::MINIMA;
        const uint8_t* const x = stage + L::X_AT;
        const uint8_t* const sums = stage + L::SUMS_AT + g * 32 + t * 8;
        if constexpr (U::INTEGER) {
            // One row group after the other: the integers of both would not leave the registers that it takes to be fast.
            const int4* const scales = reinterpret_cast<const int4*>(scale_table) + g;
            const float* const unit_table = reinterpret_cast<const float*>(scale_table + L::UNITS_AT);
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                const int slot = MT * warp + m;
                const Least<U> least = {minima_table + (slot * WARP + lane) * SETS * 8,
                                        reinterpret_cast<const float*>(factor_table) + slot * QT_ROWS + g, sums};
                add_integers<U, NT>(acc[m], x, stage + slot * L::CODES, scales + slot * 4 * SETS * 8,
                                    unit_table + slot * QT_ROWS + g, least, lane);
            }
        } else {
            add_floats<U, NT>(acc, x, stage, reinterpret_cast<const float4*>(scale_table) + g, warp, lane);
        }
        if constexpr (U::OFFSET && !U::INTEGER) {
            const uint8_t* const pairs = stage + L::SUMS_AT + g * 64 + t * 16;
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                const float4 v = reinterpret_cast<const float4*>(minima_table)[(MT * warp + m) * WARP + lane];
                const float w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                for (int n = 0; n < NT; ++n) {
                    const float4 b = *reinterpret_cast<const float4*>(pairs + n * 8 * 64);
                    float d[4] = {};
                    mma_m16n8k8(d, w, b.x, b.y);
                    mma_m16n8k8(d, w, b.z, b.w);
#pragma unroll
                    for (int e = 0; e < 4; ++e) acc[m][n][e] += d[e];
                }
            }
        }
        if (u + 1 == end) {
            // Segments in ascending order.
#pragma unroll
            for (int m = 0; m < MT; ++m) {
#pragma unroll
                for (int n = 0; n < NT; ++n) {
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        sum[m][n][e] += acc[m][n][e];
                        acc[m][n][e] = 0.0f;
                    }
                }
            }
            ++segment;
            end = segment_begin(units, segments, segment + 1);
        }
    }

    // Through shared memory, where stages were: then a lane has four rows of the warp, or of a gate and its up, for every
    // EACH-th token.
    const int token0 = blockIdx.x * TOKENS;
    __syncthreads();
    float* const own = reinterpret_cast<float*>(memory) + warp * L::OUT;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
        const float2 unscale = *reinterpret_cast<const float2*>(a.x_unscale + token0 + 8 * n + 2 * t);
#pragma unroll
        for (int m = 0; m < MT; ++m) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                own[(8 * n + 2 * t + e % 2) * L::OUT_STRIDE + m * QT_ROWS + g + e / 2 * 8] =
                    sum[m][n][e] * (e % 2 ? unscale.y : unscale.x);
            }
        }
    }
    __syncwarp();
    constexpr int ROWS = GATED ? QT_ROWS : MT * QT_ROWS, LANES = ROWS / 4, EACH = WARP / LANES;
    const ByteTileMatrix& matrix = a.m[which];
    const int row = (tile * WARPS + warp) * ROWS + lane % LANES * 4, rows = min(4, matrix.rows - row);
    const int tokens = min(TOKENS, a.tokens - token0);
    const float* from = own + lane / LANES * L::OUT_STRIDE + lane % LANES * 4;
    float* out = matrix.out + static_cast<size_t>(token0 + lane / LANES) * matrix.out_stride + row;
    const bool together = rows == 4 && reinterpret_cast<size_t>(out) % 16 == 0 && matrix.out_stride % 4 == 0;
    float bias[4], up_bias[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        bias[i] = matrix.bias && i < rows ? matrix.bias[row + i] : 0.0f;
        up_bias[i] = GATED && a.m[1].bias && i < rows ? a.m[1].bias[row + i] : 0.0f;
    }
    const Finish finish = static_cast<Finish>(a.finish);
#pragma unroll 4
    for (int token = lane / LANES; token < tokens; token += EACH) {
        float y[4], up[4] = {}, before[4] = {};
        *reinterpret_cast<float4*>(y) = *reinterpret_cast<const float4*>(from);
        if (GATED) *reinterpret_cast<float4*>(up) = *reinterpret_cast<const float4*>(from + QT_ROWS);
        if (!GATED && finish == Finish::Residual) {
            if (together) {
                *reinterpret_cast<float4*>(before) = *reinterpret_cast<const float4*>(out);
            } else {
#pragma unroll
                for (int i = 0; i < 4; ++i) before[i] = i < rows ? out[i] : 0.0f;
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (matrix.bias) y[i] += bias[i];
            if (GATED && a.m[1].bias) up[i] += up_bias[i];
            y[i] = GATED ? activate(static_cast<Act>(a.act), y[i]) * up[i]
                         : finish_value(finish, y[i], a.factor, a.soft_cap, before[i]);
        }
        if (together) {
            *reinterpret_cast<float4*>(out) = *reinterpret_cast<const float4*>(y);
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (i < rows) out[i] = y[i];
            }
        }
        from += EACH * L::OUT_STRIDE;
        out += static_cast<size_t>(EACH) * matrix.out_stride;
    }
}

}  // namespace byte_tiles
