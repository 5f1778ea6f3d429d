// Products of many tokens on Hopper: for each type with QT16 a kernel with tiles of 192 rows, one with 128 for products
// that have too few of those, both for up to three matrices, and one for a gate and its up with 96 rows of each.
#include "matmul/wgmma.cuh"

#define KERNEL(Unit, name, GATED, CONSUMERS) \
    extern "C" __global__ void __launch_bounds__(wgmma_matmul::Block<Unit, CONSUMERS>::THREADS, 1) \
        name(const __grid_constant__ TileArgs a) { \
        wgmma_matmul::body<Unit, GATED, CONSUMERS>(a); \
    }
#define KERNELS(Unit, name) \
    KERNEL(Unit, matmul_wgmma_##name, false, 3) KERNEL(Unit, matmul_wgmma_##name##_low, false, 2) \
    KERNEL(Unit, matmul_wgmma_##name##_gated, true, 3)
MINFER_QT16(KERNELS)
