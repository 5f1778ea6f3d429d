// Products of many tokens on Hopper, one kernel per type with QT16.
#include "matmul/wgmma.cuh"

#define KERNEL(Unit, name) \
    extern "C" __global__ void __launch_bounds__(wgmma_matmul::THREADS, 1) \
        matmul_wgmma_##name(const __grid_constant__ MatmulArgs a) { \
        wgmma_matmul::body<Unit>(a); \
    }
MINFER_QT16(KERNEL)
