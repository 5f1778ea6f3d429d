// Q6_K in QT16: 4 slabs of 512 B of lower nibbles, 4 × 256 B of upper two bits, 16 × 16 B of scales, 16 × 2 B of d.
//
// Upper bits: lane l owns 8 bytes of each slab, a word per two k16 steps. Those of registers 2p and 2p + 1 of one of its
// steps lie four bits apart, so that one shift brings both to where their nibbles' codes go on: `crumb`.
#pragma once

struct Qt6K {
    static constexpr int BYTES = 3360, FILE_BYTES = 210, HIGH = 2048, SCALES = 3072, D = 3328;

    // Bit of the upper two bits of register n of step `step`, in the half of a word that has its k.
    __host__ __device__ static constexpr int crumb(int step, int n) { return step % 2 * 8 + n / 2 * 2 + n % 2 * 4; }

    __device__ static uint32_t code(const uint8_t* b, int k) {
        const uint32_t low = b[k / 128 * 64 + k % 64] >> (k % 128 / 64 * 4) & 15;
        const uint32_t high = b[128 + k / 128 * 32 + k % 32] >> (k % 128 / 32 * 2) & 3;
        return low | high << 4;
    }

    __device__ static uint32_t pack(const uint8_t* const (&rows)[QT_ROWS], int w) {
        uint32_t v = 0;
        if (w < HIGH / 4) {
            const int slab = w / 128, lane = w % 128 / 4, step = w % 4;
            for (int n = 0; n < 8; ++n) {
                const uint8_t* b = rows[qt_row(lane, n)];
                const uint32_t q = b ? code(b, slab * 64 + step * 16 + qt_k(lane, n)) & 15 : 0;
                v |= q << (4 * n);
            }
        } else if (w < SCALES / 4) {
            const int h = w - HIGH / 4, slab = h / 64, lane = h % 64 / 2, pair = h % 2;
            for (int n = 0; n < 8; ++n) {
                for (int s = 0; s < 2; ++s) {
                    const int step = 2 * pair + s;
                    const uint8_t* b = rows[qt_row(lane, n)];
                    const uint32_t q = b ? code(b, slab * 64 + step * 16 + qt_k(lane, n)) >> 4 : 0;
                    v |= q << (n / 4 * 16 + crumb(step, n % 4));
                }
            }
        } else if (w < D / 4) {
            const int at = (w - SCALES / 4) * 4;
            const uint8_t* b = rows[at / 16];
            for (int j = 0; b && j < 4; ++j) v |= static_cast<uint32_t>(b[192 + at % 16 + j]) << (8 * j);
        } else {
            for (int j = 0; j < 2; ++j) {
                const uint8_t* b = rows[(w - D / 4) * 2 + j];
                if (b) v |= static_cast<uint32_t>(b[208] | b[209] << 8) << (16 * j);
            }
        }
        return v;
    }

    template <class Read>
    __device__ static void load(QtRaw& r, const uint8_t* unit, int lane) {
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int s = 0; s < 4; ++s) r.q[s] = Read::b16(unit + s * 512 + lane * 16);
#pragma unroll
        for (int s = 0; s < 4; s += 2) {
            const uint2 a = Read::b8(unit + HIGH + s * 256 + lane * 8), b = Read::b8(unit + HIGH + s * 256 + 256 + lane * 8);
            r.more[s / 2] = make_uint4(a.x, a.y, b.x, b.y);
        }
        // Scales of slab t, and d, of rows g and g + 8.
        r.rest = make_uint4(Read::b4(unit + SCALES + g * 16 + t * 4), Read::b4(unit + SCALES + (g + 8) * 16 + t * 4),
                            Read::b4(unit + D + g / 2 * 4), Read::b4(unit + D + (g + 8) / 2 * 4));
    }

    static constexpr bool HAS_MIN = false;

    // Scales of the four steps of slab t: s (row g, low) and s / 16 (row g + 8, high), times 2^24.
    struct Scales {
        uint32_t s[4];
    };

    __device__ static void scales(Scales& out, const QtRaw& r, int lane, float scale) {
        float unit[2];
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            const half2 pair = as_half2(row == 0 ? r.rest.z : r.rest.w);
            unit[row] = (lane / 4 % 2 ? __high2float(pair) : __low2float(pair)) * (scale * (QT_CODE / 16.0f));
        }
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            const int s0 = static_cast<int8_t>(r.rest.x >> (8 * step)), s1 = static_cast<int8_t>(r.rest.y >> (8 * step));
            const half2 s = __floats2half2_rn(unit[0] * static_cast<float>(s0), unit[1] * static_cast<float>(s1));
            out.s[step] = as_u32(__hmul2(s, __floats2half2_rn(16.0f, 1.0f)));
        }
    }

    struct Slab {
        half2 s[4], c[4];  // [step]
    };

    __device__ static void slab(Slab& out, const Scales& all, int slab, int lane) {
        const int from = (lane & ~3) | slab;
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            out.s[step] = as_half2(__shfl_sync(~0u, all.s[step], from));
            // −32 · 2^-24 and −512 · 2^-24.
            out.c[step] = __hmul2(out.s[step], as_half2(0x82008020));
        }
    }

    __device__ static void min_fragment(uint32_t (&a)[4], const Scales&) {}

    // One multiply-add, with the code's zero, 32, in the term.
    __device__ static void fragment(uint32_t (&a)[4], const QtRaw& r, const Slab& scales, int slab, int step) {
        const half2 s0 = __low2half2(scales.s[step]), s1 = __high2half2(scales.s[step]);
        const half2 c0 = __low2half2(scales.c[step]), c1 = __high2half2(scales.c[step]);
        const uint32_t high = word_of(r.more[slab / 2], slab % 2 * 2 + step / 2);
        uint32_t w = word_of(r.q[slab], step);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int at = crumb(step, 2 * h);
            const uint32_t up = at < 4 ? high << (4 - at) : high >> (at - 4);
            a[2 * h] = as_u32(__hfma2(as_half2((w & 0x000f000f) | (up & 0x00300030)), s0, c0));
            a[2 * h + 1] = as_u32(__hfma2(as_half2((w & 0x00f000f0) | (up & 0x03000300)), s1, c1));
            w >>= 8;
        }
    }
};
