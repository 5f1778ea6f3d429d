// Products of many tokens in the int8 profile: a block has 128 rows of the result (64 of a gate and as many of its up) and
// 8 · NT tokens. Units of weights and tokens are copied into one of two stages while the other one is multiplied. A warp
// has 32 of the rows: a slab's A fragments stay in registers while the tokens' B fragments pass.
//
// The four values of a step of 16 × 8 × 32 cost eight fused multiply-adds, which, with the step, are what these kernels wait
// for. So sums begin at MAGIC, whose bits as an integer count like those of a float: one fused multiply-add makes s · Σ of
// it, exactly rounded, where a conversion and a product would be two. Codes with a zero become signed, so that every sum
// begins there.
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

// D = A · B + MAGIC_BITS of codes as they are, or signed.
template <bool SIGNED>
__device__ __forceinline__ void multiply_k32(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#define MINFER_STEP(TYPE) \
    asm("mma.sync.aligned.m16n8k32.row.col.s32." TYPE ".s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};" \
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(MAGIC_BITS))
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
        : "r"(a0), "r"(a1), "r"(b), "r"(MAGIC_BITS))
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
    // Scales and minima of a slab, or parts of sums of a token, are SETS of those of two groups.
    static constexpr int SETS = U::GROUPS / 2;
    static constexpr int SUMS = U::OFFSET ? PARTS * SETS * Q8Tile::SUMS : 0;
    static constexpr int CODES = U::Plane::BYTES, META = U::BYTES - CODES;
    static constexpr int X_AT = GROUPS * CODES, SUMS_AT = X_AT + PARTS * Q8Tile::SLABS, STAGE = SUMS_AT + SUMS;
    // What rows of a unit are multiplied with: {scales of row g, of row g + 8} of two groups, [row group][slab][g]; minima
    // as A fragments, [row group][lane]; their factors, [row group][row].
    static constexpr int SCALES = GROUPS * 4 * 8 * 16 * SETS;
    static constexpr int MINIMA = U::OFFSET ? GROUPS * WARP * 16 * SETS : 0;
    static constexpr int FACTORS = U::OFFSET ? GROUPS * QT_ROWS * 4 : 0;
    static constexpr int TABLE = SCALES + MINIMA + FACTORS, METAS = GROUPS * META;
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

template <class U, bool GATED, int NT>
__device__ __forceinline__ void body(const ByteTileArgs& a) {
    using L = Layout<U, NT>;
    constexpr int SETS = L::SETS, TOKENS = L::TOKENS;
    constexpr bool SIGNED = U::ZERO != 0;
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
    const uint8_t* sums_from = x_from + (SETS == 1 ? Q8Tile::SUMS_AT : Q8Tile::SUMS_16_AT) + first_part * SETS * Q8Tile::SUMS;
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
        copy_all<THREADS, L::PARTS * Q8Tile::SLABS, L::X_AT, 0>(to, x_from, threadIdx.x);
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
        const uint8_t* const meta = memory + L::METAS_AT + u % 2 * L::METAS + slot * L::META;
        constexpr float upper = 1.0f / U::Plane::BYTE_UPPER;
        if constexpr (U::BY_ROWS) {
            // A lane has half of a row.
            const int row = lane % QT_ROWS, half = lane / QT_ROWS;
            float s[4], m[4], factor;
            U::template of_row<FromShared>(s, m, factor, meta, row, half);
            const float scale = row < 8 ? 1.0f : upper;
            float2* const to = reinterpret_cast<float2*>(scale_table) + ((slot * 4 + 2 * half) * 8 + row % 8) * 2 + row / 8;
            float* const m_to = reinterpret_cast<float*>(minima_table) + (slot * WARP + row % 8 * 4 + 2 * half) * 4 + row / 8;
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                to[j * 16] = make_float2(s[2 * j] * scale, s[2 * j + 1] * scale);
                m_to[j * 4] = m[2 * j];
                m_to[j * 4 + 2] = m[2 * j + 1];
            }
            if (half == 0) reinterpret_cast<float*>(factor_table)[slot * QT_ROWS + row] = factor;
        } else {
            QtRaw raw;
            U::template load_meta<FromShared>(raw, meta - L::CODES, lane);
            float s[2][U::GROUPS];
            U::integer_scales(s, raw, lane);
#pragma unroll
            for (int h = 0; h < SETS; ++h) {
                float4* to = reinterpret_cast<float4*>(scale_table) + ((slot * 4 + t) * SETS + h) * 8 + g;
                *to = make_float4(s[0][2 * h], s[0][2 * h + 1], s[1][2 * h] * upper, s[1][2 * h + 1] * upper);
            }
            if constexpr (U::OFFSET) {
                float m[2][U::GROUPS], factor[2];
                U::minima(m, factor, raw, lane);
#pragma unroll
                for (int h = 0; h < SETS; ++h) {
                    float4* to = reinterpret_cast<float4*>(minima_table) + (slot * WARP + lane) * SETS + h;
                    *to = make_float4(m[0][2 * h], m[1][2 * h], m[0][2 * h + 1], m[1][2 * h + 1]);
                }
                if (t == 0) {
                    float* to = reinterpret_cast<float*>(factor_table) + slot * QT_ROWS + g;
                    to[0] = factor[0];
                    to[8] = factor[1];
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
    // The row of B fragments that a lane names is of token lane % 8, chunk lane / 8.
    const int b_row = lane % 8 * 64 + ((lane / 8) ^ (lane % 8 / 2)) * 16;
    const int b_scale = Q8Tile::CODES + 2 * t * 8;
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
        // A slab's codes and scales are read while the one before is multiplied.
        QtRaw raw[MT];
        float4 scales[MT][SETS];
        auto read = [&](int slab) {
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                const int slot = MT * warp + m;
                U::Plane::template load_slab<FromShared>(raw[m], stage + slot * L::CODES, lane, slab);
#pragma unroll
                for (int h = 0; h < SETS; ++h) {
                    scales[m][h] = reinterpret_cast<const float4*>(scale_table)[((slot * 4 + slab) * SETS + h) * 8 + g];
                }
            }
        };
        read(0);
#pragma unroll 1
        for (int slab = 0; slab < 4; ++slab) {
            uint32_t w[MT][2][4];
            float s[MT][SETS][4], minus[MT][SETS][4];
#pragma unroll
            for (int m = 0; m < MT; ++m) {
#pragma unroll
                for (int block = 0; block < 2; ++block) {
                    U::Plane::bytes(w[m][block], raw[m], block);
                    make_signed<U>(w[m][block]);
                }
#pragma unroll
                for (int h = 0; h < SETS; ++h) {
                    const float4 v = scales[m][h];
                    s[m][h][0] = v.x, s[m][h][1] = v.y, s[m][h][2] = v.z, s[m][h][3] = v.w;
#pragma unroll
                    for (int i = 0; i < 4; ++i) minus[m][h][i] = s[m][h][i] * -MAGIC;
                }
            }
            // Behind the last one, the first again: read for nothing.
            read((slab + 1) % 4);
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                const uint8_t* at = x + n / 4 * Q8Tile::SLABS + slab * Q8Tile::SLAB;
                uint32_t b[4];
                ldmatrix_x4(b, at + b_row + n % 4 * 8 * 64);
                // Of token 2t and of the next one: scales of the slab's groups of 32.
                const float4 v = *reinterpret_cast<const float4*>(at + b_scale + n % 4 * 8 * 8);
                const float scale[2][2] = {{v.x, v.y}, {v.z, v.w}};
#pragma unroll
                for (int m = 0; m < MT; ++m) {
#pragma unroll
                    for (int block = 0; block < 2; ++block) {
#pragma unroll
                        for (int h = 0; h < SETS; ++h) {
                            // Group of the slab.
                            const int j = block * SETS + h;
                            int d[4];
                            if (SETS == 1) {
                                multiply_k32<SIGNED>(d, w[m][block], b[2 * block], b[2 * block + 1]);
                            } else {
                                multiply_k16<SIGNED>(d, w[m][block][2 * h], w[m][block][2 * h + 1], b[2 * block + h]);
                            }
#pragma unroll
                            for (int e = 0; e < 4; ++e) {
                                const int at = e / 2 * 2 + j % 2;
                                const float v = fmaf(s[m][j / 2][at], __int_as_float(d[e]), minus[m][j / 2][at]);
                                acc[m][n][e] = fmaf(scale[e % 2][block], v, acc[m][n][e]);
                            }
                        }
                    }
                }
            }
        }
        if constexpr (U::OFFSET) {
            const uint8_t* const sums = stage + L::SUMS_AT + g * 64 + t * 16;
            float least[MT][SETS][4], factor[MT][2];
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                const int slot = MT * warp + m;
#pragma unroll
                for (int h = 0; h < SETS; ++h) {
                    const float4 v = reinterpret_cast<const float4*>(minima_table)[(slot * WARP + lane) * SETS + h];
                    least[m][h][0] = v.x, least[m][h][1] = v.y, least[m][h][2] = v.z, least[m][h][3] = v.w;
                }
                const float* factors = reinterpret_cast<const float*>(factor_table) + slot * QT_ROWS + g;
                factor[m][0] = factors[0];
                factor[m][1] = factors[8];
            }
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                const uint8_t* at = sums + (n / 4 * SETS * Q8Tile::PART + n % 4 * 8) * 64;
                float d[MT][4];
#pragma unroll
                for (int h = 0; h < SETS; ++h) {
                    const float4 v = *reinterpret_cast<const float4*>(at + h * Q8Tile::SUMS);
#pragma unroll
                    for (int m = 0; m < MT; ++m) {
                        if (h == 0) {
                            mma_m16n8k8_first(d[m], least[m][h], v.x, v.y);
                        } else {
                            mma_m16n8k8(d[m], least[m][h], v.x, v.y);
                        }
                        mma_m16n8k8(d[m], least[m][h], v.z, v.w);
                    }
                }
#pragma unroll
                for (int m = 0; m < MT; ++m) {
#pragma unroll
                    for (int e = 0; e < 4; ++e) acc[m][n][e] = fmaf(factor[m][e / 2], d[m][e], acc[m][n][e]);
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

    // Through shared memory, where stages were: then a lane has a row of the warp, or one of a gate and its up.
    __syncthreads();
    float* const own = reinterpret_cast<float*>(memory) + warp * L::OUT;
#pragma unroll
    for (int m = 0; m < MT; ++m) {
#pragma unroll
        for (int n = 0; n < NT; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                own[(8 * n + 2 * t + e % 2) * L::OUT_STRIDE + m * QT_ROWS + g + e / 2 * 8] = sum[m][n][e];
            }
        }
    }
    __syncwarp();
    constexpr int EACH = GATED ? 2 : 1, LANES = WARP / EACH;
    const ByteTileMatrix& matrix = a.m[which];
    const int row = (tile * WARPS + warp) * LANES + lane % LANES;
    if (row >= matrix.rows) return;
    const int token0 = blockIdx.x * TOKENS + lane / LANES, tokens = min(TOKENS, a.tokens - static_cast<int>(blockIdx.x) * TOKENS);
    const float* from = own + lane / LANES * L::OUT_STRIDE + lane % LANES;
    float* out = matrix.out + static_cast<size_t>(token0) * matrix.out_stride + row;
    const float bias = matrix.bias ? matrix.bias[row] : 0.0f;
    const float up_bias = GATED && a.m[1].bias ? a.m[1].bias[row] : 0.0f;
    const Finish finish = static_cast<Finish>(a.finish);
#pragma unroll 4
    for (int i = lane / LANES; i < tokens; i += EACH) {
        const float unscale = a.x_unscale[static_cast<int>(blockIdx.x) * TOKENS + i];
        float y = *from * unscale;
        if (matrix.bias) y += bias;
        if (GATED) {
            float up = from[LANES] * unscale;
            if (a.m[1].bias) up += up_bias;
            *out = activate(static_cast<Act>(a.act), y) * up;
        } else {
            *out = finish_value(finish, y, a.factor, a.soft_cap, finish == Finish::Residual ? *out : 0.0f);
        }
        from += EACH * L::OUT_STRIDE;
        out += static_cast<size_t>(EACH) * matrix.out_stride;
    }
}

}  // namespace byte_tiles
