// Products of up to 32 tokens on Hopper: kernels matmul_few_<type>_n8, _n16 and _n32.
#include "matmul/few.cuh"

#define KERNEL(Unit, name, N) \
    extern "C" __global__ void __launch_bounds__(few_matmul::THREADS, few_matmul::Block<Unit, N>::BLOCKS) \
        matmul_few_##name##_n##N(const __grid_constant__ TileArgs a) { \
        few_matmul::body<Unit, N>(a); \
    }
#define KERNELS(Unit, name) KERNEL(Unit, name, 8) KERNEL(Unit, name, 16) KERNEL(Unit, name, 32)
MINFER_QT16(KERNELS)
