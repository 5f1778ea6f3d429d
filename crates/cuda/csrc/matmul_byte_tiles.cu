// Kernels matmul_byte_tiles_<type>_n64, the same of a gate and its up, and _n32, for fewer tokens and for parts with less
// shared memory.
#include "matmul/byte_tiles.cuh"

#define KERNEL(Unit, name, GATED, NT, BLOCKS) \
    extern "C" __global__ void __launch_bounds__(byte_tiles::THREADS, BLOCKS) name(const __grid_constant__ ByteTileArgs a) { \
        byte_tiles::body<Unit, GATED, NT>(a); \
    }
#define KERNELS(Unit, name) \
    KERNEL(Unit, matmul_byte_tiles_##name##_n64, false, 8, 2) \
    KERNEL(Unit, matmul_byte_tiles_##name##_n64_gated, true, 8, 2) \
    KERNEL(Unit, matmul_byte_tiles_##name##_n32, false, 4, 3)
MINFER_QT16_CODES(KERNELS)
