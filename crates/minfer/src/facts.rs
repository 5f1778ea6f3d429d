//! What a file says about itself: the figures that `inspect` and `bench` show.

use std::collections::BTreeMap;

use minfer_cpu::{Isa, Numerics};
use minfer_gguf::{GgmlType, Gguf};
use serde::Serialize;

/// Summary of a GGUF file, from its metadata and tensor table alone.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Facts {
    /// `general.architecture`.
    pub architecture: Option<String>,
    /// `general.name`.
    pub name: Option<String>,
    /// `general.size_label`, or one made of the number of parameters.
    pub size_label: String,
    /// Name of the mix: by `general.file_type` if known, else the type that holds most values.
    pub file_type: String,
    /// Values of all tensors.
    pub parameters: u64,
    /// Bytes of all tensors.
    pub tensor_bytes: u64,
    /// Bytes of the file, or of all parts.
    pub file_bytes: u64,
    /// Number of tensors.
    pub tensors: usize,
    /// Longest context that the model was trained for.
    pub context: Option<u64>,
    /// Bytes of matrices that one generated token reads: all of them, but of the embedding table only if it is the
    /// output matrix too.
    pub bytes_per_token: u64,
    /// Types of the matrices.
    #[serde(skip)]
    pub matrix_types: Vec<GgmlType>,
    /// Bytes and number of tensors by type, by name of the type.
    pub types: BTreeMap<&'static str, TypeShare>,
}

/// Tensors of one type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TypeShare {
    /// How many.
    pub tensors: usize,
    /// Their values.
    pub parameters: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// `general.file_type` of llama.cpp (`enum llama_ftype`), the numbers in use.
const FILE_TYPES: &[(u32, &str)] = &[
    (0, "all F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K"),
    (11, "Q3_K_S"),
    (12, "Q3_K_M"),
    (13, "Q3_K_L"),
    (14, "Q4_K_S"),
    (15, "Q4_K_M"),
    (16, "Q5_K_S"),
    (17, "Q5_K_M"),
    (18, "Q6_K"),
    (19, "IQ2_XXS"),
    (20, "IQ2_XS"),
    (21, "Q2_K_S"),
    (22, "IQ3_XS"),
    (23, "IQ3_XXS"),
    (24, "IQ1_S"),
    (25, "IQ4_NL"),
    (26, "IQ3_S"),
    (27, "IQ3_M"),
    (28, "IQ2_S"),
    (29, "IQ2_M"),
    (30, "IQ4_XS"),
    (31, "IQ1_M"),
    (32, "BF16"),
    (36, "TQ1_0"),
    (37, "TQ2_0"),
    (38, "MXFP4"),
];

impl Facts {
    /// Reads them. A key of the wrong type counts as absent here: loading the model complains about it.
    pub fn of(gguf: &Gguf) -> Facts {
        let metadata = gguf.metadata();
        let text = |key: &str| metadata.str(key).ok().flatten().map(str::to_owned);
        let mut types: BTreeMap<GgmlType, TypeShare> = BTreeMap::new();
        for tensor in gguf.tensors() {
            let share = types.entry(tensor.ty()).or_default();
            share.tensors += 1;
            share.parameters += tensor.elements();
            share.bytes += tensor.data().len() as u64;
        }
        let tied = gguf.tensor("output.weight").is_none();
        let matrices = gguf.tensors().filter(|t| t.dims().len() > 1);
        let mut matrix_types: Vec<GgmlType> = matrices.clone().map(|t| t.ty()).collect();
        matrix_types.sort_unstable();
        matrix_types.dedup();
        let parameters = types.values().map(|s| s.parameters).sum();
        let architecture = text("general.architecture");
        let context_key = architecture.as_ref().map(|a| format!("{a}.context_length"));
        let named_type = metadata.u32("general.file_type").ok().flatten();
        let named_type = named_type.and_then(|id| FILE_TYPES.iter().find(|(n, _)| *n == id));
        let most = types.iter().max_by_key(|(_, share)| share.parameters);
        Facts {
            name: text("general.name"),
            size_label: text("general.size_label").unwrap_or_else(|| size_label(parameters)),
            file_type: match (named_type, most) {
                (Some((_, name)), _) => (*name).to_owned(),
                (None, Some((ty, _))) => ty.name().to_owned(),
                (None, None) => "no tensors".to_owned(),
            },
            parameters,
            tensor_bytes: types.values().map(|s| s.bytes).sum(),
            file_bytes: gguf.file_bytes(),
            tensors: gguf.tensors().len(),
            bytes_per_token: matrices
                .filter(|t| tied || t.name() != "token_embd.weight")
                .map(|t| t.data().len() as u64)
                .sum(),
            matrix_types,
            context: context_key.and_then(|key| metadata.u64(&key).ok().flatten()),
            types: types.into_iter().map(|(ty, share)| (ty.name(), share)).collect(),
            architecture,
        }
    }

    /// Ids of the matrix kernels that run this file on `isa` in a profile, by type.
    pub fn kernels(&self, isa: Isa, numerics: Numerics) -> Vec<String> {
        let rows = minfer_cpu::kernels(isa, numerics).filter(|k| self.matrix_types.contains(&k.ty));
        rows.map(|k| k.id()).collect()
    }

    /// The model in a few words, as llama-bench's first column: `llama 135M Q4_1`.
    pub fn model_type(&self) -> String {
        let architecture = self.architecture.as_deref().unwrap_or("?");
        format!("{architecture} {} {}", self.size_label, self.file_type)
    }
}

/// `135M`, `1.2B`, `8.0B`.
fn size_label(parameters: u64) -> String {
    match parameters as f64 {
        n if n >= 999.5e6 => format!("{:.1}B", n / 1e9),
        n if n >= 999.5e3 => format!("{:.0}M", n / 1e6),
        n => format!("{:.0}K", n / 1e3),
    }
}

/// A number of bytes for people: `93.81 MiB`, `4.58 GiB`.
pub fn human_bytes(bytes: u64) -> String {
    let mib = bytes as f64 / (1 << 20) as f64;
    if mib < 1024.0 { format!("{mib:.2} MiB") } else { format!("{:.2} GiB", mib / 1024.0) }
}

/// A number of parameters for people: `134.52 M`, `8.03 B`.
pub fn human_count(count: u64) -> String {
    let millions = count as f64 / 1e6;
    if millions < 1000.0 { format!("{millions:.2} M") } else { format!("{:.2} B", millions / 1e3) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!((size_label(134_515_008), size_label(1_235_814_432)), ("135M".into(), "1.2B".into()));
        assert_eq!((human_bytes(98_362_432), human_bytes(5 << 30)), ("93.81 MiB".into(), "5.00 GiB".into()));
        assert_eq!(
            (human_count(134_515_008), human_count(8_030_261_248)),
            ("134.52 M".into(), "8.03 B".into())
        );
    }
}
