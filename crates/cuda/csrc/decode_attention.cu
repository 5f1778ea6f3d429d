// Attention of steps with a token per sequence.
#include "decode_attention.cuh"
#include "decode_walk.cuh"

using namespace decode_attention;

namespace {
// A warp for each head that a block is likely to have, or two blocks on a multiprocessor. Of codes only those warps that have
// keys, and as many blocks as fit: three or five.
template <bool DEEP, Kv T>
constexpr int DECODE_THREADS = is_coded(T) ? WARPS * WARP : DEEP ? 256 : 320;
template <int D, bool DEEP, Kv T>
constexpr int DECODE_BLOCKS = D > 128 ? 1 : is_coded(T) ? (D == 64 ? 5 : 3) : DEEP ? 2 : 1;

// What the host reserves, device/decode.rs.
static_assert(sizeof(Shared<128>) == 5120 && sizeof(Shared<256>) == 9216 && SCRATCH == 2048, "attention_struct");
static_assert(sizeof(decode_walk::WalkShared<64>) == 91264 && sizeof(decode_walk::WalkShared<128>) == 178816, "walk");

// Grid: segments × key heads × tokens.
template <int D, bool DEEP, Kv T>
__device__ __forceinline__ void body(const DecodeAttentionArgs& args) {
    extern __shared__ __align__(128) uint8_t memory[];
    Shared<D>& shared = *reinterpret_cast<Shared<D>*>(memory);
    float* scratch = reinterpret_cast<float*>(memory + sizeof(Shared<D>));
    constexpr int THREADS = DECODE_THREADS<DEEP, T>;
    half* area = reinterpret_cast<half*>(scratch + (is_coded(T) ? CODED_SCRATCH<D, THREADS> : SCRATCH));
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
    if (works && is_coded(T)) fetch_coded<D, THREADS, T>(args, work, shared, reinterpret_cast<uint8_t*>(area));
    if (works && !is_coded(T)) fetch<D, THREADS, DEEP>(args, work, shared, area);
    grid_wait();
    if (works) attend<D, THREADS, DEEP, T>(args, work, shared, scratch, area);
}
}  // namespace

#define KERNEL(name, D, DEEP, T) \
    extern "C" __global__ void __launch_bounds__(DECODE_THREADS<DEEP, T>, DECODE_BLOCKS<D, DEEP, T>) \
        name(const __grid_constant__ DecodeAttentionArgs a) { \
        body<D, DEEP, T>(a); \
    }
KERNEL(decode_attention_d64, 64, false, Kv::F16)
KERNEL(decode_attention_d64_deep, 64, true, Kv::F16)
KERNEL(decode_attention_d64_bf16, 64, true, Kv::BF16)
KERNEL(decode_attention_d64_q8_0, 64, true, Kv::Q8_0)
KERNEL(decode_attention_d64_fp8, 64, true, Kv::FP8)
KERNEL(decode_attention_d128, 128, false, Kv::F16)
KERNEL(decode_attention_d128_deep, 128, true, Kv::F16)
KERNEL(decode_attention_d128_bf16, 128, true, Kv::BF16)
KERNEL(decode_attention_d128_q8_0, 128, true, Kv::Q8_0)
KERNEL(decode_attention_d128_fp8, 128, true, Kv::FP8)
KERNEL(decode_attention_d256_deep, 256, true, Kv::F16)
KERNEL(decode_attention_d256_bf16, 256, true, Kv::BF16)
KERNEL(decode_attention_d256_q8_0, 256, true, Kv::Q8_0)
KERNEL(decode_attention_d256_fp8, 256, true, Kv::FP8)

// The same for many of them.
#define WALK(name, D, T) \
    extern "C" __global__ void __launch_bounds__(decode_walk::WALK_THREADS, 1) \
        name(const __grid_constant__ DecodeAttentionArgs a) { \
        decode_walk::body<D, T>(a); \
    }
WALK(decode_walk_d64, 64, Kv::F16)
WALK(decode_walk_d64_bf16, 64, Kv::BF16)
WALK(decode_walk_d128, 128, Kv::F16)
WALK(decode_walk_d128_bf16, 128, Kv::BF16)
