// Types with a scale, and perhaps an offset, for every 32 or 16 values: weights are q · s + c with one rounding, s and
// the offset c rounded to half once. Without an offset c is what the codes' zero stands for: weights are (q − ZERO) · s.
//
// A type T has its Plane, its Meta behind that, ZERO, the bytes FILE_BYTES of 256 values in the file, and code(b, k): the
// number that the plane has for value k of them. Meta has GROUPS of a slab, of which lane t of a quad gives the scales
// and offsets of those of slab t, for row g and g + 8; INTEGER ones also what a scale is the product of, a number of the
// row, `unit`, and an integer, `whole`.
#pragma once

template <class T>
struct QtGroups {
    using Plane = typename T::Plane;
    using Meta = typename T::Meta;
    static constexpr int GROUPS = Meta::GROUPS;
    static constexpr int K = QT_K, BYTES = Plane::BYTES + Meta::BYTES, FILE_BYTES = T::FILE_BYTES;
    static constexpr bool CODES = true, HAS_MIN = false;

    __device__ static uint32_t pack(const uint8_t* const (&rows)[QT_ROWS], int w) {
        if (w >= Plane::BYTES / 4) return Meta::pack(rows, w - Plane::BYTES / 4);
        return Plane::pack([&](int r, int k) { return rows[r] ? T::code(rows[r], k) : 0; }, w);
    }

    template <class Read>
    __device__ static void load(QtRaw& r, const uint8_t* unit, int lane) {
        Plane::template load<Read>(r, unit, lane);
        Meta::template load<Read>(r, unit + Plane::BYTES, lane);
    }

    // Of the groups of slab t: s (row g, low) and s / UPPER (row g + 8, high), times 2^24; offsets of the same rows.
    struct Scales {
        uint32_t s[GROUPS], c[GROUPS];
    };

    __device__ static void scales(Scales& out, const QtRaw& r, int lane, float scale) {
        const float unit = scale * (QT_CODE / Plane::UPPER);
#pragma unroll
        for (int j = 0; j < GROUPS; ++j) {
            const half2 s = __floats2half2_rn(Meta::scale(r, lane, 0, j) * unit, Meta::scale(r, lane, 1, j) * unit);
            out.s[j] = as_u32(__hmul2(s, __floats2half2_rn(Plane::UPPER, 1.0f)));
            if (Meta::OFFSET) {
                out.c[j] = as_u32(__floats2half2_rn(Meta::offset(r, 0, j) * scale, Meta::offset(r, 1, j) * scale));
            }
        }
    }

    // What a k64 slab needs of them, from the lane of the quad that has it.
    struct Slab {
        half2 s[GROUPS], c[GROUPS];
    };

    __device__ static void slab(Slab& out, const Scales& all, int slab, int lane) {
        const int from = (lane & ~3) | slab;
        // −ZERO · 2^-24 of either row, in the unit that its codes have.
        constexpr uint32_t zero = 0x80008000 | T::ZERO | T::ZERO * Plane::UPPER << 16;
#pragma unroll
        for (int j = 0; j < GROUPS; ++j) {
            out.s[j] = as_half2(__shfl_sync(~0u, all.s[j], from));
            out.c[j] = Meta::OFFSET ? as_half2(__shfl_sync(~0u, all.c[j], from)) : __hmul2(out.s[j], as_half2(zero));
        }
    }

    __device__ static void fragment(uint32_t (&a)[4], const QtRaw& r, const Slab& scales, int slab, int step) {
        const int j = step * GROUPS / 4;
        const half2 s[2] = {__low2half2(scales.s[j]), __high2half2(scales.s[j])};
        const half2 c[2] = {__low2half2(scales.c[j]), __high2half2(scales.c[j])};
        Plane::codes(a, r, slab, step);
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = as_u32(__hfma2(as_half2(a[i]), s[i % 2], c[i % 2]));
    }

    __device__ static void min_fragment(uint32_t (&a)[4], const Scales&) {}

    // In the int8 profile: weights are codes less ZERO times a group's scale, plus a factor of the row times the group's
    // minimum. INTEGER: scales are integers times the row's `unit`. Of the groups of slab t, of rows g and g + 8; from what
    // `load_meta` reads.
    static constexpr int ZERO = T::ZERO;
    static constexpr bool INTEGER = Meta::INTEGER, OFFSET = Meta::OFFSET, BY_ROWS = false;

    template <class Read>
    __device__ static void load_meta(QtRaw& r, const uint8_t* unit, int lane) {
        Meta::template load<Read>(r, unit + Plane::BYTES, lane);
    }

    __device__ static void whole_scales(int (&s)[2][GROUPS], float (&unit)[2], const QtRaw& r, int lane) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            unit[row] = Meta::unit(r, lane, row);
#pragma unroll
            for (int j = 0; j < GROUPS; ++j) s[row][j] = Meta::whole(r, lane, row, j);
        }
    }

    __device__ static void group_scales(float (&s)[2][GROUPS], const QtRaw& r, int lane) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
#pragma unroll
            for (int j = 0; j < GROUPS; ++j) s[row][j] = Meta::scale(r, lane, row, j);
        }
    }

    __device__ static void float_minima(float (&m)[2][GROUPS], const QtRaw& r) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
#pragma unroll
            for (int j = 0; j < GROUPS; ++j) m[row][j] = Meta::minimum(r, row, j);
        }
    }

    // The A fragment of the minima's step, in which they are exact: of 8 groups k 0…7 are these, k 8…15 the same again; of
    // 16, lane t has the first two of slab t, then the last two.
    __device__ static void minima(uint32_t (&a)[4], float (&factor)[2], const QtRaw& r, int) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            factor[row] = Meta::min_factor(r, row);
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int first = j * 2 % GROUPS;
                a[2 * j + row] = as_u32(__floats2half2_rn(Meta::minimum(r, row, first), Meta::minimum(r, row, first + 1)));
            }
        }
    }
};

// d of each group in half precision, at the beginning of the file's blocks of BLOCK bytes.
template <int BLOCK>
struct HalfScales {
    static constexpr int BYTES = 256, GROUPS = 2;
    static constexpr bool INTEGER = false, OFFSET = false;

    __device__ static uint32_t pack(const uint8_t* const (&rows)[QT_ROWS], int w) {
        const uint8_t* b = rows[w / 4] ? rows[w / 4] + w % 4 * 2 * BLOCK : nullptr;
        return b ? half_pair(b, b + BLOCK, 0) : 0;
    }

    template <class Read>
    __device__ static void load(QtRaw& r, const uint8_t* meta, int lane) {
        r.rest.x = Read::b4(meta + lane * 4);
        r.rest.y = Read::b4(meta + 128 + lane * 4);
    }

    __device__ static float scale(const QtRaw& r, int, int row, int j) {
        const half2 pair = as_half2(row ? r.rest.y : r.rest.x);
        return j ? __high2float(pair) : __low2float(pair);
    }
    __device__ static float offset(const QtRaw&, int, int) { return 0.0f; }
};

// The same, and an offset m behind each d.
template <int BLOCK>
struct HalfPairs {
    static constexpr int BYTES = 512, GROUPS = 2;
    static constexpr bool INTEGER = false, OFFSET = true;

    __device__ static uint32_t pack(const uint8_t* const (&rows)[QT_ROWS], int w) {
        return rows[w / 8] ? word_at(rows[w / 8] + w % 8 * BLOCK) : 0;
    }

    template <class Read>
    __device__ static void load(QtRaw& r, const uint8_t* meta, int lane) {
        const uint2 a = Read::b8(meta + lane * 8), b = Read::b8(meta + 256 + lane * 8);
        r.rest = make_uint4(a.x, a.y, b.x, b.y);
    }

    __device__ static half2 pair(const QtRaw& r, int row, int j) { return as_half2(word_of(r.rest, 2 * row + j)); }
    __device__ static float scale(const QtRaw& r, int, int row, int j) { return __low2float(pair(r, row, j)); }
    __device__ static float offset(const QtRaw& r, int row, int j) { return __high2float(pair(r, row, j)); }
    __device__ static float minimum(const QtRaw& r, int row, int j) { return offset(r, row, j); }
    __device__ static float min_factor(const QtRaw&, int) { return 1.0f; }
};
