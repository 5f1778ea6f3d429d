// Products of many tokens on Hopper: for each type with QT16 a kernel with tiles of 192 rows × 128 tokens, one with 128 × 128
// for products that have too few of those, both for up to three matrices, and one for a gate and its up with 96 rows of each.
// Q6_K, whose codes take longest to unpack, multiplies them with 256 tokens at a time, 128 rows of them.
#include "matmul/wgmma.cuh"

#define KERNEL(Unit, name, GATED, CONSUMERS, WIDTH) \
    extern "C" __global__ void __launch_bounds__(wgmma_matmul::Block<Unit, GATED, CONSUMERS, WIDTH>::THREADS, 1) \
        name(const __grid_constant__ TileArgs a) { \
        wgmma_matmul::body<Unit, GATED, CONSUMERS, WIDTH>(a); \
    }
#define KERNELS(Unit, name) \
    KERNEL(Unit, matmul_wgmma_##name, false, 3, 1) KERNEL(Unit, matmul_wgmma_##name##_low, false, 2, 1) \
    KERNEL(Unit, matmul_wgmma_##name##_gated, true, 3, 1)
MINFER_QT16(KERNELS)
KERNEL(Qt6K, matmul_wgmma_q6_k_wide, false, 2, 2)
KERNEL(Qt6K, matmul_wgmma_q6_k_wide_gated, true, 2, 2)
