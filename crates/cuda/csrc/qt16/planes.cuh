// Code planes: where the codes of a unit are, and how they become the registers of a fragment.
//
// `pack(code, w)` is word w of a plane, code(r, k) the number that it has for row r of the unit; `load` reads what a lane
// owns; `codes` gives a step's registers with codes as subnormal halves q · 2^-24, those of rows 8 … 15 times UPPER.
//
// `bytes` gives the registers of an m16n8k32 A fragment of the group of 32 number `group`, codes as bytes, those of rows
// 8 … 15 times BYTE_UPPER: rows g and g + 8 of its first k16 step, then of its second. The k of a register's bytes are
// 2t, 2t + 8, 2t + 1 and 2t + 9 of the step. `load_slab` reads what a lane owns of one slab: groups 0 and 1 then are those
// of the slab.
#pragma once

// Nibbles in the order of the header of qt16.cuh: rows 8 … 15 are the upper ones, which need no shift.
struct NibblePlane {
    static constexpr int BYTES = 2048, UPPER = 16, BYTE_UPPER = 16;

    template <class Code>
    __device__ static uint32_t pack(Code code, int w) {
        const int slab = w / 128, lane = w % 128 / 4, step = w % 4;
        uint32_t v = 0;
        for (int n = 0; n < 8; ++n) {
            v |= (code(qt_row(lane, n), slab * 64 + step * 16 + qt_k(lane, n)) & 15) << (4 * n);
        }
        return v;
    }

    template <class Read>
    __device__ static void load(QtRaw& r, const uint8_t* unit, int lane) {
#pragma unroll
        for (int s = 0; s < 4; ++s) r.q[s] = Read::b16(unit + s * 512 + lane * 16);
    }
    template <class Read>
    __device__ static void load_slab(QtRaw& r, const uint8_t* unit, int lane, int slab) {
        r.q[0] = Read::b16(unit + slab * 512 + lane * 16);
    }

    __device__ static void codes(uint32_t (&q)[4], const QtRaw& r, int slab, int step) {
        uint32_t w = word_of(r.q[slab], step);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            q[2 * h] = w & 0x000f000f;
            q[2 * h + 1] = w & 0x00f000f0;
            w >>= 8;
        }
    }

    __device__ static void bytes(uint32_t (&a)[4], const QtRaw& r, int group) {
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            const uint32_t w = word_of(r.q[group / 2], group % 2 * 2 + s);
            a[2 * s] = w & 0x0f0f0f0f;
            a[2 * s + 1] = w & 0xf0f0f0f0;
        }
    }
};

// Two bits of each code. Lane l owns 16 bytes of each half of a unit, a word per two k16 steps. Those of registers 2h and
// 2h + 1 of a step lie four bits apart: one shift serves both, and rows 8 … 15 come out times 16.
struct PairPlane {
    static constexpr int BYTES = 1024, UPPER = 16, BYTE_UPPER = 1;

    // Bit of register n of a step, in the half of a word that has its k.
    __host__ __device__ static constexpr int bit(int step, int n) { return step % 2 * 8 + n / 2 * 2 + n % 2 * 4; }

    template <class Code>
    __device__ static uint32_t pack(Code code, int w) {
        const int lane = w % 128 / 4, slab = w / 128 * 2 + w % 4 / 2;
        uint32_t v = 0;
        for (int i = 0; i < 16; ++i) {
            const int step = w % 2 * 2 + i / 8, n = i % 8;
            const uint32_t q = code(qt_row(lane, n), slab * 64 + step * 16 + qt_k(lane, n));
            v |= (q & 3) << (n / 4 * 16 + bit(step, n % 4));
        }
        return v;
    }

    template <class Read>
    __device__ static void load(QtRaw& r, const uint8_t* unit, int lane) {
#pragma unroll
        for (int h = 0; h < 2; ++h) r.more[h] = Read::b16(unit + h * 512 + lane * 16);
    }
    template <class Read>
    __device__ static void load_slab(QtRaw& r, const uint8_t* unit, int lane, int slab) {
        const uint2 v = Read::b8(unit + slab / 2 * 512 + lane * 16 + slab % 2 * 8);
        r.more[0].x = v.x;
        r.more[0].y = v.y;
    }

    // The same `by` bits further up.
    __device__ static void codes(uint32_t (&q)[4], const QtRaw& r, int slab, int step, int by = 0) {
        const uint32_t w = word_of(r.more[slab / 2], slab % 2 * 2 + step / 2);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int at = bit(step, 2 * h);
            const uint32_t v = at < by ? w << (by - at) : w >> (at - by);
            q[2 * h] = v & 0x00030003 << by;
            q[2 * h + 1] = v & 0x00300030 << by;
        }
    }

    // The same `by` bits further up, over what is in `a`.
    __device__ static void add_bytes(uint32_t (&a)[4], const QtRaw& r, int group, int by) {
        const uint32_t w = word_of(r.more[group / 4], group % 4);
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            // The byte of a half that has both rows' values of this step, twice.
            const uint32_t v = prmt(w, 0, s ? 0x3311 : 0x2200);
#pragma unroll
            for (int row = 0; row < 2; ++row) {
                const int at = 4 * row, next = at + 2;
                const uint32_t low = at < by ? v << (by - at) : v >> (at - by);
                const uint32_t high = next < by ? v << (by - next) : v >> (next - by);
                a[2 * s + row] |= (low & 0x00030003u << by) | (high & 0x03000300u << by);
            }
        }
    }

    __device__ static void bytes(uint32_t (&a)[4], const QtRaw& r, int group) {
        a[0] = a[1] = a[2] = a[3] = 0;
        add_bytes(a, r, group, 0);
    }
};

// Another plane, and behind it one more bit of each code, the one above BITS: lane l owns 16 bytes, a word per slab. Those
// of registers 2h and 2h + 1 of a step lie four bits apart here too.
template <class Base, int BITS>
struct BitMore {
    static constexpr int BYTES = Base::BYTES + 512, UPPER = Base::UPPER, BYTE_UPPER = 1;

    __host__ __device__ static constexpr int bit(int step, int n) {
        return step % 2 * 2 + n / 2 + step / 2 * 8 + n % 2 * 4;
    }

    template <class Code>
    __device__ static uint32_t pack(Code code, int w) {
        if (w < Base::BYTES / 4) return Base::pack(code, w);
        const int lane = (w - Base::BYTES / 4) / 4, slab = w % 4;
        uint32_t v = 0;
        for (int i = 0; i < 32; ++i) {
            const int step = i / 8, n = i % 8;
            const uint32_t q = code(qt_row(lane, n), slab * 64 + step * 16 + qt_k(lane, n));
            v |= (q >> BITS & 1) << (n / 4 * 16 + bit(step, n % 4));
        }
        return v;
    }

    template <class Read>
    __device__ static void load(QtRaw& r, const uint8_t* unit, int lane) {
        Base::template load<Read>(r, unit, lane);
        r.q[4] = Read::b16(unit + Base::BYTES + lane * 16);
    }
    template <class Read>
    __device__ static void load_slab(QtRaw& r, const uint8_t* unit, int lane, int slab) {
        Base::template load_slab<Read>(r, unit, lane, slab);
        r.q[4].x = Read::b4(unit + Base::BYTES + lane * 16 + slab * 4);
    }

    __device__ static void codes(uint32_t (&q)[4], const QtRaw& r, int slab, int step) {
        const uint32_t w = word_of(r.q[4], slab);
        Base::codes(q, r, slab, step);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int at = bit(step, 2 * h);
            const uint32_t v = at < BITS ? w << (BITS - at) : w >> (at - BITS);
            q[2 * h] |= v & 0x00010001 << BITS;
            q[2 * h + 1] |= v & 0x00100010 << BITS;
        }
    }

    __device__ static void bytes(uint32_t (&a)[4], const QtRaw& r, int group) {
        const uint32_t w = word_of(r.q[4], group / 2);
        Base::bytes(a, r, group);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i % 2 && Base::BYTE_UPPER > 1) a[i] /= Base::BYTE_UPPER;
            // Bit of the first k; that of the k 8 further on is the next one, and belongs into the next byte.
            const int at = bit(group % 2 * 2 + i / 2, i % 2), by = BITS + 7;
            const uint32_t low = at < BITS ? w << (BITS - at) : w >> (at - BITS);
            const uint32_t high = at < by ? w << (by - at) : w >> (at - by);
            a[i] |= (low & 0x00010001u << BITS) | (high & 0x01000100u << BITS);
        }
    }
};
using ThreeBitPlane = BitMore<PairPlane, 2>;
using FiveBitPlane = BitMore<NibblePlane, 4>;

// Nibbles, and behind them the upper two bits of each code.
struct SixBitPlane {
    static constexpr int BYTES = NibblePlane::BYTES + PairPlane::BYTES, UPPER = 16, BYTE_UPPER = 1;

    template <class Code>
    __device__ static uint32_t pack(Code code, int w) {
        if (w < NibblePlane::BYTES / 4) return NibblePlane::pack(code, w);
        return PairPlane::pack([&](int r, int k) { return code(r, k) >> 4; }, w - NibblePlane::BYTES / 4);
    }

    template <class Read>
    __device__ static void load(QtRaw& r, const uint8_t* unit, int lane) {
        NibblePlane::load<Read>(r, unit, lane);
        PairPlane::load<Read>(r, unit + NibblePlane::BYTES, lane);
    }
    template <class Read>
    __device__ static void load_slab(QtRaw& r, const uint8_t* unit, int lane, int slab) {
        NibblePlane::load_slab<Read>(r, unit, lane, slab);
        PairPlane::load_slab<Read>(r, unit + NibblePlane::BYTES, lane, slab);
    }

    __device__ static void codes(uint32_t (&q)[4], const QtRaw& r, int slab, int step) {
        uint32_t high[4];
        NibblePlane::codes(q, r, slab, step);
        PairPlane::codes(high, r, slab, step, 4);
#pragma unroll
        for (int i = 0; i < 4; ++i) q[i] |= high[i];
    }

    __device__ static void bytes(uint32_t (&a)[4], const QtRaw& r, int group) {
        NibblePlane::bytes(a, r, group);
        a[1] >>= 4;
        a[3] >>= 4;
        PairPlane::add_bytes(a, r, group, 4);
    }
};

// Which of a step's eight values byte j of word p is where codes are bytes: registers 2p (even j) and 2p + 1 (odd j).
__host__ __device__ constexpr int byte_value(int p, int j) { return 2 * p + j % 2 + j / 2 * 4; }

// Registers 2p and 2p + 1 of a step from the bytes of `byte_value`.
__device__ __forceinline__ void split_bytes(uint32_t& even, uint32_t& odd, uint32_t w) {
    even = w & 0x00ff00ff;
    odd = prmt(w, 0, 0x4341);
}

// Registers 2s and 2s + 1 of an m16n8k32 A fragment from the two words of a step whose bytes are in the order of
// `byte_value`.
__device__ __forceinline__ void sort_bytes(uint32_t& even, uint32_t& odd, uint32_t first, uint32_t second) {
    even = prmt(first, second, 0x6240);
    odd = prmt(first, second, 0x7351);
}

// Bytes. Lane l owns 16 of each half of a slab, two words for each of its two k16 steps.
struct BytePlane {
    static constexpr int BYTES = 4096, UPPER = 1, BYTE_UPPER = 1;

    template <class Code>
    __device__ static uint32_t pack(Code code, int w) {
        const int pair = w / 128, lane = w % 128 / 4, step = pair * 2 + w % 4 / 2;
        uint32_t v = 0;
        for (int j = 0; j < 4; ++j) {
            const int n = byte_value(w % 2, j);
            v |= (code(qt_row(lane, n), step * 16 + qt_k(lane, n)) & 255) << (8 * j);
        }
        return v;
    }

    template <class Read>
    __device__ static void load(QtRaw& r, const uint8_t* unit, int lane) {
#pragma unroll
        for (int h = 0; h < 8; ++h) r.q[h] = Read::b16(unit + h * 512 + lane * 16);
    }
    template <class Read>
    __device__ static void load_slab(QtRaw& r, const uint8_t* unit, int lane, int slab) {
#pragma unroll
        for (int h = 0; h < 2; ++h) r.q[h] = Read::b16(unit + slab * 1024 + h * 512 + lane * 16);
    }

    __device__ static void codes(uint32_t (&q)[4], const QtRaw& r, int slab, int step) {
#pragma unroll
        for (int p = 0; p < 2; ++p) {
            split_bytes(q[2 * p], q[2 * p + 1], word_of(r.q[2 * slab + step / 2], step % 2 * 2 + p));
        }
    }

    __device__ static void bytes(uint32_t (&a)[4], const QtRaw& r, int group) {
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            sort_bytes(a[2 * s], a[2 * s + 1], word_of(r.q[group], 2 * s), word_of(r.q[group], 2 * s + 1));
        }
    }
};

// Nibbles that pick one of 16 numbers below 256, Levels::word(i) being numbers 4i … 4i + 3. Nibble 4p + j of a word is
// what `byte_value` says: four nibbles select four bytes of either half of the table, a third selection one of the two.
template <class Levels>
struct LevelPlane {
    static constexpr int BYTES = 2048, UPPER = 1, BYTE_UPPER = 1;

    template <class Code>
    __device__ static uint32_t pack(Code code, int w) {
        const int slab = w / 128, lane = w % 128 / 4, step = w % 4;
        uint32_t v = 0;
        for (int i = 0; i < 8; ++i) {
            const int n = byte_value(i / 4, i % 4);
            v |= (code(qt_row(lane, n), slab * 64 + step * 16 + qt_k(lane, n)) & 15) << (4 * i);
        }
        return v;
    }

    template <class Read>
    __device__ static void load(QtRaw& r, const uint8_t* unit, int lane) {
        NibblePlane::load<Read>(r, unit, lane);
    }
    template <class Read>
    __device__ static void load_slab(QtRaw& r, const uint8_t* unit, int lane, int slab) {
        NibblePlane::load_slab<Read>(r, unit, lane, slab);
    }

    // The two words of a step.
    __device__ static void step_bytes(uint32_t (&v)[2], const QtRaw& r, int slab, int step) {
        const uint32_t w = word_of(r.q[slab], step);
        uint32_t index = w & 0x77777777, half = (w & 0x88888888) >> 1 | 0x32103210;
#pragma unroll
        for (int p = 0; p < 2; ++p) {
            const uint32_t low = prmt(Levels::word(0), Levels::word(1), index);
            const uint32_t high = prmt(Levels::word(2), Levels::word(3), index);
            v[p] = prmt(low, high, half);
            index >>= 16;
            half >>= 16;
        }
    }

    __device__ static void codes(uint32_t (&q)[4], const QtRaw& r, int slab, int step) {
        uint32_t v[2];
        step_bytes(v, r, slab, step);
#pragma unroll
        for (int p = 0; p < 2; ++p) split_bytes(q[2 * p], q[2 * p + 1], v[p]);
    }

    __device__ static void bytes(uint32_t (&a)[4], const QtRaw& r, int group) {
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            uint32_t v[2];
            step_bytes(v, r, group / 2, group % 2 * 2 + s);
            sort_bytes(a[2 * s], a[2 * s + 1], v[0], v[1]);
        }
    }
};
