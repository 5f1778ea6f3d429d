// Products of many tokens on Hopper: for each type with QT16 a kernel for up to three matrices, and one for a gate and its
// up.
#include "matmul/wgmma.cuh"

#define KERNEL(Unit, name, GATED) \
    extern "C" __global__ void __launch_bounds__(wgmma_matmul::THREADS, 1) name(const __grid_constant__ TileArgs a) { \
        wgmma_matmul::body<Unit, GATED>(a); \
    }
#define KERNELS(Unit, name) KERNEL(Unit, matmul_wgmma_##name, false) KERNEL(Unit, matmul_wgmma_##name##_gated, true)
MINFER_QT16_CODES(KERNELS)
