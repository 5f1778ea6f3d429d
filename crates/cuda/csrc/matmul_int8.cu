// Kernels matmul_int8_<type>_n8 and _n16.
#include "matmul/qt16.cuh"

#define KERNELS(Unit, name) \
    extern "C" __global__ void __launch_bounds__(256, 2) matmul_int8_##name##_n8(const MatmulArgs a) { \
        qt16_matmul::body<qt16_matmul::Int8, Unit, 1>(a); \
    } \
    extern "C" __global__ void __launch_bounds__(256, 1) matmul_int8_##name##_n16(const MatmulArgs a) { \
        qt16_matmul::body<qt16_matmul::Int8, Unit, 2>(a); \
    }
MINFER_QT16_CODES(KERNELS)
