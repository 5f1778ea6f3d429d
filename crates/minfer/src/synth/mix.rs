//! Which type each matrix gets, by the rule of llama.cpp's quantizer (`llama-quant.cpp`).

use std::str::FromStr;

use minfer_gguf::GgmlType;

/// A choice of types for the matrices of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Q4_K, with Q6_K for half of `attn_v` and `ffn_down` and for the output.
    Q4KM,
    /// Q4_K, with Q5_K for the first `attn_v` and `ffn_down`, Q6_K for the output.
    Q4KS,
    /// Q5_K, with Q6_K as in [`Mix::Q4KM`].
    Q5KM,
    /// One type; a quantized one other than Q8_0 still gets Q6_K for the output.
    One(GgmlType),
}

/// What a matrix is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The embedding table.
    Embedding,
    /// The output matrix, or the embedding table if it serves as one.
    Output,
    /// `attn_v` of a layer.
    AttnV(u32),
    /// `ffn_down` of a layer.
    FfnDown(u32),
    /// Any other.
    Other,
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let name = given.to_ascii_uppercase();
        match name.as_str() {
            "Q4_K_M" => Ok(Mix::Q4KM),
            "Q4_K_S" => Ok(Mix::Q4KS),
            "Q5_K_M" => Ok(Mix::Q5KM),
            _ => Mix::uniform()
                .find(|ty| ty.name() == name)
                .map(Mix::One)
                .ok_or_else(|| format!("expected {}", Mix::names().collect::<Vec<_>>().join(", "))),
        }
    }
}

impl std::fmt::Display for Mix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Mix::Q4KM => "Q4_K_M",
            Mix::Q4KS => "Q4_K_S",
            Mix::Q5KM => "Q5_K_M",
            Mix::One(ty) => ty.name(),
        })
    }
}

impl Mix {
    /// Names of all mixes.
    pub fn names() -> impl Iterator<Item = &'static str> {
        ["Q4_K_M", "Q4_K_S", "Q5_K_M"].into_iter().chain(Mix::uniform().map(GgmlType::name))
    }

    /// Types that weights are stored in: not the integers, F64, or the two types of activations.
    fn uniform() -> impl Iterator<Item = GgmlType> {
        use GgmlType::{F64, I8, I16, I32, I64, Q8_1, Q8_K};
        GgmlType::ALL.iter().copied().filter(|ty| ![F64, I8, I16, I32, I64, Q8_1, Q8_K].contains(ty))
    }

    /// `general.file_type`, llama.cpp's number for the mix; `None` where it has none.
    pub fn file_type(self) -> Option<u32> {
        use GgmlType::*;
        Some(match self {
            Mix::Q4KS => 14,
            Mix::Q4KM => 15,
            Mix::Q5KM => 17,
            Mix::One(F32) => 0,
            Mix::One(F16) => 1,
            Mix::One(Q4_0) => 2,
            Mix::One(Q4_1) => 3,
            Mix::One(Q8_0) => 7,
            Mix::One(Q5_0) => 8,
            Mix::One(Q5_1) => 9,
            Mix::One(Q6_K) => 18,
            Mix::One(BF16) => 32,
            Mix::One(_) => return None,
        })
    }

    /// The type of a matrix with rows of `cols` values, in a model of `n_layer` layers.
    pub fn type_of(self, role: Role, cols: usize, n_layer: u32) -> GgmlType {
        let base = match self {
            Mix::Q4KM | Mix::Q4KS => GgmlType::Q4_K,
            Mix::Q5KM => GgmlType::Q5_K,
            Mix::One(ty) => ty,
        };
        if base.block_len() == 1 {
            return base;
        }
        let wanted = match role {
            Role::Output if base == GgmlType::Q8_0 || !cols.is_multiple_of(base.block_len()) => {
                GgmlType::Q8_0
            }
            Role::Output => GgmlType::Q6_K,
            Role::AttnV(i) | Role::FfnDown(i) => match self {
                Mix::Q4KM | Mix::Q5KM if more_bits(i, n_layer) => GgmlType::Q6_K,
                Mix::Q4KS if matches!(role, Role::AttnV(_)) && i < 4 => GgmlType::Q5_K,
                Mix::Q4KS if matches!(role, Role::FfnDown(_)) && i < n_layer / 8 => GgmlType::Q5_K,
                _ => base,
            },
            Role::Embedding | Role::Other => base,
        };
        fitting(wanted, cols)
    }
}

/// Layers that get more bits: the first and last eighth, and every third between.
fn more_bits(i: u32, n: u32) -> bool {
    i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2
}

/// `wanted`, or what takes its place where rows are not whole blocks of it.
fn fitting(wanted: GgmlType, cols: usize) -> GgmlType {
    use GgmlType::*;
    let fits = |ty: GgmlType| cols.is_multiple_of(ty.block_len());
    if fits(wanted) {
        return wanted;
    }
    let next = match wanted {
        IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ4_XS => IQ4_NL,
        Q4_K => Q5_0,
        Q5_K => Q5_1,
        Q6_K => Q8_0,
        _ => Q4_0,
    };
    if fits(next) { next } else { F16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q4_k_m_of_a_32_layer_model() {
        let ty = |role| Mix::Q4KM.type_of(role, 4096, 32);
        assert_eq!(ty(Role::Output), GgmlType::Q6_K);
        assert_eq!(ty(Role::Embedding), GgmlType::Q4_K);
        assert_eq!(ty(Role::Other), GgmlType::Q4_K);
        // As in the published Llama-3.1-8B Q4_K_M: layers 0–3, 6, 9, …, 27, and 28–31.
        let six: Vec<u32> = (0..32).filter(|i| ty(Role::FfnDown(*i)) == GgmlType::Q6_K).collect();
        assert_eq!(six, [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]);
        assert_eq!(ty(Role::AttnV(6)), GgmlType::Q6_K);
    }

    #[test]
    fn rows_that_are_not_whole_blocks_fall_back() {
        // SmolLM2-135M has rows of 576 values.
        assert_eq!(Mix::Q4KM.type_of(Role::Output, 576, 30), GgmlType::Q8_0);
        assert_eq!(Mix::Q4KM.type_of(Role::Other, 576, 30), GgmlType::Q5_0);
        assert_eq!(Mix::Q4KM.type_of(Role::AttnV(0), 576, 30), GgmlType::Q8_0);
        assert_eq!(Mix::Q4KM.type_of(Role::FfnDown(5), 1536, 30), GgmlType::Q6_K);
        assert_eq!(Mix::One(GgmlType::IQ3_S).type_of(Role::Other, 96, 2), GgmlType::IQ4_NL);
        assert_eq!(Mix::One(GgmlType::Q4_0).type_of(Role::Other, 40, 2), GgmlType::F16);
    }

    #[test]
    fn names_are_read_back() {
        for name in Mix::names() {
            assert_eq!(name.to_ascii_lowercase().parse::<Mix>().unwrap().to_string(), name);
        }
        assert!("q9".parse::<Mix>().unwrap_err().contains("Q4_K_M"));
        assert_eq!("bf16".parse::<Mix>().unwrap().type_of(Role::Output, 64, 1), GgmlType::BF16);
    }
}
