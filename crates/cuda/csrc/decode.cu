#include "decode.cuh"

extern "C" __global__ void __launch_bounds__(PREPARE_THREADS, 2) decode_matmul(const __grid_constant__ DecodeArgs a) {
    decode::body<decode::Half>(a);
}
