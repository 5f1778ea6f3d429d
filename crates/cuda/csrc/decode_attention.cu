// Attention of steps with a token per sequence.
#include "decode_attention.cuh"

using namespace decode_attention;

namespace {
// A warp for each head that a block is likely to have, or two blocks on a multiprocessor.
template <bool DEEP>
constexpr int DECODE_THREADS = DEEP ? 256 : 320;

// What the host reserves, device/decode.rs.
static_assert(sizeof(Shared) == 5088 && SCRATCH == 2048, "ATTENTION_SHARED");

// Grid: segments × key heads × tokens.
template <int D, bool DEEP>
__device__ __forceinline__ void body(const DecodeAttentionArgs& args) {
    extern __shared__ __align__(16) uint8_t memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    float* scratch = reinterpret_cast<float*>(memory + sizeof(Shared));
    half* area = reinterpret_cast<half*>(scratch + SCRATCH);
    const AttentionArgs& a = args.attention;
    // Where the step's tokens belong was written before its first kernel.
    Work work;
    work.token = blockIdx.z;
    work.kv_head = blockIdx.y;
    work.position = a.spans.position[work.token];
    const int first = first_segment(a, work.position);
    work.segments = work.position / ATTN_SEGMENT + 1 - first;
    work.index = blockIdx.x;
    work.segment = first + work.index;
    const bool works = work.index < work.segments;
    if (works) fetch<D, DECODE_THREADS<DEEP>, DEEP>(args, work, shared, area);
    grid_wait();
    if (works) attend<D, DECODE_THREADS<DEEP>, DEEP>(args, work, shared, scratch, area);
}
}  // namespace

#define KERNEL(name, D, DEEP) \
    extern "C" __global__ void __launch_bounds__(DECODE_THREADS<DEEP>, DEEP ? 2 : 1) \
        name(const __grid_constant__ DecodeAttentionArgs a) { \
        body<D, DEEP>(a); \
    }
KERNEL(decode_attention_d64, 64, false)
KERNEL(decode_attention_d64_deep, 64, true)
KERNEL(decode_attention_d128, 128, false)
KERNEL(decode_attention_d128_deep, 128, true)
