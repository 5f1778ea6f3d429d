// Products of one token with matrices in QT16, its input made on the spot: every block norms or scales the row into
// shared memory, where the B fragments come from, while its first units of weights are on their way. The sums have the
// order of matmul/qt16.cuh, hence its bits.
//
// One kernel for all stages and types: a layer's products follow each other faster than their instructions could be
// fetched anew.
#pragma once
#include "matmul.cuh"
#include "prepare.cuh"
#include "qt16.cuh"

struct DecodeMatrix {
    const uint8_t* w;
    const float* bias;  // [rows], or null
    float* out;         // [rows]
    float w_scale;
    float w_unscale;
    int rows;
    int blocks;      // that work on it, or clusters
    int type;        // index into MINFER_QT16
    int unit_bytes;  // of the type
};

struct DecodeArgs {
    // Blocks of the first, then of the second, …; a gate and its up are the first two, and all blocks are both's.
    DecodeMatrix m[3];
    RowArgs row;                // no activation, no bias, and no norm but the root mean square's
    uint32_t* most;             // gated: bits of the largest magnitude of what is stored
    uint32_t* clear;            // a maximum that a later kernel collects, or null
    int gated;
    int cols;
    int segments;
    int split;  // blocks of a cluster, each with its part of K, if the input's largest magnitude is known; or 1
    int finish;
    int act;
    float factor;
    float soft_cap;
};

namespace decode {

constexpr int WARPS = PREPARE_WARPS;
// Units of a warp that are on their way or at hand.
constexpr int DEPTH = 2;

struct Shared {
    // Sums of the segments: [parity][turn and warp][row].
    float partial[2][2 * WARPS][QT_ROWS];
    float reduce[2 * WARPS];
};

// Clusters exist from Hopper on; elsewhere `split` is 1 and these are not reached. Stores to the shared memory of a
// block of the cluster, at the address that `here` has in this one's.
__device__ __forceinline__ void store_in_cluster(const float* here, int rank, float v) {
#if __CUDA_ARCH__ >= 900
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(here)), "r"(rank));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(v) : "memory");
#endif
}
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

__device__ __forceinline__ void body(const DecodeArgs& a) {
    // The row, and behind it the warps' rings of units.
    extern __shared__ __align__(16) half x[];
    __shared__ Shared shared;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, t = lane % 4;
    const int split = a.split, rank = split > 1 ? blockIdx.x % split : 0;
    // The blocks of a cluster are there when the first store into one of them is.
    if (split > 1) cluster_arrive();
    int which = 0, block = split > 1 ? blockIdx.x / split : blockIdx.x;
    for (; which < 2 && block >= a.m[which].blocks; ++which) block -= a.m[which].blocks;
    const DecodeMatrix& m = a.m[which];
    const bool gated = a.gated;
    const int units = a.cols / QT_K, segments = a.segments, share = segments / split;
    // Row groups at a time. For a gated product those of gate and up alternate, and a pair is one work, if need be one
    // after the other.
    const int slots = WARPS / share, each = gated ? 2 : 1, work = max(slots, each), turns = work / slots;
    const int slot = warp / share, segment = rank * share + warp % share;
    const int first = segment_begin(units, segments, segment), len = segment_begin(units, segments, segment + 1) - first;
    const int part = segment_begin(units, segments, rank * share);
    const int part_len = segment_begin(units, segments, (rank + 1) * share) - part;
    const int groups = (m.rows + QT_ROWS - 1) / QT_ROWS * each;
    const int rounds = (groups - block * work + m.blocks * work - 1) / (m.blocks * work) * turns;

    auto address = [&](int round) {
        // The last group instead of those beyond the end; its sums are dropped.
        const int group = min((round / turns * m.blocks + block) * work + round % turns * slots + slot, groups - 1);
        const uint8_t* w = group % each ? a.m[1].w : m.w;
        return w + (static_cast<size_t>(group / each) * units + first) * m.unit_bytes;
    };
    // Weights depend on no kernel before: they are asked for before waiting for one.
    uint8_t* ring = reinterpret_cast<uint8_t*>(x + part_len * (QT_K + QT_SUMS)) + warp * DEPTH * m.unit_bytes;
    const uint8_t* from = address(0);
    int load_round = 0, load_unit = 0, load_place = 0;
    auto load = [&] {
        if (load_round < rounds) {
            for (int i = lane * 16; i < m.unit_bytes; i += WARP * 16) {
                copy_async16(ring + load_place * m.unit_bytes + i, from + i);
            }
            from += m.unit_bytes;
            if (++load_unit == len) {
                load_unit = 0;
                if (++load_round < rounds) from = address(load_round);
            }
            if (++load_place == DEPTH) load_place = 0;
        }
        copy_commit();
    };
    for (int i = 0; i < DEPTH; ++i) load();
    int place = 0;
    // What this kernel does without: the compiler leaves it out.
    RowArgs row = a.row;
    row.other = nullptr;
    row.act = static_cast<int>(Act::None);
    row.norm.bias = nullptr;
    row.norm.kind = static_cast<int>(row.norm.kind == 0 ? Norm::None : Norm::Rms);
    if (blockIdx.x != 0) row.plain = nullptr;
    // Row groups of a work whose sums end here, and where they begin.
    const int own = work / each / split, e = threadIdx.x;
    const Finish finish = static_cast<Finish>(a.finish);

    RowBatch batch;
    batch.load_norm(row, part * QT_K + 4 * threadIdx.x);
    grid_wait();

    if (a.clear && blockIdx.x == 0 && threadIdx.x == 0) *a.clear = 0;
    const float unscale = prepare_part(row, batch, FragmentRow(x, part_len * QT_K, 4 * threadIdx.x),
                                       part * QT_K, (part + part_len) * QT_K, shared.reduce);
    __syncthreads();
    if (split > 1) cluster_wait();

#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
        // The element of the result that this thread will add up.
        const int out_row = (((round / turns) * m.blocks + block) * (work / each) + rank * own) * QT_ROWS + e;
        const bool mine = round % turns == turns - 1 && e < own * QT_ROWS && out_row < m.rows;
        float before = 0.0f, bias = 0.0f;
        if (mine && finish == Finish::Residual) before = __ldcg(m.out + out_row);
        if (mine && m.bias) bias = m.bias[out_row];

        float acc[1][4] = {};
        const bool second = gated && (turns == 1 ? slot % 2 : round % 2);
        const float w_scale = second ? a.m[1].w_scale : m.w_scale;
        // The choice among the types is made once for a round, not for each unit.
        auto multiply = [&](auto unit) {
            using Unit = decltype(unit);
#pragma unroll 1
            for (int u = 0; u < len; ++u) {
                const half* at = x + (first - part + u) * QT_K + t * 16;
                const half* sums = x + part_len * QT_K + (first - part + u) * QT_SUMS + t * 4;
                // All eight columns are the token: what the others add up is not looked at.
                auto x_of = [&](int, int slab, uint4& low, uint4& high) {
                    low = *reinterpret_cast<const uint4*>(at + slab * 64);
                    high = *reinterpret_cast<const uint4*>(at + slab * 64 + 8);
                };
                auto sums_of = [&](int) { return *reinterpret_cast<const uint2*>(sums); };
                const uint8_t* here = ring + place * m.unit_bytes;
                if (++place == DEPTH) place = 0;
                copy_wait<DEPTH - 1>();
                __syncwarp();
                QtRaw raw;
                Unit::template load<FromShared>(raw, here, lane);
                __syncwarp();
                load();
                multiply_unit<Unit, 1>(acc, raw, lane, w_scale, x_of, sums_of);
            }
        };
        switch (static_cast<QtType>(m.type)) {
#define CASE(Unit, name) \
    case QtType::name: multiply(Unit()); break;
            MINFER_QT16(CASE)
#undef CASE
        }
        // Turns of a work follow each other in `partial`; works alternate between its halves.
        float(*partial)[QT_ROWS] = shared.partial[round / turns % 2];
        if (lane % 4 == 0) {
            if (split == 1) {
                float* to = partial[round % turns * WARPS + slot * segments + segment];
                to[lane / 4] = acc[0][0];
                to[lane / 4 + 8] = acc[0][2];
            } else {
                const float* to = partial[slot % own * segments + segment];
                store_in_cluster(to + lane / 4, slot / own, acc[0][0]);
                store_in_cluster(to + lane / 4 + 8, slot / own, acc[0][2]);
            }
        }
        if (round % turns != turns - 1) continue;
        if (split == 1) {
            __syncthreads();
        } else {
            cluster_arrive();
            cluster_wait();
        }
        if (!mine) continue;
        // Segments in ascending order.
        auto sum_of = [&](int slot) {
            float sum = 0.0f;
#pragma unroll
            for (int s = 0; s < WARPS; ++s) {
                if (s < segments) sum += partial[slot * segments + s][e % QT_ROWS];
            }
            return sum;
        };
        float y = sum_of(e / QT_ROWS * each) * (m.w_unscale * unscale);
        if (m.bias) y += bias;
        if (gated) {
            float up = sum_of(e / QT_ROWS * 2 + 1) * (a.m[1].w_unscale * unscale);
            if (a.m[1].bias) up += a.m[1].bias[out_row];
            y = activate(static_cast<Act>(a.act), y) * up;
        } else {
            y = finish_value(finish, y, a.factor, a.soft_cap, before);
        }
        m.out[out_row] = y;
        if (gated) atomicMax(a.most, __float_as_uint(fabsf(y)));
    }
}

}  // namespace decode
