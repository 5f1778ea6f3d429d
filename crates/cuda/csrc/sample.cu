// The token that the sampler draws from the logits of each output, by the specification of crates/engine/src/sampling.rs:
// top-k, top-p, min-p, temperature, draw. Weights are integers from a double-precision exponential whose every step is
// rounded as on the host, and sums of integers have no order: the token is the host's, whoever adds.
//
// `argmax` has found the largest logit. `sample_bins` finds out how far below it what is kept can lie, `sample_draw`
// collects what is no farther, and its last block does the rest with a list of few tokens. A list that is too long
// (thousands of equal logits, or of kept tokens) is not made: one block searches the row digit by digit.
#include "rank.cuh"

namespace {
using Word = unsigned long long;

constexpr int THREADS = 512;
constexpr int WARPS = THREADS / WARP;
// Tokens of a block, and of a list.
constexpr int EACH = 4;
constexpr int TILE = THREADS * EACH;
constexpr int LIST = TILE;
// Bins of distances from the largest logit, 1/64 wide; the last one has all that is farther.
constexpr int BINS = TILE;
constexpr float BINS_PER_ONE = 64.0f;

// What the host wants of an output, in its memory.
struct Draw {
    float temperature;  // 0: the largest logit
    uint32_t top_k;     // 0: all
    float top_p;        // 1: all
    uint32_t unused;
    Word least;   // smallest weight at temperature 1 that min-p keeps
    Word random;  // 64 bits
};

// What is known of an output; all but `bound` and `total` zero before and after.
struct Found {
    uint32_t arrived;  // blocks that are done
    uint32_t listed;   // tokens in the list, or more than fit
    uint32_t bound;    // the last bin with a token that is kept
    uint32_t unused;
    Word total;  // weight of all tokens, if top-p follows no top-k
};

struct SampleArgs {
    const float* logits;  // [outputs][vocab]
    const Word* best;     // [outputs], of `argmax`
    const Draw* draws;    // [outputs]
    Word* bins;           // [outputs][BINS], zero before and after
    Found* found;         // [outputs]
    Word* list;           // [outputs][LIST]
    Word* sums;           // [outputs][blocks]
    Word* result;         // [outputs], as `argmax` has it
    int vocab;
    int unused;
};

// A number that ascends as tokens rank lower, for tokens that are candidates.
__device__ __forceinline__ Word down_rank(float logit, int id) { return ~rank_of(logit, id); }

// The logit of a rank.
__device__ __forceinline__ float logit_of(uint32_t order) {
    return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}

__device__ __forceinline__ bool candidate(float logit) { return logit > -INFINITY; }

// Weight of the largest logit: 2^40.
constexpr double ONE = 1099511627776.0;

// `exp` of the host's sampler.
__device__ __forceinline__ double sampler_exp(double x) {
    constexpr double ROUND = 6755399441055744.0;  // 1.5 · 2^52
    // 1/n! for n = 13 … 0.
    constexpr double SERIES[] = {1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0,
                                 1.0 / 40320.0,      1.0 / 5040.0,      1.0 / 720.0,      1.0 / 120.0,     1.0 / 24.0,
                                 1.0 / 6.0,          1.0 / 2.0,         1.0,              1.0};
    const double ln2_high = __longlong_as_double(0x3fe62e42fee00000ll), ln2_low = __longlong_as_double(0x3dea39ef35793c76ll);
    const double n = __dsub_rn(__dadd_rn(__dmul_rn(x, 1.4426950408889634), ROUND), ROUND);
    const double r = __dsub_rn(__dsub_rn(x, __dmul_rn(n, ln2_high)), __dmul_rn(n, ln2_low));
    double power = SERIES[0];
#pragma unroll
    for (int i = 1; i < 14; ++i) power = __dadd_rn(__dmul_rn(power, r), SERIES[i]);
    return __dmul_rn(power, __longlong_as_double((static_cast<long long>(n) + 1023) << 52));
}

__device__ __forceinline__ Word weight_of(double x) {
    // exp(−28) · 2^40 is below 1.
    return x < -28.0 ? 0 : __double2ull_rz(__dmul_rn(sampler_exp(x), ONE));
}

// The weight at temperature 1.
__device__ __forceinline__ Word plain_weight(float logit, float most) {
    if (logit == most) return static_cast<Word>(ONE);
    // Most tokens of a vocabulary: without double precision.
    if (most - logit > 29.0f) return 0;
    return weight_of(__dsub_rn(static_cast<double>(logit), static_cast<double>(most)));
}

// The weight at the draw's temperature of a token that min-p keeps, or 0.
__device__ __forceinline__ Word kept_weight(const Draw& draw, float logit, float most) {
    if (draw.least > 0 && plain_weight(logit, most) < draw.least) return 0;
    if (logit == most) return static_cast<Word>(ONE);
    const double below = __dsub_rn(static_cast<double>(logit), static_cast<double>(most));
    return weight_of(__ddiv_rn(below, static_cast<double>(draw.temperature)));
}

// Weight that top-p wants of `total`; the first token is kept in any case.
__device__ __forceinline__ Word share_of(float top_p, Word total) {
    const double goal = ceil(__dmul_rn(static_cast<double>(top_p), __ull2double_rn(total)));
    return max(__double2ull_rz(goal), 1ull);
}

// Ascends as logits descend: differences are rounded in order.
__device__ __forceinline__ int bin_of(float logit, float most) {
    if (logit == most) return 0;
    const float distance = most - logit;
    return distance < BINS / BINS_PER_ONE - 0.5f ? static_cast<int>(distance * BINS_PER_ONE) : BINS - 1;
}

// Sum over the block, for all threads. `shared`: WARPS words.
__device__ __forceinline__ Word block_sum(Word v, Word* shared) {
#pragma unroll
    for (int d = WARP / 2; d > 0; d /= 2) v += __shfl_xor_sync(~0u, v, d);
    __syncthreads();
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = v;
    __syncthreads();
    v = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) v += shared[w];
    return v;
}

// Sum of what threads before this one have.
__device__ __forceinline__ Word before_me(Word v, Word* shared) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    Word up = v;
#pragma unroll
    for (int d = 1; d < WARP; d *= 2) {
        const Word other = __shfl_up_sync(~0u, up, d);
        if (lane >= d) up += other;
    }
    __syncthreads();
    if (lane == WARP - 1) shared[warp] = up;
    __syncthreads();
    Word before = up - v;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) before += w < warp ? shared[w] : 0;
    return before;
}

struct Place {
    int index;
    Word before;  // sum of what comes before
};

// Of THREADS · N values, N consecutive ones per thread: the first where the running sum reaches `goal`, which is at least
// 1 and at most the sum of all. `shared`: WARPS + 2 words.
template <int N>
__device__ __forceinline__ Place reach(const Word (&own)[N], Word goal, Word* shared) {
    Word sum = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) sum += own[j];
    Word before = before_me(sum, shared);
    if (before < goal && before + sum >= goal) {
        int index = N * threadIdx.x;
#pragma unroll
        for (int j = 0; j < N; ++j) {
            if (before + own[j] >= goal) break;
            before += own[j];
            ++index;
        }
        shared[WARPS] = before;
        shared[WARPS + 1] = index;
    }
    __syncthreads();
    return {static_cast<int>(shared[WARPS + 1]), shared[WARPS]};
}

// The first i in begin..end where the running sum of `value(i)` exceeds `target`; it does. `before`: the sum that comes
// before.
template <class Value>
__device__ __forceinline__ int first_beyond(int begin, int end, Word& before, Word target, Word* shared, Value value) {
    for (int tile = begin;; tile += TILE) {
        Word own[EACH], sum = 0;
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            const int i = tile + EACH * static_cast<int>(threadIdx.x) + j;
            own[j] = i < end ? value(i) : 0;
            sum += own[j];
        }
        sum = block_sum(sum, shared);
        if (before + sum > target || tile + TILE >= end) {
            const Place place = reach(own, target + 1 - before, shared);
            before += place.before;
            return tile + place.index;
        }
        before += sum;
    }
}

// Sorts `count` words of shared memory, a power of two, ascending.
__device__ __forceinline__ void sort(Word* words, int count) {
    for (int size = 2; size <= count; size *= 2) {
        for (int step = size / 2; step > 0; step /= 2) {
            __syncthreads();
            for (int i = threadIdx.x; i < count / 2; i += THREADS) {
                const int low = i / step * 2 * step + i % step, high = low + step;
                const Word a = words[low], b = words[high];
                if ((a > b) == ((low & size) == 0)) {
                    words[low] = b;
                    words[high] = a;
                }
            }
        }
    }
    __syncthreads();
}

__device__ __forceinline__ int power_of_two(int n) { return n <= 1 ? 1 : 1 << (32 - __clz(n - 1)); }

// What a block knows of its output.
struct Row {
    const float* logits;
    int vocab;
    float most;
    Draw draw;
    Word* shared;  // WARPS + 2 words

    __device__ __forceinline__ float logit(int id) const { return __ldcg(logits + id); }
};

// The token, given its `listed` words, which have everything that top-k or top-p keeps.
__device__ __forceinline__ int draw_from_list(const Row& row, const Word* list, int listed, Word total, Word* memory) {
    Word *keys = memory, *weights = memory + LIST;
    const int first = EACH * threadIdx.x;
    const Draw& draw = row.draw;
    int padded = power_of_two(listed);
    for (int i = threadIdx.x; i < padded; i += THREADS) keys[i] = i < listed ? __ldcg(list + i) : ~0ull;
    sort(keys, padded);
    auto logit_at = [&](int i) { return logit_of(~static_cast<uint32_t>(keys[i] >> 32)); };
    int kept = listed;
    if (draw.top_k != 0) kept = static_cast<int>(min(static_cast<uint32_t>(listed), draw.top_k));
    Word own[EACH], sum = 0;
    if (draw.top_p < 1.0f) {
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            own[j] = first + j < kept ? plain_weight(logit_at(first + j), row.most) : 0;
            sum += own[j];
        }
        if (draw.top_k != 0) total = block_sum(sum, row.shared);
        kept = reach(own, share_of(draw.top_p, total), row.shared).index + 1;
        sum = 0;
    }
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        const Word weight = first + j < kept ? kept_weight(draw, logit_at(first + j), row.most) : 0;
        weights[first + j] = weight;
        sum += weight;
    }
    const Word target = __umul64hi(draw.random, block_sum(sum, row.shared));
    // In ascending order of ids, each above its place among the weights.
    padded = power_of_two(kept);
    for (int i = threadIdx.x; i < padded; i += THREADS) {
        const Word id = static_cast<uint32_t>(keys[i]);
        keys[i] = i < kept ? id * LIST + i : ~0ull;
    }
    sort(keys, padded);
#pragma unroll
    for (int j = 0; j < EACH; ++j) own[j] = first + j < kept ? weights[keys[first + j] % LIST] : 0;
    return static_cast<int>(keys[reach(own, target + 1, row.shared).index] / LIST);
}

// Rank of the last token that is kept: of those up to `limit`, the first where the running sum of weights, or the number
// of tokens, reaches a goal. A digit after the other, from histograms of what has the digits before.
template <bool WEIGHS>
__device__ __forceinline__ Word last_kept(const Row& row, Word limit, Word goal, Word* memory) {
    constexpr int DIGITS = 2 * LIST;
    // An order of 32 bits, and an id below 2^23.
    constexpr int SHIFT[] = {52, 40, 32, 11, 0}, WIDTH[] = {12, 12, 8, 12, 11};
    Word prefix = 0, mask = 0;
#pragma unroll 1
    for (int digit = 0; digit < 5; ++digit) {
        for (int i = threadIdx.x; i < DIGITS; i += THREADS) memory[i] = 0;
        __syncthreads();
        const int shift = SHIFT[digit];
        const Word digits = (1ull << WIDTH[digit]) - 1;
        for (int id = threadIdx.x; id < row.vocab; id += THREADS) {
            const float logit = row.logit(id);
            const Word rank = down_rank(logit, id);
            if (!candidate(logit) || rank > limit || (rank & mask) != prefix) continue;
            const Word weight = WEIGHS ? plain_weight(logit, row.most) : 1;
            if (weight > 0) atomicAdd(memory + (rank >> shift & digits), weight);
        }
        __syncthreads();
        Word own[DIGITS / THREADS], sum = 0;
#pragma unroll
        for (int j = 0; j < DIGITS / THREADS; ++j) {
            own[j] = memory[DIGITS / THREADS * threadIdx.x + j];
            sum += own[j];
        }
        // Fewer than top-k wants: all.
        if (!WEIGHS && digit == 0 && block_sum(sum, row.shared) < goal) return limit;
        const Place place = reach(own, goal, row.shared);
        goal -= place.before;
        prefix |= static_cast<Word>(place.index) << shift;
        mask |= digits << shift;
    }
    return prefix;
}

// The token, if what is kept fits no list.
__device__ __noinline__ int draw_from_row(const Row& row, Word total, Word* memory) {
    const Draw& draw = row.draw;
    Word limit = ~0ull;
    auto sum_of = [&](auto weight) {
        Word sum = 0;
        for (int id = threadIdx.x; id < row.vocab; id += THREADS) {
            const float logit = row.logit(id);
            if (candidate(logit) && down_rank(logit, id) <= limit) sum += weight(logit);
        }
        return block_sum(sum, row.shared);
    };
    if (draw.top_k != 0) {
        limit = last_kept<false>(row, limit, draw.top_k, memory);
        if (draw.top_p < 1.0f) total = sum_of([&](float logit) { return plain_weight(logit, row.most); });
    }
    if (draw.top_p < 1.0f) limit = last_kept<true>(row, limit, share_of(draw.top_p, total), memory);
    auto weight = [&](float logit) { return kept_weight(draw, logit, row.most); };
    const Word target = __umul64hi(draw.random, sum_of(weight));
    Word before = 0;
    return first_beyond(0, row.vocab, before, target, row.shared, [&](int id) {
        const float logit = row.logit(id);
        return candidate(logit) && down_rank(logit, id) <= limit ? weight(logit) : 0ull;
    });
}

// The draw of an output, by one thread before the kernels before have ended: no kernel writes it.
__device__ __forceinline__ void ask(const SampleArgs& a, Draw& draw) {
    if (threadIdx.x == 0) draw = a.draws[blockIdx.y];
}

// Whether there is something to draw: no NaN, a candidate, and a temperature.
__device__ __forceinline__ bool draws(const Draw& draw, Word best) {
    const uint32_t order = best >> 32;
    return draw.temperature > 0.0f && order > ~0xff800000u && order != ~0u;
}

// Whether this block is the last of its output.
__device__ __forceinline__ bool last_block(Found& found, int& shared) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        const bool last = atomicAdd(&found.arrived, 1) + 1 == gridDim.x;
        if (last) found.arrived = 0;
        shared = last;
    }
    __syncthreads();
    if (shared) __threadfence();
    return shared;
}
}  // namespace

// How far from the largest logit tokens are kept: by top-k from how many there are in each bin, without it by top-p from
// what they weigh. Blocks × outputs.
extern "C" __global__ void __launch_bounds__(THREADS, 1) sample_bins(const SampleArgs a) {
    __shared__ Word bins[BINS];
    __shared__ Word shared[WARPS + 2];
    __shared__ Draw draw;
    __shared__ int last;
    ask(a, draw);
    for (int i = threadIdx.x; i < BINS; i += THREADS) bins[i] = 0;
    grid_wait();
    __syncthreads();
    const int output = blockIdx.y;
    const Word best = __ldcg(a.best + output);
    const bool counts = draw.top_k != 0;
    if (!draws(draw, best) || !(counts || draw.top_p < 1.0f)) return;
    const float most = logit_of(best >> 32);
    const float* logits = a.logits + static_cast<size_t>(output) * a.vocab;
    const int first = blockIdx.x * TILE + threadIdx.x;
    float v[EACH];
#pragma unroll
    for (int j = 0; j < EACH; ++j) v[j] = first + j * THREADS < a.vocab ? __ldcg(logits + first + j * THREADS) : -INFINITY;
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        if (!candidate(v[j])) continue;
        Word* bin = bins + bin_of(v[j], most);
        // A count stays in the lower half.
        if (counts) atomicAdd(reinterpret_cast<uint32_t*>(bin), 1);
        else if (const Word weight = plain_weight(v[j], most)) atomicAdd(bin, weight);
    }
    __syncthreads();
    Word* all = a.bins + static_cast<size_t>(output) * BINS;
    for (int i = threadIdx.x; i < BINS; i += THREADS) {
        if (bins[i] != 0) atomicAdd(all + i, bins[i]);
    }
    Found& found = a.found[output];
    if (!last_block(found, last)) return;
    Word own[EACH], sum = 0;
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        Word* bin = all + EACH * threadIdx.x + j;
        own[j] = __ldcg(bin);
        *bin = 0;
        sum += own[j];
    }
    const Word total = block_sum(sum, shared);
    const Word goal = counts ? min(total, static_cast<Word>(draw.top_k)) : share_of(draw.top_p, total);
    const Place place = reach(own, goal, shared);
    if (threadIdx.x == 0) {
        found.bound = place.index;
        found.total = total;
    }
}

// The token. Blocks × outputs.
extern "C" __global__ void __launch_bounds__(THREADS, 1) sample_draw(const SampleArgs a) {
    __shared__ Word memory[2 * LIST];
    __shared__ Word shared[WARPS + 2];
    __shared__ Draw draw;
    __shared__ int last;
    __shared__ uint32_t place;
    ask(a, draw);
    grid_wait();
    __syncthreads();
    const int output = blockIdx.y;
    const Word best = __ldcg(a.best + output);
    if (!draws(draw, best)) {
        if (blockIdx.x == 0 && threadIdx.x == 0) a.result[output] = best;
        return;
    }
    const bool selects = draw.top_k != 0 || draw.top_p < 1.0f;
    const Row row = {a.logits + static_cast<size_t>(output) * a.vocab, a.vocab, logit_of(best >> 32), draw, shared};
    Word* list = a.list + static_cast<size_t>(output) * LIST;
    Word* sums = a.sums + static_cast<size_t>(output) * gridDim.x;
    Found& found = a.found[output];
    const int first = blockIdx.x * TILE + threadIdx.x;
    float v[EACH];
#pragma unroll
    for (int j = 0; j < EACH; ++j) v[j] = first + j * THREADS < a.vocab ? row.logit(first + j * THREADS) : -INFINITY;
    if (selects) {
        const int bound = __ldcg(&found.bound);
        auto lists = [&](float logit) { return candidate(logit) && bin_of(logit, row.most) <= bound; };
        int count = 0;
#pragma unroll
        for (int j = 0; j < EACH; ++j) count += lists(v[j]);
        uint32_t at = static_cast<uint32_t>(before_me(count, shared));
        if (threadIdx.x == THREADS - 1 && at + count > 0) place = atomicAdd(&found.listed, at + count);
        __syncthreads();
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            if (!lists(v[j])) continue;
            if (place + at < LIST) list[place + at] = down_rank(v[j], first + j * THREADS);
            ++at;
        }
    } else {
        Word sum = 0;
#pragma unroll
        for (int j = 0; j < EACH; ++j) sum += candidate(v[j]) ? kept_weight(draw, v[j], row.most) : 0;
        sum = block_sum(sum, shared);
        if (threadIdx.x == 0) sums[blockIdx.x] = sum;
    }
    if (!last_block(found, last)) return;
    int id;
    if (selects) {
        const uint32_t listed = __ldcg(&found.listed);
        const Word total = __ldcg(&found.total);
        __syncthreads();
        if (threadIdx.x == 0) found.listed = 0;
        id = listed <= LIST ? draw_from_list(row, list, listed, total, memory) : draw_from_row(row, total, memory);
    } else {
        Word total = 0;
        for (int block = threadIdx.x; block < gridDim.x; block += THREADS) total += __ldcg(sums + block);
        const Word target = __umul64hi(draw.random, block_sum(total, shared));
        // First the block, then the token.
        Word before = 0;
        const int block = first_beyond(0, gridDim.x, before, target, shared, [&](int i) { return __ldcg(sums + i); });
        id = first_beyond(block * TILE, min((block + 1) * TILE, a.vocab), before, target, shared, [&](int i) {
            const float logit = row.logit(i);
            return candidate(logit) ? kept_weight(draw, logit, row.most) : 0ull;
        });
    }
    if (threadIdx.x == 0) a.result[output] = (best & ~0xffffffffull) | ~static_cast<uint32_t>(id);
}
