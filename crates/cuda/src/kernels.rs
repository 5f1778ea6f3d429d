//! The embedded kernels: loaded once for a device, found by name.

use crate::driver::{Failure, Gpu, Kernel, Module};
use bytemuck::bytes_of;
use minfer_gguf::quant::grids;
use minfer_ops::{DeviceError, GgmlType};

/// One fat binary per source file.
static MODULES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// The embedded fat binary of `csrc/<name>.cu`.
pub fn module(name: &str) -> Option<&'static [u8]> {
    MODULES.iter().find(|(module, _)| *module == name).map(|(_, image)| *image)
}

/// Architectures that this build has kernels for, as `MINFER_CUDA_ARCHS` takes them.
pub const ARCHS: &str = env!("MINFER_CUDA_ARCHS");

/// The compiler that made them.
#[cfg(feature = "lab")]
pub const NVCC: &str = env!("MINFER_NVCC");

/// What ptxas said of every kernel.
pub(crate) const PTXAS: &str = include_str!(concat!(env!("OUT_DIR"), "/ptxas.txt"));

/// Types that a weight can have, and how kernels' names spell them: `MINFER_FORMATS` of `csrc/format.cuh`.
pub const KERNEL_TYPES: &[(GgmlType, &str)] = &[
    (GgmlType::F32, "f32"),
    (GgmlType::F16, "f16"),
    (GgmlType::BF16, "bf16"),
    (GgmlType::Q4_0, "q4_0"),
    (GgmlType::Q4_1, "q4_1"),
    (GgmlType::Q5_0, "q5_0"),
    (GgmlType::Q5_1, "q5_1"),
    (GgmlType::Q8_0, "q8_0"),
    (GgmlType::Q2_K, "q2_k"),
    (GgmlType::Q3_K, "q3_k"),
    (GgmlType::Q4_K, "q4_k"),
    (GgmlType::Q5_K, "q5_k"),
    (GgmlType::Q6_K, "q6_k"),
    (GgmlType::IQ1_S, "iq1_s"),
    (GgmlType::IQ1_M, "iq1_m"),
    (GgmlType::IQ2_XXS, "iq2_xxs"),
    (GgmlType::IQ2_XS, "iq2_xs"),
    (GgmlType::IQ2_S, "iq2_s"),
    (GgmlType::IQ3_XXS, "iq3_xxs"),
    (GgmlType::IQ3_S, "iq3_s"),
    (GgmlType::IQ4_NL, "iq4_nl"),
    (GgmlType::IQ4_XS, "iq4_xs"),
    (GgmlType::TQ1_0, "tq1_0"),
    (GgmlType::TQ2_0, "tq2_0"),
    (GgmlType::Q1_0, "q1_0"),
    (GgmlType::Q2_0, "q2_0"),
    (GgmlType::MXFP4, "mxfp4"),
    (GgmlType::NVFP4, "nvfp4"),
];

/// Types with tuned kernels: bytes of 16 rows × 256 columns of QT16, `MINFER_QT16` of `csrc/qt16.cuh`.
pub(crate) const QT16_TYPES: &[(GgmlType, usize)] = &[
    (GgmlType::Q4_K, 2304),
    (GgmlType::Q6_K, 3360),
    (GgmlType::Q8_0, 4352),
    (GgmlType::Q5_K, 2816),
    (GgmlType::Q4_0, 2304),
    (GgmlType::Q4_1, 2560),
    (GgmlType::Q5_0, 2816),
    (GgmlType::Q5_1, 3072),
    (GgmlType::IQ4_NL, 2304),
    (GgmlType::IQ4_XS, 2176),
    (GgmlType::MXFP4, 2176),
    (GgmlType::Q2_K, 1344),
    (GgmlType::Q3_K, 1760),
    (GgmlType::F16, 8192),
    // As F16, which it becomes at load.
    (GgmlType::BF16, 8192),
];

/// Whether a tuned type is codes with scales, not halves.
pub(crate) fn has_codes(ty: GgmlType) -> bool {
    unit_type(ty) != GgmlType::F16
}

/// Whether scales of a type's groups are integers times a number of the row, `INTEGER` of the kernels' types: its inputs as
/// bytes have one scale for 256 values.
pub(crate) fn has_integer_scales(ty: GgmlType) -> bool {
    use GgmlType::{IQ4_XS, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K};
    matches!(ty, Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | IQ4_XS)
}

/// The type whose units, and whose kernels, matrices of a tuned type have.
pub(crate) fn unit_type(ty: GgmlType) -> GgmlType {
    if ty == GgmlType::BF16 { GgmlType::F16 } else { ty }
}

/// How kernels' names spell a type.
pub(crate) fn name_of(ty: GgmlType) -> Option<&'static str> {
    KERNEL_TYPES.iter().find(|(known, _)| *known == ty).map(|(_, name)| *name)
}

/// Whether a build for `archs` runs on a GPU: machine code of the same major version and no later minor one, code with
/// `a` only on exactly its own, intermediate code on everything from 8.0 on.
pub(crate) fn built_for(archs: &str, (major, minor): (i32, i32)) -> bool {
    archs.split(',').any(|arch| {
        let digits = arch.trim_end_matches('a');
        match digits.parse::<i32>() {
            Ok(arch_number) if arch.ends_with('a') => arch_number == 10 * major + minor,
            Ok(arch_number) => arch_number / 10 == major && arch_number % 10 <= minor,
            Err(_) => arch == "ptx" && major >= 8,
        }
    })
}

/// Modules whose kernels read every type: those that include `csrc/format.cuh`.
const WITH_CODEBOOKS: &[&str] = &["matmul_file", "weights"];

/// Every module on a GPU.
pub(crate) struct Kernels {
    modules: Vec<(&'static str, Module)>,
}

impl Kernels {
    /// Loads all modules and fills their codebooks.
    pub(crate) fn load(gpu: &Gpu) -> Result<Kernels, DeviceError> {
        let grids = codebooks();
        let mut modules = Vec::with_capacity(MODULES.len());
        for (name, image) in MODULES {
            let module = gpu.module(image)?;
            if WITH_CODEBOOKS.contains(name) {
                module.set_global(gpu, "minfer_grids", &grids)?;
            }
            modules.push((*name, module));
        }
        Ok(Kernels { modules })
    }

    /// The kernel `name` of module `module`.
    pub(crate) fn get(&self, module: &str, name: &str) -> Result<Kernel, DeviceError> {
        let found = self.modules.iter().find(|(m, _)| *m == module);
        let Some((_, module)) = found else {
            return Err(DeviceError::Fault(format!("this build has no kernels \"{module}\"")));
        };
        module
            .kernel(name)
            .map_err(|failure: Failure| DeviceError::Fault(format!("kernel {name}: {failure}")))
    }
}

/// `struct Grids` of `csrc/format.cuh`.
fn codebooks() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut add = |table: &[u8]| bytes.extend_from_slice(table);
    add(grids::IQ2_XXS.as_flattened());
    add(grids::IQ2_XS.as_flattened());
    add(grids::IQ2_S.as_flattened());
    add(grids::IQ3_XXS.as_flattened());
    add(grids::IQ3_S.as_flattened());
    add(bytemuck::cast_slice(grids::IQ1.as_flattened()));
    add(bytes_of(&grids::IQ4));
    add(bytes_of(&grids::FP4_DOUBLED));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(feature = "lab")]
    use crate::ledger;

    #[test]
    fn machine_code_runs_on_its_own_generation_and_intermediate_code_later() {
        assert!(built_for("80,90a", (8, 6)) && built_for("80,90a", (9, 0)));
        assert!(!built_for("86", (8, 0)) && !built_for("90a", (9, 1)) && !built_for("90a", (10, 0)));
        assert!(built_for("90a,ptx", (10, 0)) && !built_for("ptx", (7, 5)));
        assert!(built_for("120", (12, 1)) && !built_for("121", (12, 0)));
    }

    #[test]
    fn every_type_of_weights_has_kernels() {
        let rest = [GgmlType::Q8_1, GgmlType::Q8_K];
        let integers = [GgmlType::I8, GgmlType::I16, GgmlType::I32, GgmlType::I64, GgmlType::F64];
        for ty in GgmlType::ALL.iter().filter(|ty| !rest.contains(ty) && !integers.contains(ty)) {
            assert!(KERNEL_TYPES.iter().any(|(t, _)| t == ty), "{ty}");
        }
    }

    /// Registers, spills and shared memory of what was just compiled, against the ledger, which has the laboratory's
    /// kernels too.
    #[cfg(feature = "lab")]
    #[test]
    fn kernels_are_as_the_ledger_says() {
        let built = ledger::built();
        assert!(!built.is_empty(), "ptxas said nothing");
        let complaints = ledger::compare(&ledger::parse(include_str!("../ledger.toml")), &built);
        assert!(
            complaints.is_empty(),
            "{}\nif that is meant: cargo xtask cuda-ledger\n",
            complaints.join("\n")
        );
    }
}
