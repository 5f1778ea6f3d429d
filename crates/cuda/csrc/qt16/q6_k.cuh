// Q6_K in QT16: 4 slabs of 512 B of lower nibbles, 4 × 256 B of upper two bits, 16 × 16 B of scales, 16 × 2 B of d.
//
// Upper bits: lane l owns 8 bytes of each slab, a word per two k16 steps; bits 2n of its lower and upper half belong to
// the pair of register n % 4 of step n / 4.
#pragma once

struct Qt6K {
    static constexpr int BYTES = 3360, FILE_BYTES = 210, HIGH = 2048, SCALES = 3072, D = 3328;

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
                for (int e = 0; e < 2; ++e) {
                    const int nibble = n % 4 + 4 * e, step = 2 * pair + n / 4;
                    const uint8_t* b = rows[qt_row(lane, nibble)];
                    const uint32_t q = b ? code(b, slab * 64 + step * 16 + qt_k(lane, nibble)) >> 4 : 0;
                    v |= q << (16 * e + 2 * n);
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

    struct Raw {
        uint4 q[4];
        uint2 high[4];
        uint32_t scales[2];  // four of row g, and of row g + 8
        uint32_t d[2];
    };

    __device__ static void load(Raw& r, const uint8_t* unit, int lane) {
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int s = 0; s < 4; ++s) {
            r.q[s] = load_weights(unit + s * 512 + lane * 16);
            r.high[s] = load_weights2(unit + HIGH + s * 256 + lane * 8);
        }
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            r.scales[row] = load_weights1(unit + SCALES + (g + 8 * row) * 16 + t * 4);
            r.d[row] = load_weights1(unit + D + (g + 8 * row) / 2 * 4);
        }
    }

    // Scales of the four steps of slab t: rows g (low) and g + 8 (high).
    struct Scales {
        uint32_t s[4];
    };

    __device__ static void scales(Scales& out, const Raw& r, int lane, float scale) {
        float unit[2];
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            const half2 pair = as_half2(r.d[row]);
            unit[row] = (lane / 4 % 2 ? __high2float(pair) : __low2float(pair)) * scale;
        }
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            const int s0 = static_cast<int8_t>(r.scales[0] >> (8 * step)), s1 = static_cast<int8_t>(r.scales[1] >> (8 * step));
            out.s[step] = as_u32(__floats2half2_rn(unit[0] * static_cast<float>(s0), unit[1] * static_cast<float>(s1)));
        }
    }

    struct Slab {
        half2 s[4][2];  // [step][row]
    };

    __device__ static void slab(Slab& out, const Scales& all, int slab, int lane) {
        const int from = (lane & ~3) | slab;
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            const half2 s = as_half2(__shfl_sync(~0u, all.s[step], from));
            out.s[step][0] = __low2half2(s);
            out.s[step][1] = __high2half2(s);
        }
    }

    __device__ static void fragment(uint32_t (&a)[4], const Raw& r, const Slab& scales, int slab, int step) {
        const half2 shift = __float2half2_rn(-1056.0f);  // 1024 and the codes' zero, 32
        const uint32_t low = word_of(r.q[slab], step), high = step < 2 ? r.high[slab].x : r.high[slab].y;
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const int at = 2 * (step % 2 * 4 + n);  // where the upper bits are, and they belong at bit 4
            const uint32_t upper = (at < 4 ? high << (4 - at) : high >> (at - 4)) & 0x00300030;
            const half2 q = __hadd2(as_half2((low >> (4 * n) & 0x000f000f) | upper | 0x64006400), shift);
            a[n] = as_u32(__hmul2(q, scales.s[step][n % 2]));
        }
    }
};
