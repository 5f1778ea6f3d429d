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
#include "qt16/integer.cuh"

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
    int unit_bits;   // logarithm of the units that 256 columns are
    int unused;
};

struct DecodeArgs {
    // Blocks of the first, then of the second, …; a gate and its up are the first two, and all blocks are both's.
    DecodeMatrix m[3];
    RowArgs row;                // no activation, no bias, and no norm but the root mean square's
    uint32_t* most;             // gated: bits of the largest magnitude of what is stored
    uint32_t* clear;            // a maximum that a later kernel collects, or null
    int gated;
    int cols;
    int segment_bits;  // logarithm of the number of segments
    int split_bits;    // and of the blocks of a cluster, each with its part of K, if nothing is asked of the whole row
    int finish;
    int act;
    float factor;
    float soft_cap;
};

namespace decode {

constexpr int WARPS = PREPARE_WARPS, WARP_BITS = 3;
static_assert(1 << WARP_BITS == WARPS, "WARP_BITS");

// The f16 profile.
struct Half {
    // Units of a warp that are on their way or at hand, and bytes of 256 columns of the input.
    static constexpr int DEPTH = 2, X_BYTES = 2 * (QT_K + QT_SUMS);
    template <class Unit>
    static constexpr bool TAKES = true;

    // The input from 256 · `part` on, `len` times 256 columns; returns what undoes its scale. The block comes together afterwards.
    __device__ __forceinline__ static float prepare(const RowArgs& row, RowBatch& batch, uint8_t* memory, int part, int len,
                                                    float* reduce) {
        half* x = reinterpret_cast<half*>(memory);
        const float unscale = prepare_part(row, batch, FragmentRow(x, len * QT_K, 4 * threadIdx.x), part * QT_K,
                                           (part + len) * QT_K, reduce);
        __syncthreads();
        return unscale;
    }

    // Sums of 16 rows.
    struct Sums {
        float acc[1][4] = {};

        // Unit u of those in `memory`, where `all` times 256 columns are.
        template <class Unit>
        __device__ __forceinline__ void add(const QtRaw& raw, int lane, float w_scale, const uint8_t* memory, int all,
                                            int u) {
            const int t = lane % 4;
            const half* x = reinterpret_cast<const half*>(memory);
            const half* at = x + u * Unit::K + t * 16;
            const half* sums = x + all * QT_K + u * QT_SUMS + t * 4;
            // All eight columns are the token: what the others add up is not looked at.
            auto x_of = [&](int, int slab, uint4& low, uint4& high) {
                low = *reinterpret_cast<const uint4*>(at + slab * 64);
                high = *reinterpret_cast<const uint4*>(at + slab * 64 + 8);
            };
            auto sums_of = [&](int) { return *reinterpret_cast<const uint2*>(sums); };
            multiply_unit<Unit, 1>(acc, raw, lane, w_scale, x_of, sums_of);
        }

        // f(row, sum) for the rows that this lane has.
        template <class F>
        __device__ __forceinline__ void each(int lane, F f) const {
            if (lane % 4 != 0) return;
            f(lane / 4, acc[0][0]);
            f(lane / 4 + 8, acc[0][2]);
        }
    };
};

// The int8 profile.
struct Int8 {
    static constexpr int DEPTH = 2, X_BYTES = Q8_UNIT;
    template <class Unit>
    static constexpr bool TAKES = Unit::CODES;

    __device__ __forceinline__ static float prepare(const RowArgs& row, RowBatch& batch, uint8_t* memory, int part, int len,
                                                    float* reduce) {
        return prepare_part_q8(row, batch, Q8Row{memory}, part * QT_K, (part + len) * QT_K, reduce);
    }

    struct Sums {
        float acc = 0.0f;

        template <class Unit>
        __device__ __forceinline__ void add(const QtRaw& raw, int lane, float, const uint8_t* memory, int, int u) {
            multiply_one<Unit>(acc, raw, lane, memory + u * Q8_UNIT);
        }

        template <class F>
        __device__ __forceinline__ void each(int lane, F f) const {
            if (lane % 4 < 2) f(lane / 4 + lane % 4 * 8, acc);
        }
    };
};

// Bytes of a unit at most.
constexpr int MOST_BYTES = Qt8_0::BYTES;
// Copies are fastest between addresses that agree within a line of so many bytes.
constexpr int LINE = 128;
// Bytes of a unit's place in a ring: units that are no lines lie where they begin in a line of their matrix.
__device__ __forceinline__ constexpr int place_bytes(int unit) {
    return (unit + LINE - 1) / LINE * LINE + (unit % LINE ? LINE : 0);
}

struct Shared {
    // Sums of the segments: [parity][turn and warp][row].
    float partial[2][2 * WARPS][QT_ROWS];
    float reduce[Q8_SHARED];
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

template <class Profile>
__device__ __forceinline__ void body(const DecodeArgs& a) {
    constexpr int DEPTH = Profile::DEPTH;
    // The row, and behind it the warps' rings of units.
    extern __shared__ __align__(LINE) uint8_t x[];
    __shared__ Shared shared;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    // Segments, blocks of a cluster and what follows from them are powers of two: their logarithms are added, and nothing
    // is divided.
    const bool clustered = a.split_bits > 0, gated = a.gated;
    const int rank = blockIdx.x & ((1 << a.split_bits) - 1);
    // The blocks of a cluster are there when the first store into one of them is.
    if (clustered) cluster_arrive();
    int which = 0, block = blockIdx.x >> a.split_bits;
    for (; which < 2 && block >= a.m[which].blocks; ++which) block -= a.m[which].blocks;
    const DecodeMatrix& m = a.m[which];
    // In units of 256 columns, as segments are.
    const int units = a.cols / QT_K, segments = 1 << a.segment_bits, share_bits = a.segment_bits - a.split_bits;
    // Row groups at a time. For a gated product those of gate and up alternate, and a pair is one work, if need be one
    // after the other.
    const int slot_bits = WARP_BITS - share_bits, each_bits = gated ? 1 : 0, work_bits = max(slot_bits, each_bits);
    const int turns = 1 << (work_bits - slot_bits), slot = warp >> share_bits;
    const int segment = (rank << share_bits) + (warp & ((1 << share_bits) - 1));
    auto begin = [&](int s) { return s * units >> a.segment_bits; };
    const int first = begin(segment), len = begin(segment + 1) - first, own_units = len << m.unit_bits;
    const int part = begin(rank << share_bits), part_len = begin((rank + 1) << share_bits) - part;
    const int groups = (m.rows + QT_ROWS - 1) / QT_ROWS << each_bits, stride = m.blocks << work_bits;

    // Where a warp's units are, one after the other: row groups alternate between gate and up if there are two, and the
    // last one stands for those beyond the end, whose sums are dropped.
    struct Cursor {
        const uint8_t* at;
        int work, turn, unit;  // `work`: its first row group
    };
    auto find = [&](Cursor& c) {
        const int group = min(c.work + (c.turn << slot_bits) + slot, groups - 1);
        const uint8_t* w = gated && group % 2 ? a.m[1].w : m.w;
        const int unit = ((group >> each_bits) * units + first) << m.unit_bits;
        c.at = w + static_cast<size_t>(unit) * m.unit_bytes + lane * 16;
    };
    auto advance = [&](Cursor& c, int bytes) {
        c.at += bytes;
        if (++c.unit == own_units) {
            c.unit = 0;
            if (++c.turn == turns) {
                c.turn = 0;
                c.work += stride;
            }
            find(c);
        }
    };
    // Weights depend on no kernel before: they are asked for before waiting for one.
    uint8_t* ring = x + (part_len * Profile::X_BYTES + LINE - 1) / LINE * LINE + warp * DEPTH * place_bytes(m.unit_bytes);
    Cursor ask = {nullptr, block << work_bits, 0, 0};
    find(ask);
    int load_place = 0;
    // `bytes`: those of a unit, as a constant where the type is one.
    auto load = [&](int bytes) {
        if (ask.work < groups) {
            uint8_t* to = ring + load_place * place_bytes(bytes) + lane * 16;
            if (bytes % LINE) to += (static_cast<int>(reinterpret_cast<uintptr_t>(ask.at)) - lane * 16) & (LINE - 1);
#pragma unroll
            for (int i = 0; i < MOST_BYTES; i += WARP * 16) {
                if (i + lane * 16 < bytes) copy_async16(to + i, ask.at + i);
            }
            advance(ask, bytes);
            if (++load_place == DEPTH) load_place = 0;
        }
        copy_commit();
    };
    for (int i = 0; i < DEPTH; ++i) load(m.unit_bytes);
    int place = 0;
    // What this kernel does without: the compiler leaves it out.
    RowArgs row = a.row;
    row.other = nullptr;
    row.act = static_cast<int>(Act::None);
    row.norm.bias = nullptr;
    row.norm.kind = static_cast<int>(row.norm.kind == 0 ? Norm::None : Norm::Rms);
    if (blockIdx.x != 0) row.plain = nullptr;
    // Rows of a work whose sums end here.
    const int own_bits = work_bits - each_bits - a.split_bits, e = threadIdx.x;
    const Finish finish = static_cast<Finish>(a.finish);

    RowBatch batch;
    batch.load_norm(row, part * QT_K + 4 * threadIdx.x);
    grid_wait();

    if (a.clear && blockIdx.x == 0 && threadIdx.x == 0) *a.clear = 0;
    const float unscale = Profile::prepare(row, batch, x, part, part_len, shared.reduce);
    if (clustered) cluster_wait();

    int parity = 0;
#pragma unroll 1
    for (int at = block << work_bits; at < groups; at += stride) {
        // The element of the result that this thread will add up.
        const int out_row = ((at >> each_bits) + (rank << own_bits)) * QT_ROWS + e;
        const bool mine = e < QT_ROWS << own_bits && out_row < m.rows;
        float before = 0.0f, bias = 0.0f;
        if (mine && finish == Finish::Residual) before = __ldcg(m.out + out_row);
        if (mine && m.bias) bias = m.bias[out_row];

        // Turns follow each other in `partial`; works alternate between its halves.
        float(*partial)[QT_ROWS] = shared.partial[parity];
        parity ^= 1;
#pragma unroll 1
        for (int turn = 0; turn < turns; ++turn) {
            typename Profile::Sums sums;
            const float w_scale = gated && ((turn << slot_bits) + slot) % 2 ? a.m[1].w_scale : m.w_scale;
            // The choice among the types is made once, not for each unit.
            auto multiply = [&](auto unit) {
                using Unit = decltype(unit);
                constexpr int EACH = QT_K / Unit::K;
                static_assert(EACH == 1 || Unit::BYTES % LINE == 0, "units that are no lines are of 256 columns");
                uint32_t before_unit = 0;  // bytes, of which the lowest bits count
                if (Unit::BYTES % LINE) {
                    const int group = min(at + (turn << slot_bits) + slot, groups - 1) >> each_bits;
                    before_unit = static_cast<uint32_t>(group * units + first) * Unit::BYTES;
                }
#pragma unroll 1
                for (int u = 0; u < len * EACH; ++u) {
                    const uint8_t* here = ring + place * place_bytes(Unit::BYTES);
                    if (Unit::BYTES % LINE) here += (before_unit + u * Unit::BYTES) & (LINE - 1);
                    if (++place == DEPTH) place = 0;
                    copy_wait<DEPTH - 1>();
                    __syncwarp();
                    QtRaw raw;
                    Unit::template load<FromShared>(raw, here, lane);
                    __syncwarp();
                    load(Unit::BYTES);
                    sums.template add<Unit>(raw, lane, w_scale, x, part_len, (first - part) * EACH + u);
                }
            };
            switch (static_cast<QtType>(m.type)) {
#define CASE(Unit, name) \
    case QtType::name: \
        if constexpr (Profile::template TAKES<Unit>) multiply(Unit()); \
        break;
                MINFER_QT16(CASE)
#undef CASE
            }
            sums.each(lane, [&](int row, float sum) {
                if (clustered) {
                    const int at = (slot & ((1 << own_bits) - 1)) << a.segment_bits | segment;
                    store_in_cluster(&partial[at][row], slot >> own_bits, sum);
                } else {
                    partial[((turn << slot_bits) + slot) << a.segment_bits | segment][row] = sum;
                }
            });
        }
        if (clustered) {
            cluster_arrive();
            cluster_wait();
        } else {
            __syncthreads();
        }
        if (!mine) continue;
        // Segments in ascending order.
        auto sum_of = [&](int slot) {
            float sum = 0.0f;
#pragma unroll
            for (int s = 0; s < WARPS; ++s) {
                if (s < segments) sum += partial[(slot << a.segment_bits) + s][e % QT_ROWS];
            }
            return sum;
        };
        float y = sum_of(e / QT_ROWS << each_bits) * (m.w_unscale * unscale);
        if (m.bias) y += bias;
        if (gated) {
            float up = sum_of((e / QT_ROWS << 1) + 1) * (a.m[1].w_unscale * unscale);
            if (a.m[1].bias) up += a.m[1].bias[out_row];
            y = activate(static_cast<Act>(a.act), y) * up;
        } else {
            y = finish_value(finish, y, a.factor, a.soft_cap, before);
        }
        m.out[out_row] = y;
        if (gated && a.most) atomicMax(a.most, __float_as_uint(fabsf(y)));
    }
}

}  // namespace decode
