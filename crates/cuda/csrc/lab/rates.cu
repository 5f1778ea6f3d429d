// What a multiprocessor can do at most, of the instructions that the kernels live on. Everything is in registers or, for
// wgmma, in shared memory; the results are read, so that nothing is left out.
#include "../hopper.cuh"
#include "../qt16/integer.cuh"

struct RateArgs {
    uint32_t* sink;
    int32_t turns;
    int32_t unused;
};

// Halves of magnitude 0.5 to 1, and bytes that are not zero, that look random: what is multiplied decides the power that
// it takes, and that the clock.
__device__ __forceinline__ uint32_t mixed(uint32_t v) {
    v = (v ^ v >> 16) * 0x7feb352du;
    v = (v ^ v >> 15) * 0x846ca68bu;
    return v ^ v >> 16;
}
__device__ __forceinline__ uint32_t halves(uint32_t seed) { return (mixed(seed) & 0x83ff83ffu) | 0x38003800u; }

// 16 independent chains of products in each warp; a turn is one product in each.
extern "C" __global__ void __launch_bounds__(256, 2) rate_mma_halves(const RateArgs a) {
    const uint32_t seed = (blockIdx.x * 256 + threadIdx.x) * 32;
    uint32_t w[4][4], x[4][2];
    float d[4][4][4] = {};
    for (int i = 0; i < 16; ++i) w[i / 4][i % 4] = halves(seed + i);
    for (int i = 0; i < 8; ++i) x[i / 2][i % 2] = halves(seed + 16 + i);
#pragma unroll 1
    for (int turn = 0; turn < a.turns; ++turn)
#pragma unroll
        for (int i = 0; i < 16; ++i) mma_m16n8k16(d[i / 4][i % 4], w[i / 4], x[i % 4][0], x[i % 4][1]);
    float sum = 0;
    for (int i = 0; i < 64; ++i) sum += d[i / 16][i / 4 % 4][i % 4];
    if (sum == 0.123f) *a.sink = 1;
}

extern "C" __global__ void __launch_bounds__(256, 2) rate_mma_bytes(const RateArgs a) {
    const uint32_t seed = (blockIdx.x * 256 + threadIdx.x) * 32;
    uint32_t w[4][4], x[4][2];
    int d[4][4][4] = {};
    for (int i = 0; i < 16; ++i) w[i / 4][i % 4] = mixed(seed + i);
    for (int i = 0; i < 8; ++i) x[i / 2][i % 2] = mixed(seed + 16 + i);
#pragma unroll 1
    for (int turn = 0; turn < a.turns; ++turn)
#pragma unroll
        for (int i = 0; i < 16; ++i) mma_m16n8k32(d[i / 4][i % 4], w[i / 4], x[i % 4][0], x[i % 4][1]);
    int sum = 0;
    for (int i = 0; i < 64; ++i) sum += d[i / 16][i / 4 % 4][i % 4];
    if (sum == 0x12345678) *a.sink = 1;
}

// Two warpgroups, weights in registers, 128 columns in shared memory: 16 steps of 64 × 128 × 16 in a turn.
extern "C" __global__ void __launch_bounds__(256, 1) rate_wgmma(const RateArgs a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    __shared__ alignas(1024) uint32_t x[4096];
    for (int i = threadIdx.x; i < 4096; i += 256) x[i] = halves(i);
    hopper::seen_by_multiply();
    __syncthreads();
    uint32_t w[4][4];
    for (int i = 0; i < 16; ++i) w[i / 4][i % 4] = halves((blockIdx.x * 256 + threadIdx.x) * 16 + i);
    float d[64] = {};
#pragma unroll 1
    for (int turn = 0; turn < a.turns; ++turn) {
        hopper::multiply_begin();
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const uint64_t b = hopper::swizzled_at(shared_address(x) + i % 4 * 32);
            asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " MINFER_64
                         ", {%64, %65, %66, %67}, %68, 1, 1, 1, 0;"
                         : MINFER_OF_64(d)
                         : "r"(w[i % 4][0]), "r"(w[i % 4][1]), "r"(w[i % 4][2]), "r"(w[i % 4][3]), "l"(b));
        }
        hopper::multiply_commit();
        hopper::multiply_wait<0>();
    }
    float sum = 0;
    for (int i = 0; i < 64; ++i) sum += d[i];
    if (sum == 0.123f) *a.sink = 1;
#endif
}

// A word of eight nibbles to two words of bytes, the lower four nibbles and the upper four in their order, in eight chains:
// the ways that kernels have. What comes out goes into the next word.
template <bool PRMT>
__device__ void nibbles(const RateArgs& a) {
    uint32_t v[8];
    for (int i = 0; i < 8; ++i) v[i] = mixed((blockIdx.x * 256 + threadIdx.x) * 8 + i);
#pragma unroll 1
    for (int turn = 0; turn < a.turns; ++turn)
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const uint32_t low = v[i] & 0x0f0f0f0f, high = v[i] >> 4 & 0x0f0f0f0f;
            // Without byte permutations nibbles stay apart by parity, and it is the other operand that has that order.
            const uint32_t first = PRMT ? prmt(low, high, 0x5140) : low, second = PRMT ? prmt(low, high, 0x7362) : high;
            v[i] = first * 3 + second;
        }
    uint32_t sum = 0;
    for (int i = 0; i < 8; ++i) sum ^= v[i];
    if (sum == 0x12345678) *a.sink = 1;
}

extern "C" __global__ void __launch_bounds__(256, 2) rate_nibbles_shift(const RateArgs a) { nibbles<false>(a); }
extern "C" __global__ void __launch_bounds__(256, 2) rate_nibbles_prmt(const RateArgs a) { nibbles<true>(a); }

// Nothing, with and without leave for the next kernel to start before this one has ended.
extern "C" __global__ void __launch_bounds__(128) rate_launch_early(const RateArgs a) { grid_wait(); }
extern "C" __global__ void __launch_bounds__(128) rate_launch(const RateArgs a) {}
