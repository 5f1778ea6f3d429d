// IQ4_NL, IQ4_XS and MXFP4 in QT16: 2,048 B of nibbles that pick levels, then what scales them.
#pragma once

// Numbers 4i … 4i + 3 of a table of 16, each plus 128, as bytes.
template <class Table>
struct LevelWords {
    __host__ __device__ static constexpr uint32_t word(int i) {
        uint32_t v = 0;
        for (int j = 0; j < 4; ++j) v |= static_cast<uint32_t>(Table::level(4 * i + j) + 128) << (8 * j);
        return v;
    }
};

// The tables of minfer_gguf::quant::grids, as constants: kernels select from them in registers.
struct Iq4Table {
    __host__ __device__ static constexpr int level(int i) {
        constexpr int levels[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
        return levels[i];
    }
};
struct Fp4Table {
    __host__ __device__ static constexpr int level(int i) {
        constexpr int levels[] = {0, 1, 2, 3, 4, 6, 8, 12};
        return i < 8 ? levels[i] : -levels[i - 8];
    }
};

// 16 × 8 × d.
struct OfIQ4_NL {
    using Plane = LevelPlane<LevelWords<Iq4Table>>;
    using Meta = HalfScales<18>;
    static constexpr int FILE_BYTES = 144, ZERO = 128;
    __device__ static uint32_t code(const uint8_t* b, int k) { return nibble32(b + k / 32 * 18 + 2, k % 32); }
};
using QtIQ4NL = QtGroups<OfIQ4_NL>;

// 16 × {d, 2 B of upper scale bits, 4 B of lower ones} as in the file.
struct Iq4XsScales {
    static constexpr int BYTES = 128, GROUPS = 2;
    static constexpr bool INTEGER = true, OFFSET = false;

    __device__ static uint32_t pack(const uint8_t* const (&rows)[QT_ROWS], int w) {
        return rows[w / 2] ? word_at(rows[w / 2] + w % 2 * 4) : 0;
    }

    template <class Read>
    __device__ static void load(QtRaw& r, const uint8_t* meta, int lane) {
        const uint2 a = Read::b8(meta + lane / 4 * 8), b = Read::b8(meta + 64 + lane / 4 * 8);
        r.rest = make_uint4(a.x, a.y, b.x, b.y);
    }

    __device__ static float unit(const QtRaw& r, int, int row) { return __low2float(as_half2(row ? r.rest.z : r.rest.x)); }
    __device__ static int whole(const QtRaw& r, int lane, int row, int j) {
        const int group = lane % 4 * 2 + j;
        const uint32_t d = row ? r.rest.z : r.rest.x, low = row ? r.rest.w : r.rest.y;
        return static_cast<int>((low >> (4 * group) & 15) | (d >> (16 + 2 * group) & 3) << 4) - 32;
    }
    __device__ static float scale(const QtRaw& r, int lane, int row, int j) {
        return unit(r, lane, row) * static_cast<float>(whole(r, lane, row, j));
    }
    __device__ static float offset(const QtRaw&, int, int) { return 0.0f; }
};

struct OfIQ4_XS {
    using Plane = LevelPlane<LevelWords<Iq4Table>>;
    using Meta = Iq4XsScales;
    static constexpr int FILE_BYTES = 136, ZERO = 128;
    __device__ static uint32_t code(const uint8_t* b, int k) { return nibble32(b + k / 32 * 16 + 8, k % 32); }
};
using QtIQ4XS = QtGroups<OfIQ4_XS>;

// 16 × 8 × a power of two's exponent.
struct Mxfp4Scales {
    static constexpr int BYTES = 128, GROUPS = 2;
    static constexpr bool INTEGER = false, OFFSET = false;

    __device__ static uint32_t pack(const uint8_t* const (&rows)[QT_ROWS], int w) {
        uint32_t v = 0;
        const uint8_t* b = rows[w / 2];
        for (int j = 0; b && j < 4; ++j) v |= static_cast<uint32_t>(b[(w % 2 * 4 + j) * 17]) << (8 * j);
        return v;
    }

    template <class Read>
    __device__ static void load(QtRaw& r, const uint8_t* meta, int lane) {
        r.rest.x = Read::b4(meta + lane / 2 * 4);
        r.rest.y = Read::b4(meta + 64 + lane / 2 * 4);
    }

    __device__ static float scale(const QtRaw& r, int lane, int row, int j) {
        return e8m0_half((row ? r.rest.y : r.rest.x) >> (lane % 2 * 16 + 8 * j) & 255);
    }
    __device__ static float offset(const QtRaw&, int, int) { return 0.0f; }
};

struct OfMXFP4 {
    using Plane = LevelPlane<LevelWords<Fp4Table>>;
    using Meta = Mxfp4Scales;
    static constexpr int FILE_BYTES = 136, ZERO = 128;
    __device__ static uint32_t code(const uint8_t* b, int k) { return nibble32(b + k / 32 * 17 + 1, k % 32); }
};
using QtMXFP4 = QtGroups<OfMXFP4>;
