// Products of Q4_K, as it lies in the file, with many tokens as bytes, for one question: what does unrolling the loop over
// the groups of a tile bring with one and with two blocks a multiprocessor?
//
// A block of 256 threads has 128 rows × 64 tokens, and goes over K in tiles of eight groups of 32. *nb* keeps the rows'
// nibbles packed and unpacks them where they are used: 45,056 B of shared memory, so two blocks share a multiprocessor with
// 100 KB. *wide* unpacks them into bytes there: 61,440 B, one block. Both have each of them with the loop rolled and unrolled,
// and all four have the same sums in the same order.
#include "../common.cuh"

namespace mmq {

constexpr int ROWS = 128, TOKENS = 64, GROUP = 32, GROUPS = 8, K = GROUP * GROUPS, BLOCK = 144, THREADS = 256;

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
    float* out;  // [tokens][rows]
    int rows;
    int cols;
    int tokens;
    int padded;
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

// Tile `tile` of K into shared memory.
template <bool PACKED>
__device__ __forceinline__ void stage(Shared<PACKED>& shared, const Args& a, int tile) {
    const int row0 = blockIdx.x * ROWS, token0 = blockIdx.y * TOKENS, thread = threadIdx.x;
#pragma unroll 1
    for (int i = thread; i < TOKENS * K / 16; i += THREADS) {
        const int token = i / (K / 16), chunk = i % (K / 16);
        const int8_t* from = a.q + static_cast<size_t>(token0 + token) * a.cols + tile * K + chunk * 16;
        *reinterpret_cast<uint4*>(shared.a + bytes_at(TOKENS, chunk / 2, token, chunk % 2)) =
            *reinterpret_cast<const uint4*>(from);
    }
    const size_t row_bytes = static_cast<size_t>(a.cols / K) * BLOCK;
    auto block_of = [&](int row) {
        // The last row stands for those beyond it, whose sums are dropped.
        return a.w + min(row0 + row, a.rows - 1) * row_bytes + static_cast<size_t>(tile) * BLOCK;
    };
#pragma unroll 4
    for (int i = thread; i < ROWS * 8; i += THREADS) {
        const int row = i / 8, chunk = i % 8;
        const uint4 v = *reinterpret_cast<const uint4*>(block_of(row) + 16 + chunk * 16);
        if constexpr (PACKED) {
            *reinterpret_cast<uint4*>(shared.b + nibbles_at(row, chunk)) = v;
        } else {
            // Lower nibbles are one group, upper ones the next.
            constexpr uint32_t mask = 0x0f0f0f0f;
            const uint4 low = make_uint4(v.x & mask, v.y & mask, v.z & mask, v.w & mask);
            const uint4 high = make_uint4(v.x >> 4 & mask, v.y >> 4 & mask, v.z >> 4 & mask, v.w >> 4 & mask);
            *reinterpret_cast<uint4*>(shared.b + bytes_at(ROWS, chunk / 2 * 2, row, chunk % 2)) = low;
            *reinterpret_cast<uint4*>(shared.b + bytes_at(ROWS, chunk / 2 * 2 + 1, row, chunk % 2)) = high;
        }
    }
#pragma unroll 1
    for (int i = thread; i < ROWS * GROUPS; i += THREADS) {
        const int row = i / GROUPS, group = i % GROUPS;
        const uint8_t* block = block_of(row);
        const half2 d = *reinterpret_cast<const half2*>(block);
        int scale, minimum;
        integers(scale, minimum, block + 4, group);
        shared.of_rows[group][row] = make_float2(__low2float(d) * static_cast<float>(scale),
                                                 -(__high2float(d) * static_cast<float>(minimum)));
    }
#pragma unroll 1
    for (int i = thread; i < GROUPS * TOKENS; i += THREADS) {
        const int group = i / TOKENS, token = i % TOKENS;
        shared.of_tokens[group][token] = a.scales[static_cast<size_t>(tile * GROUPS + group) * a.padded + token0 + token];
    }
}

// B fragments of a group, of the warp's two times eight rows.
template <bool PACKED>
__device__ __forceinline__ void rows_of(uint32_t (&b)[2][2], const Shared<PACKED>& shared, int row0, int lane, int group) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        const int row = row0 + 8 * n + lane / 4;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int at = lane % 4 * 4;
            if constexpr (PACKED) {
                const uint32_t v = *reinterpret_cast<const uint32_t*>(shared.b + nibbles_at(row, group / 2 * 2 + half) + at);
                b[n][half] = (group % 2 ? v >> 4 : v) & 0x0f0f0f0f;
            } else {
                b[n][half] = *reinterpret_cast<const uint32_t*>(shared.b + bytes_at(ROWS, group, row, half) + at);
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

template <bool PACKED, bool UNROLL>
__device__ __forceinline__ void body(Shared<PACKED>& shared, const Args& a) {
    grid_wait();
    constexpr int MT = TOKENS / 16;
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, row0 = threadIdx.x / WARP * 16;
    float acc[MT][2][4] = {};
    auto group = [&](int j) {
        uint32_t x[MT][4], b[2][2];
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            ldmatrix_x4(x[m], shared.a + bytes_at(TOKENS, j, 16 * m + lane % 16, lane / 16));
        }
        rows_of<PACKED>(b, shared, row0, lane, j);
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
                    const float v = scale * static_cast<float>(d[e]);
                    acc[m][n][e] = fmaf(minimum, token.y, fmaf(token.x, v, acc[m][n][e]));
                }
            }
        }
    };
#pragma unroll 1
    for (int tile = 0; tile < a.cols / K; ++tile) {
        __syncthreads();
        stage<PACKED>(shared, a, tile);
        __syncthreads();
        if constexpr (UNROLL) {
#pragma unroll
            for (int j = 0; j < GROUPS; ++j) group(j);
        } else {
#pragma unroll 1
            for (int j = 0; j < GROUPS; ++j) group(j);
        }
    }
#pragma unroll
    for (int m = 0; m < MT; ++m) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int token = blockIdx.y * TOKENS + 16 * m + g + e / 2 * 8;
                const int row = blockIdx.x * ROWS + row0 + 8 * n + 2 * t + e % 2;
                if (token < a.tokens && row < a.rows) a.out[static_cast<size_t>(token) * a.rows + row] = acc[m][n][e];
            }
        }
    }
}

}  // namespace mmq

// A warp for each group of a token.
extern "C" __global__ void __launch_bounds__(mmq::THREADS) mmq_quantize(const mmq::QuantizeArgs a) {
    grid_wait();
    const int lane = threadIdx.x % WARP, groups = a.cols / mmq::GROUP;
    const int at = blockIdx.x * (mmq::THREADS / WARP) + threadIdx.x / WARP, token = at / groups, group = at % groups;
    if (token >= a.padded) return;
    const size_t place = static_cast<size_t>(token) * a.cols + group * mmq::GROUP + lane;
    const float x = token < a.tokens ? a.x[place] : 0.0f;
    const float scale = warp_max(fabsf(x)) / 127.0f;
    const int q = scale > 0.0f ? __float2int_rn(x / scale) : 0;
    int sum = q;
#pragma unroll
    for (int d = 1; d < WARP; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
    a.q[place] = static_cast<int8_t>(q);
    if (lane == 0) {
        a.scales[static_cast<size_t>(group) * a.padded + token] = make_float2(scale, scale * static_cast<float>(sum));
    }
}

#define NB(name, UNROLL) \
    extern "C" __global__ void __launch_bounds__(mmq::THREADS, 2) name(const mmq::Args a) { \
        __shared__ mmq::Shared<true> shared; \
        mmq::body<true, UNROLL>(shared, a); \
    }
#define WIDE(name, UNROLL) \
    extern "C" __global__ void __launch_bounds__(mmq::THREADS, 1) name(const mmq::Args a) { \
        extern __shared__ __align__(128) uint8_t memory[]; \
        mmq::body<false, UNROLL>(*reinterpret_cast<mmq::Shared<false>*>(memory), a); \
    }
NB(mmq_nb, false)
NB(mmq_nb_unrolled, true)
WIDE(mmq_wide, false)
WIDE(mmq_wide_unrolled, true)
