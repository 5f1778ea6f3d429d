// Products of Q4_K and Q4_1, as they lie in the file, with many tokens as bytes, for questions that the campaign's pages ask:
// what does unrolling the loop over the groups of a tile bring with one and with two blocks a multiprocessor, and what do
// the variants of `How`?
//
// A block of 256 threads has 128 rows × 64 tokens, and goes over K in tiles of eight groups of 32. *nb* keeps the rows'
// nibbles packed and unpacks them where they are used: 45,056 B of shared memory, so two blocks share a multiprocessor with
// 100 KB; K must be whole tiles. *wide* unpacks them into bytes there: 61,440 B, one block, any K. Both have each of them with
// the loop rolled and unrolled, and all four have the same sums in the same order.
#include "../matmul.cuh"
#include "../qt16/integer.cuh"

namespace mmq {

// Whether the groups of whole tiles are counted too: parts before Hopper have too few registers without it.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool COUNTED = true;
#else
constexpr bool COUNTED = false;
#endif

constexpr int ROWS = 128, TOKENS = 64, GROUP = 32, GROUPS = 8, K = GROUP * GROUPS, THREADS = 256;

// How a group becomes part of the result.
enum class How {
    // Scale and minimum of the row, for each group, in floats.
    Each,
    // The same; raw words are read a pair of groups ahead.
    Ahead,
    // Minima of a tile are a step of their own, its operands the sums of the tokens' groups.
    Least,
    // All scales of a token in a tile are one, so that those of the row's groups stay integers until its end.
    Integers,
};

// Of a token's group: its scale, and the scale times the sum of its bytes. Of a row's: scale, and minimum negated.
struct QuantizeArgs {
    const float* x;   // [tokens][cols]
    int8_t* q;        // [padded][cols]
    float2* scales;   // [cols / 32][padded]
    int cols;
    int tokens;
    int padded;       // tokens to the next multiple of TOKENS
    int unused;
};
struct Args {
    const uint8_t* w;  // [rows][cols / 256] blocks
    const int8_t* q;
    const float2* scales;
    const float* bias;  // [rows], or null
    float* out;         // [tokens][out_stride]
    int rows;
    int cols;
    int tokens;
    int padded;
    int out_stride;
    int finish;
    float factor;
    float soft_cap;
};

// Tokens: [group][token][32 bytes], the two halves of a token exchanged for every other four, so that eight rows of a
// fragment lie in different banks. Rows unpacked: the same. Rows packed: [row][16-byte chunks], exclusive-ored with the
// row's number.
__device__ __forceinline__ int bytes_at(int count, int group, int row, int half) {
    return (group * count + row) * GROUP + ((half ^ (row >> 2 & 1)) * 16);
}
__device__ __forceinline__ int nibbles_at(int row, int chunk) { return row * 128 + ((chunk ^ (row & 7)) * 16); }

template <bool PACKED>
struct Shared {
    alignas(128) uint8_t a[GROUPS * TOKENS * GROUP];
    alignas(128) uint8_t b[GROUPS * ROWS * GROUP / (PACKED ? 2 : 1)];
    float2 of_tokens[GROUPS][TOKENS];
    float2 of_rows[GROUPS][ROWS];
};
static_assert(sizeof(Shared<true>) == 45056, "what fits twice into 100 KB");

// The same where scales, or minima, are integers times a number of the row's block.
struct SharedOfIntegers : Shared<true> {
    float2 of_blocks[ROWS];
};

// The scale and the minimum of group j of a block, integers of six bits.
__device__ __forceinline__ void integers(int& scale, int& minimum, const uint8_t* packed, int j) {
    if (j < 4) {
        scale = packed[j] & 63;
        minimum = packed[j + 4] & 63;
    } else {
        scale = (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4;
        minimum = packed[j + 4] >> 4 | packed[j] >> 6 << 4;
    }
}

// Blocks of 256 values, nibbles as those of groups 2p and 2p + 1 in 32 bytes.
struct OfQ4K {
    static constexpr bool WHOLE_TILES = true;
    __device__ __forceinline__ static size_t row_bytes(int cols) { return static_cast<size_t>(cols / K) * 144; }
    __device__ __forceinline__ static uint4 nibbles(const uint8_t* row, int tile, int chunk) {
        return *reinterpret_cast<const uint4*>(row + tile * 144 + 16 + chunk * 16);
    }
    // Group and half of it that the lower nibbles of a chunk of 16 bytes are, and the upper ones; and back.
    __device__ __forceinline__ static int group_of(int chunk, int upper) { return chunk / 2 * 2 + upper; }
    __device__ __forceinline__ static int half_of(int chunk, int) { return chunk % 2; }
    __device__ __forceinline__ static int chunk_of(int group, int half) { return group / 2 * 2 + half; }
    __device__ __forceinline__ static bool upper(int group, int) { return group % 2; }

    template <How HOW>
    __device__ __forceinline__ static float2 scales(const uint8_t* row, int tile, int group) {
        const uint8_t* block = row + tile * 144;
        const float2 d = of_block(row, tile);
        int scale, minimum;
        integers(scale, minimum, block + 4, group);
        const float s = static_cast<float>(scale), m = static_cast<float>(minimum);
        return make_float2(HOW == How::Integers ? __int_as_float(scale) : d.x * s, HOW == How::Least ? m : d.y * m);
    }
    // What integers are times: the scale, and minus the minimum.
    __device__ __forceinline__ static float2 of_block(const uint8_t* row, int tile) {
        const half2 d = *reinterpret_cast<const half2*>(row + tile * 144);
        return make_float2(__low2float(d), -__high2float(d));
    }
};

// Blocks of 32 values: {d, m, 16 bytes with values i and i + 16}.
struct OfQ4_1 {
    static constexpr bool WHOLE_TILES = false;
    __device__ __forceinline__ static size_t row_bytes(int cols) { return static_cast<size_t>(cols / GROUP) * 20; }
    __device__ __forceinline__ static uint4 nibbles(const uint8_t* row, int tile, int chunk) {
        const uint32_t* from = reinterpret_cast<const uint32_t*>(row + (tile * GROUPS + chunk) * 20 + 4);
        return make_uint4(from[0], from[1], from[2], from[3]);
    }
    __device__ __forceinline__ static int group_of(int chunk, int) { return chunk; }
    __device__ __forceinline__ static int half_of(int, int upper) { return upper; }
    __device__ __forceinline__ static int chunk_of(int group, int) { return group; }
    __device__ __forceinline__ static bool upper(int, int half) { return half; }

    template <How HOW>
    __device__ __forceinline__ static float2 scales(const uint8_t* row, int tile, int group) {
        const half2 d = *reinterpret_cast<const half2*>(row + (tile * GROUPS + group) * 20);
        return make_float2(__low2float(d), __high2float(d));
    }
};

// Tile `tile` of K into shared memory, its first `groups` groups.
template <class F, bool PACKED, How HOW, class S>
__device__ __forceinline__ void stage(S& shared, const Args& a, int tile, int groups) {
    const int row0 = blockIdx.x * ROWS, token0 = blockIdx.y * TOKENS, thread = threadIdx.x;
#pragma unroll 1
    for (int i = thread; i < TOKENS * K / 16; i += THREADS) {
        const int token = i / (K / 16), chunk = i % (K / 16);
        const int8_t* from = a.q + static_cast<size_t>(token0 + token) * a.cols + tile * K + chunk * 16;
        if (chunk / 2 < groups) {
            *reinterpret_cast<uint4*>(shared.a + bytes_at(TOKENS, chunk / 2, token, chunk % 2)) =
                *reinterpret_cast<const uint4*>(from);
        }
    }
    const size_t row_bytes = F::row_bytes(a.cols);
    // The last row stands for those beyond it, whose sums are dropped.
    auto row_of = [&](int row) { return a.w + min(row0 + row, a.rows - 1) * row_bytes; };
#pragma unroll 4
    for (int i = thread; i < ROWS * 8; i += THREADS) {
        const int row = i / 8, chunk = i % 8;
        if (chunk >= groups) continue;
        const uint4 v = F::nibbles(row_of(row), tile, chunk);
        if constexpr (PACKED) {
            *reinterpret_cast<uint4*>(shared.b + nibbles_at(row, chunk)) = v;
        } else {
            constexpr uint32_t mask = 0x0f0f0f0f;
            const uint4 low = make_uint4(v.x & mask, v.y & mask, v.z & mask, v.w & mask);
            const uint4 high = make_uint4(v.x >> 4 & mask, v.y >> 4 & mask, v.z >> 4 & mask, v.w >> 4 & mask);
            auto to = [&](int upper) {
                return shared.b + bytes_at(ROWS, F::group_of(chunk, upper), row, F::half_of(chunk, upper));
            };
            *reinterpret_cast<uint4*>(to(0)) = low;
            *reinterpret_cast<uint4*>(to(1)) = high;
        }
    }
#pragma unroll 1
    for (int i = thread; i < ROWS * GROUPS; i += THREADS) {
        const int row = i / GROUPS, group = i % GROUPS;
        if (group < groups) shared.of_rows[group][row] = F::template scales<HOW>(row_of(row), tile, group);
    }
    if constexpr (HOW == How::Least || HOW == How::Integers) {
        if (thread < ROWS) shared.of_blocks[thread] = F::of_block(row_of(thread), tile);
    }
#pragma unroll 1
    for (int i = thread; i < groups * TOKENS; i += THREADS) {
        const int group = i / TOKENS, token = i % TOKENS;
        shared.of_tokens[group][token] = a.scales[static_cast<size_t>(tile * GROUPS + group) * a.padded + token0 + token];
    }
}

// A raw word of half a group of a row.
template <class F, class S>
__device__ __forceinline__ uint32_t raw_word(const S& shared, int row, int lane, int group, int half) {
    return *reinterpret_cast<const uint32_t*>(shared.b + nibbles_at(row, F::chunk_of(group, half)) + lane % 4 * 4);
}

// B fragments of a group, of the warp's two times eight rows.
template <class F, bool PACKED, class S>
__device__ __forceinline__ void rows_of(uint32_t (&b)[2][2], const S& shared, int row0, int lane, int group) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        const int row = row0 + 8 * n + lane / 4;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if constexpr (PACKED) {
                const uint32_t v = raw_word<F>(shared, row, lane, group, half);
                b[n][half] = (F::upper(group, half) ? v >> 4 : v) & 0x0f0f0f0f;
            } else {
                b[n][half] = *reinterpret_cast<const uint32_t*>(shared.b + bytes_at(ROWS, group, row, half) + lane % 4 * 4);
            }
        }
    }
}

// D = A · B: 16×32 signed bytes (row) by 32×8 (column).
__device__ __forceinline__ void multiply(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}

// What tf32 has of a number.
__device__ __forceinline__ float tf32_of(float v) {
    uint32_t t;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(t) : "f"(v));
    return __uint_as_float(t);
}

// D += A · B: 16×8 (row) by 8×8 (column) of tf32.
__device__ __forceinline__ void multiply_tf32(float (&d)[4], const float (&a)[4], float b0, float b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
          "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

template <class F, bool PACKED, bool UNROLL, How HOW, class S>
__device__ __forceinline__ void body(S& shared, const Args& a) {
    grid_wait();
    constexpr int MT = TOKENS / 16;
    constexpr bool INTEGERS = HOW == How::Integers, LEAST = HOW == How::Least, AHEAD = HOW == How::Ahead;
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, row0 = threadIdx.x / WARP * 16;
    float acc[MT][2][4] = {};
    int whole[MT][2][4];
    // Raw words of the next pair of groups.
    uint32_t ahead[2][2];
    auto read_ahead = [&](int j, int half) {
#pragma unroll
        for (int n = 0; n < 2; ++n) ahead[half][n] = raw_word<F>(shared, row0 + 8 * n + lane / 4, lane, j, half);
    };
    auto group = [&](int j) {
        uint32_t x[MT][4], b[2][2];
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            ldmatrix_x4(x[m], shared.a + bytes_at(TOKENS, j, 16 * m + lane % 16, lane / 16));
        }
        if constexpr (AHEAD) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
#pragma unroll
                for (int n = 0; n < 2; ++n) {
                    b[n][half] = (F::upper(j, half) ? ahead[half][n] >> 4 : ahead[half][n]) & 0x0f0f0f0f;
                }
                if (j % 2 == 1 && j + 1 < GROUPS) read_ahead(j + 1, half);
            }
        } else {
            rows_of<F, PACKED>(b, shared, row0, lane, j);
        }
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            // Scales and minima of rows 2t and 2t + 1.
            const float4 of_rows = *reinterpret_cast<const float4*>(&shared.of_rows[j][row0 + 8 * n + 2 * t]);
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                const float2 of_tokens[2] = {shared.of_tokens[j][16 * m + g], shared.of_tokens[j][16 * m + g + 8]};
                int d[4];
                multiply(d, x[m], b[n][0], b[n][1]);
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const float scale = e % 2 ? of_rows.z : of_rows.x, minimum = e % 2 ? of_rows.w : of_rows.y;
                    const float2 token = of_tokens[e / 2];
                    float& sum = acc[m][n][e];
                    if constexpr (INTEGERS) {
                        whole[m][n][e] = (j ? whole[m][n][e] : 0) + __float_as_int(scale) * d[e];
                    } else {
                        sum = fmaf(token.x, scale * static_cast<float>(d[e]), sum);
                    }
                    if (!LEAST) sum = fmaf(minimum, token.y, sum);
                }
            }
        }
    };
    // Behind the groups of a tile, of those that leave something for it.
    auto finish_tile = [&](const auto& shared) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const float4 of_blocks = *reinterpret_cast<const float4*>(&shared.of_blocks[row0 + 8 * n + 2 * t]);
            const float b0 = LEAST ? shared.of_rows[t][row0 + 8 * n + g].y : 0.0f;
            const float b1 = LEAST ? shared.of_rows[t + 4][row0 + 8 * n + g].y : 0.0f;
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                float d[4] = {}, most[4], rest[4];
#pragma unroll
                for (int i = 0; LEAST && i < 4; ++i) {
                    const float sum = shared.of_tokens[t + i / 2 * 4][16 * m + g + i % 2 * 8].y;
                    most[i] = tf32_of(sum);
                    rest[i] = tf32_of(sum - most[i]);
                }
                if (LEAST) {
                    multiply_tf32(d, most, b0, b1);
                    multiply_tf32(d, rest, b0, b1);
                }
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    float& sum = acc[m][n][e];
                    if (LEAST) sum = fmaf(e % 2 ? of_blocks.w : of_blocks.y, d[e], sum);
                    if (INTEGERS) {
                        const float v = (e % 2 ? of_blocks.z : of_blocks.x) * static_cast<float>(whole[m][n][e]);
                        sum = fmaf(shared.of_tokens[0][16 * m + g + e / 2 * 8].x, v, sum);
                    }
                }
            }
        }
    };
    const int all = a.cols / GROUP;
#pragma unroll 1
    for (int tile = 0; tile < (all + GROUPS - 1) / GROUPS; ++tile) {
        const int groups = F::WHOLE_TILES && !COUNTED ? GROUPS : min(GROUPS, all - tile * GROUPS);
        __syncthreads();
        stage<F, PACKED, HOW>(shared, a, tile, groups);
        __syncthreads();
        if constexpr (AHEAD) {
            read_ahead(0, 0);
            read_ahead(0, 1);
        }
        if constexpr (UNROLL) {
#pragma unroll
            for (int j = 0; j < GROUPS; ++j) {
                if (j < groups) group(j);
            }
        } else {
#pragma unroll 1
            for (int j = 0; j < groups; ++j) group(j);
        }
        if constexpr (LEAST || INTEGERS) finish_tile(shared);
    }
    const Finish finish = static_cast<Finish>(a.finish);
#pragma unroll
    for (int m = 0; m < MT; ++m) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int token = blockIdx.y * TOKENS + 16 * m + g + e / 2 * 8;
                const int row = blockIdx.x * ROWS + row0 + 8 * n + 2 * t + e % 2;
                if (token >= a.tokens || row >= a.rows) continue;
                float* out = a.out + static_cast<size_t>(token) * a.out_stride + row;
                const float y = a.bias ? acc[m][n][e] + a.bias[row] : acc[m][n][e];
                *out = finish_value(finish, y, a.factor, a.soft_cap, finish == Finish::Residual ? *out : 0.0f);
            }
        }
    }
}

}  // namespace mmq

namespace {
// A warp for each group of a token; in `TOGETHER` the block's eight are 256 values of one, under one scale.
template <bool TOGETHER>
__device__ __forceinline__ void quantize(const mmq::QuantizeArgs& a) {
    __shared__ float most[mmq::THREADS / WARP];
    grid_wait();
    const int lane = threadIdx.x % WARP, groups = a.cols / mmq::GROUP;
    const int at = blockIdx.x * (mmq::THREADS / WARP) + threadIdx.x / WARP, token = at / groups, group = at % groups;
    const size_t place = static_cast<size_t>(token) * a.cols + group * mmq::GROUP + lane;
    const float x = token < a.tokens ? a.x[place] : 0.0f;
    float largest = warp_max(fabsf(x));
    if (TOGETHER) {
        most[threadIdx.x / WARP] = largest;
        __syncthreads();
        for (int w = 0; w < mmq::THREADS / WARP; ++w) largest = fmaxf(largest, most[w]);
    }
    if (token >= a.padded) return;
    const float scale = largest / 127.0f;
    const int q = scale > 0.0f ? __float2int_rn(x / scale) : 0;
    int sum = q;
#pragma unroll
    for (int d = 1; d < WARP; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
    a.q[place] = static_cast<int8_t>(q);
    if (lane == 0) {
        a.scales[static_cast<size_t>(group) * a.padded + token] = make_float2(scale, scale * static_cast<float>(sum));
    }
}
}  // namespace

extern "C" __global__ void __launch_bounds__(mmq::THREADS) mmq_quantize(const mmq::QuantizeArgs a) { quantize<false>(a); }
extern "C" __global__ void __launch_bounds__(mmq::THREADS) mmq_quantize_together(const mmq::QuantizeArgs a) {
    quantize<true>(a);
}

#define NB(name, Type, UNROLL, HOW, Memory) \
    extern "C" __global__ void __launch_bounds__(mmq::THREADS, 2) name(const mmq::Args a) { \
        __shared__ Memory shared; \
        mmq::body<mmq::Type, true, UNROLL, mmq::How::HOW>(shared, a); \
    }
#define WIDE(name, Type, UNROLL) \
    extern "C" __global__ void __launch_bounds__(mmq::THREADS, 1) name(const mmq::Args a) { \
        extern __shared__ __align__(128) uint8_t memory[]; \
        mmq::body<mmq::Type, false, UNROLL, mmq::How::Each>(*reinterpret_cast<mmq::Shared<false>*>(memory), a); \
    }
NB(mmq_nb_q4_k, OfQ4K, false, Each, mmq::Shared<true>)
NB(mmq_nb_unrolled_q4_k, OfQ4K, true, Each, mmq::Shared<true>)
NB(mmq_nb_q4_1, OfQ4_1, false, Each, mmq::Shared<true>)
NB(mmq_nb_unrolled_q4_1, OfQ4_1, true, Each, mmq::Shared<true>)
WIDE(mmq_wide_q4_k, OfQ4K, false)
WIDE(mmq_wide_unrolled_q4_k, OfQ4K, true)
WIDE(mmq_wide_q4_1, OfQ4_1, false)
WIDE(mmq_wide_unrolled_q4_1, OfQ4_1, true)
// nb, unrolled, and one thing more.
NB(mmq_nb_ahead_q4_k, OfQ4K, true, Ahead, mmq::Shared<true>)
NB(mmq_nb_least_q4_k, OfQ4K, true, Least, mmq::SharedOfIntegers)
NB(mmq_nb_integers_q4_k, OfQ4K, true, Integers, mmq::SharedOfIntegers)
