// The token with the largest logit of each output, so that the host reads a word instead of a row.
#include "rank.cuh"

namespace {
constexpr int THREADS = 256;
// Logits of a thread that are on their way at once.
constexpr int BATCH = 8;

struct ArgmaxArgs {
    const float* logits;  // [outputs][vocab]
    // Largest rank of each output so far; zero before and after. A logit's rank is never zero.
    unsigned long long* rank;
    uint32_t* arrived;  // blocks that are done with each output; zero before and after
    // Where the host reads the ranks.
    unsigned long long* result;
    int vocab;
    int unused;
};
}  // namespace

// Blocks × outputs. A maximum of integers: its order does not matter.
extern "C" __global__ void __launch_bounds__(THREADS) argmax(const ArgmaxArgs a) {
    __shared__ unsigned long long shared[THREADS / WARP];
    grid_wait();
    const float* logits = a.logits + static_cast<size_t>(blockIdx.y) * a.vocab;
    unsigned long long best = 0;
    const int stride = gridDim.x * THREADS;
    for (int first = blockIdx.x * THREADS + threadIdx.x; first < a.vocab; first += BATCH * stride) {
        float v[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; ++j) v[j] = first + j * stride < a.vocab ? __ldcg(logits + first + j * stride) : 0.0f;
#pragma unroll
        for (int j = 0; j < BATCH; ++j) {
            const int id = first + j * stride;
            if (id < a.vocab) best = max(best, rank_of(v[j], id));
        }
    }
#pragma unroll
    for (int d = WARP / 2; d > 0; d /= 2) best = max(best, __shfl_xor_sync(~0u, best, d));
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = best;
    __syncthreads();
    if (threadIdx.x != 0) return;
#pragma unroll
    for (int w = 1; w < THREADS / WARP; ++w) best = max(best, shared[w]);
    atomicMax(a.rank + blockIdx.y, best);
    __threadfence();
    if (atomicAdd(a.arrived + blockIdx.y, 1) + 1 < gridDim.x) return;
    // The last block: every other one's rank is there.
    __threadfence();
    a.result[blockIdx.y] = atomicExch(a.rank + blockIdx.y, 0ull);
    a.arrived[blockIdx.y] = 0;
}
