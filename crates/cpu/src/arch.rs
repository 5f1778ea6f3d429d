//! Instruction sets: one file each, supplying [`crate::simd::Simd`] and the entry points of every kernel, and the
//! table from which the device takes them at run time.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avxvnni;
#[cfg(target_arch = "aarch64")]
mod dotprod;
#[cfg(target_arch = "aarch64")]
mod i8mm;
#[cfg(target_arch = "aarch64")]
mod neon;
pub(crate) mod scalar;
#[cfg(target_arch = "x86_64")]
mod vnni;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) use amx::Unit as AmxUnit;
#[cfg(all(target_arch = "x86_64", test))]
pub(crate) use vnni::Vnni;

use crate::detect::Isa;
use crate::kernel::attention::SegmentJob;
use crate::kernel::cache::KvWrite;
use crate::kernel::matmul::{Layout, MatMulFn};
use crate::kernel::vector::{Act, NormJob, QuantizeJob};
use minfer_ops::KvType;

/// The faster forms of a level.
pub(crate) struct WideKernels {
    /// By [`crate::matrix::FORMATS`]; their input is [`ActKind::Q16x256`](crate::matrix::ActKind).
    pub(crate) matmul: &'static [Option<MatMulFn>],
    /// Tokens from which they are used.
    pub(crate) from: usize,
    /// Makes their input.
    pub(crate) quantize: unsafe fn(&QuantizeJob),
}

/// Kernels of one instruction set. Every function requires the CPU to have it, and what its kernel documents.
#[derive(Clone, Copy)]
pub(crate) struct Kernels {
    pub(crate) isa: Isa,
    /// By [`crate::matrix::FORMATS`].
    pub(crate) matmul: &'static [MatMulFn],
    /// The faster forms of [`Numerics::Fast`](crate::Numerics), if there are any.
    pub(crate) wide: Option<&'static WideKernels>,
    /// Tokens from which quantized activations are to lie in [`Layout::Tiles`].
    pub(crate) tiles_from: usize,
    /// Bytes ahead at which quantized weights are asked for with a single token; 0 leaves it to the hardware, or to
    /// [`Simd::AHEAD`](crate::simd::Simd::AHEAD). Measured.
    pub(crate) ahead: usize,
    pub(crate) norm: unsafe fn(&NormJob),
    pub(crate) quantize32: unsafe fn(&QuantizeJob),
    pub(crate) quantize256: unsafe fn(&QuantizeJob),
    pub(crate) interleave: unsafe fn(*const f32, usize, usize, *mut f32),
    pub(crate) gated: unsafe fn(Act, *mut f32, *const f32, usize),
    pub(crate) soft_cap: unsafe fn(f32, *mut f32, usize),
    pub(crate) kv: [KvKernels; KvType::ALL.len()],
    pub(crate) merge: unsafe fn(*mut f32, *const f32, f32, f32, usize),
    pub(crate) finish: unsafe fn(*const f32, *mut f32, usize),
    pub(crate) peak: Peak,
}

/// Loops of multiply-adds alone, and the products in one round of each.
#[derive(Clone, Copy)]
pub(crate) struct Peak {
    pub(crate) dot: unsafe fn(usize, *mut u8),
    pub(crate) dot_round: usize,
    pub(crate) fma: unsafe fn(usize, *mut u8),
    pub(crate) fma_round: usize,
}

/// Kernels of one cache type.
#[derive(Clone, Copy)]
pub(crate) struct KvKernels {
    pub(crate) write_key: unsafe fn(&KvWrite),
    pub(crate) write_value: unsafe fn(&KvWrite),
    pub(crate) scores: unsafe fn(&SegmentJob<'_>),
    pub(crate) values: unsafe fn(&SegmentJob<'_>),
}

impl Kernels {
    /// How the quantized form of an input of `tokens` rows is to lie.
    pub(crate) fn layout(&self, tokens: usize) -> Layout {
        if tokens >= self.tiles_from { Layout::Tiles { tokens } } else { Layout::Rows }
    }

    /// The kernels of a cache type.
    pub(crate) fn kv(&self, ty: KvType) -> &KvKernels {
        match ty {
            KvType::F16 => &self.kv[0],
            KvType::BF16 => &self.kv[1],
            KvType::F32 => &self.kv[2],
            KvType::Q8_0 => &self.kv[3],
            KvType::FP8 => &self.kv[4],
        }
    }
}

/// The kernels of a level that [`crate::detect::Host`] found; the portable ones for a level of another architecture.
pub(crate) fn kernels(isa: Isa) -> &'static Kernels {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => &amx::KERNELS,
        #[cfg(target_arch = "x86_64")]
        Isa::Vnni => &vnni::KERNELS,
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => &avxvnni::KERNELS,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &avx2::KERNELS,
        #[cfg(target_arch = "aarch64")]
        Isa::I8mm => &i8mm::KERNELS,
        #[cfg(target_arch = "aarch64")]
        Isa::Dotprod => &dotprod::KERNELS,
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => &neon::KERNELS,
        _ => &scalar::KERNELS,
    }
}

macro_rules! matmul_table {
    (block32: [$($b:ty),*] super256: [$($s:ty),*] float: [$($f:ty),*]) => {
        &[$(block32::<$b>,)* $(super256::<$s>,)* $(float::<$f>,)*]
    };
}
use matmul_table;

/// Instantiates every kernel for one ISA: functions that carry its features, and the table of them.
macro_rules! entry_points {
    ($simd:ident $(, $features:literal)?) => {
        mod entry {
            use super::$simd;
            use crate::arch::{Kernels, KvKernels, Peak, entry_points, matmul_table};
            use crate::format::{Block32, Float, Super256, with_formats};
            use crate::kernel::cache::KvFormat;
            use crate::kernel::{attention, cache, matmul, peak, vector};
            use crate::simd::Simd;

            entry_points! { @each ($($features)?)
                fn block32[F: Block32](job: &matmul::MatMul) = matmul::block32::<$simd, F>;
                fn super256[F: Super256](job: &matmul::MatMul) = matmul::super256::<$simd, F>;
                fn float[F: Float](job: &matmul::MatMul) = matmul::float::<$simd, F>;
                fn norm[](job: &vector::NormJob) = vector::norm::<$simd>;
                fn quantize32[](job: &vector::QuantizeJob) = vector::quantize32::<$simd>;
                fn quantize256[](job: &vector::QuantizeJob) = vector::quantize256::<$simd>;
                fn interleave[](rows: *const f32, stride: usize, len: usize, out: *mut f32) = vector::interleave::<$simd>;
                fn gated[](act: vector::Act, gate: *mut f32, up: *const f32, len: usize) = vector::gated::<$simd>;
                fn soft_cap[](cap: f32, x: *mut f32, len: usize) = vector::soft_cap::<$simd>;
                fn write_key[T: KvFormat](job: &cache::KvWrite) = T::write_key::<$simd>;
                fn write_value[T: KvFormat](job: &cache::KvWrite) = T::write_value::<$simd>;
                fn scores[T: KvFormat](job: &attention::SegmentJob<'_>) = attention::scores::<$simd, T>;
                fn values[T: KvFormat](job: &attention::SegmentJob<'_>) = attention::values::<$simd, T>;
                fn merge[](state: *mut f32, o: *const f32, m: f32, l: f32, dim: usize) = attention::merge::<$simd>;
                fn finish[](state: *const f32, out: *mut f32, dim: usize) = attention::finish::<$simd>;
                fn peak_dot[](rounds: usize, data: *mut u8) = peak::dot::<$simd>;
                fn peak_fma[](rounds: usize, data: *mut u8) = peak::fma::<$simd>;
            }

            const fn kv_kernels<T: KvFormat>() -> KvKernels {
                KvKernels {
                    write_key: write_key::<T>,
                    write_value: write_value::<T>,
                    scores: scores::<T>,
                    values: values::<T>,
                }
            }

            pub(crate) static KERNELS: Kernels = Kernels {
                isa: <$simd as Simd>::ISA,
                matmul: with_formats!(matmul_table),
                tiles_from: usize::MAX,
                ahead: 0,
                wide: None,
                norm, quantize32, quantize256, interleave, gated, soft_cap, merge, finish,
                peak: Peak {
                    dot: peak_dot, dot_round: peak::dot_round::<$simd>(),
                    fma: peak_fma, fma_round: peak::fma_round::<$simd>(),
                },
                kv: [
                    kv_kernels::<cache::F16>(),
                    kv_kernels::<cache::BF16>(),
                    kv_kernels::<cache::F32>(),
                    kv_kernels::<cache::Q8_0>(),
                    kv_kernels::<cache::FP8>(),
                ],
            };
        }
        pub(crate) use entry::KERNELS;
    };
    (@each ($($features:literal)?)) => {};
    (@each ($($features:literal)?) fn $name:ident[$($f:ident: $bound:path)?]($($arg:ident: $ty:ty),*) = $body:expr; $($rest:tt)*) => {
        // SAFETY: the contract of the kernel it is named after; the CPU has the ISA's features.
        $(#[target_feature(enable = $features)])?
        pub(crate) unsafe fn $name$(<$f: $bound>)?($($arg: $ty),*) {
            // SAFETY: the caller keeps the kernel's contract; this function carries the ISA's features.
            unsafe { ($body)($($arg),*) }
        }
        entry_points! { @each ($($features)?) $($rest)* }
    };
}
use entry_points;
