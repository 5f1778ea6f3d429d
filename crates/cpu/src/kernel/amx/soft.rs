//! The tile unit in software, so that everything around it is tested on any machine.

use super::*;
use crate::format::{Block32, Super256, with_formats};
use crate::kernel::matmul::MatMulFn;
use crate::kernel::vector::{self, QuantizeJob};

/// Eight registers of sixteen rows of 64 bytes.
struct Soft {
    shapes: Option<&'static Shapes>,
    registers: [[[u8; 64]; 16]; 8],
}

impl Soft {
    fn new() -> Soft {
        // What registers hold before they are configured must not matter.
        Soft { shapes: None, registers: [[[0xa5; 64]; 16]; 8] }
    }

    fn shape(&self, t: u8) -> (usize, usize) {
        self.shapes.expect("configured").of(t)
    }
}

// SAFETY (all functions): the trait's contract.
impl Tiles for Soft {
    unsafe fn configure(&mut self, shapes: &'static Shapes) {
        self.shapes = Some(shapes);
        self.registers = [[[0; 64]; 16]; 8];
    }
    unsafe fn release(&mut self) {
        self.shapes = None;
    }
    unsafe fn zero<const T: u8>(&mut self) {
        self.registers[usize::from(T)] = [[0; 64]; 16];
    }
    unsafe fn load<const T: u8, const OFFSET: usize>(&mut self, p: *const u8) {
        let (rows, bytes) = self.shape(T);
        self.registers[usize::from(T)] = [[0; 64]; 16];
        for r in 0..rows {
            // SAFETY: the trait's contract.
            let row = unsafe { std::slice::from_raw_parts(p.add(OFFSET + 64 * r), bytes) };
            self.registers[usize::from(T)][r][..bytes].copy_from_slice(row);
        }
    }
    unsafe fn load_once<const T: u8, const OFFSET: usize>(&mut self, p: *const u8) {
        // SAFETY: the trait's contract.
        unsafe { self.load::<T, OFFSET>(p) }
    }
    unsafe fn store<const T: u8>(&mut self, p: *mut i32) {
        let (rows, bytes) = self.shape(T);
        for r in 0..rows {
            // SAFETY: the trait's contract.
            let row = unsafe { std::slice::from_raw_parts_mut(p.cast::<u8>().add(64 * r), bytes) };
            row.copy_from_slice(&self.registers[usize::from(T)][r][..bytes]);
        }
    }
    unsafe fn dot<const C: u8, const A: u8, const B: u8>(&mut self) {
        let ((m, n), (_, k)) = (self.shape(C), self.shape(A));
        assert_eq!(self.shape(A).0, m);
        assert_eq!(self.shape(B), (k / 4, n));
        for m in 0..m {
            for n in 0..n / 4 {
                let c = &mut self.registers[usize::from(C)][m][4 * n..4 * n + 4];
                let mut sum = i32::from_ne_bytes([c[0], c[1], c[2], c[3]]);
                for k in 0..k {
                    let a = self.registers[usize::from(A)][m][k] as i8;
                    let b = self.registers[usize::from(B)][k / 4][4 * n + k % 4] as i8;
                    sum = sum.wrapping_add(i32::from(a) * i32::from(b));
                }
                self.registers[usize::from(C)][m][4 * n..4 * n + 4].copy_from_slice(&sum.to_ne_bytes());
            }
        }
    }
}

/// Tables of the kernels over the unit in software, by [`crate::matrix::FORMATS`]: what is in use, and the `fast` forms.
#[derive(Clone, Copy)]
pub(crate) struct SoftKernels {
    pub(crate) exact: &'static [Option<MatMulFn>],
    pub(crate) fast: &'static [Option<MatMulFn>],
    pub(crate) quantize: unsafe fn(&QuantizeJob),
}

/// Float formats, or those without a fast form, have no kernel of the unit.
macro_rules! none {
    ($format:ty) => {
        None
    };
}

macro_rules! exact_table {
    (block32: [$($b:ty),*] super256: [$($s:ty),*] float: [$($f:ty),*]) => {
        &[$(Some(soft_block32::<$b>),)* $(Some(soft_super256::<$s>),)* $(none!($f),)*]
    };
}

macro_rules! fast_table {
    (block32: [$($b:ty),*] super256: [$($s:ty),*] float: [$($f:ty),*]) => {
        &[$(Some(soft_wide32::<$b>),)* $(none!($s),)* $(none!($f),)*]
    };
}

/// The kernels with some vectors.
macro_rules! soft {
    ($name:ident, $vectors:ty $(, $features:literal)?) => {
        pub(crate) mod $name {
            use super::*;

            // SAFETY: the contract of [`MatMulFn`]; the CPU has the vectors' features, software needs no others.
            $(#[target_feature(enable = $features)])?
            unsafe fn soft_block32<F: Block32>(job: &MatMul) {
                // SAFETY: as above.
                unsafe { block32::<$vectors, F>(job, &mut Soft::new()) }
            }
            // SAFETY: as above.
            $(#[target_feature(enable = $features)])?
            unsafe fn soft_super256<F: Super256>(job: &MatMul) {
                // SAFETY: as above.
                unsafe { super256::<$vectors, F>(job, &mut Soft::new()) }
            }
            // SAFETY: as above.
            $(#[target_feature(enable = $features)])?
            unsafe fn soft_wide32<F: Block32>(job: &MatMul) {
                // SAFETY: as above.
                unsafe { wide32::<$vectors, F>(job, &mut Soft::new()) }
            }

            // SAFETY: as above.
            $(#[target_feature(enable = $features)])?
            unsafe fn quantize_wide(job: &QuantizeJob) {
                // SAFETY: as above.
                unsafe { vector::quantize_wide::<$vectors>(job) }
            }

            pub(crate) static KERNELS: SoftKernels = SoftKernels {
                exact: with_formats!(exact_table),
                fast: with_formats!(fast_table),
                quantize: quantize_wide,
            };
        }
    };
}

soft!(portable, crate::arch::scalar::Scalar);
#[cfg(target_arch = "x86_64")]
soft!(vnni, crate::arch::Vnni, "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c");

/// Those that this machine has the vectors for.
pub(crate) fn kernels() -> Vec<SoftKernels> {
    #[cfg(target_arch = "x86_64")]
    if crate::Isa::Vnni.available() {
        return vec![portable::KERNELS, vnni::KERNELS];
    }
    vec![portable::KERNELS]
}
