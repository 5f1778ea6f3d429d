//! Numerics profiles of a GPU; what they compute is said in the crate's documentation.

use std::fmt;

/// Which of a GPU's profiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numerics {
    /// Inputs of products in half precision.
    #[default]
    F16,
    /// Inputs of products as bytes, where a matrix has tuned kernels; half precision elsewhere.
    Int8,
}

impl Numerics {
    /// The profile's name, as `--numerics` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Numerics::F16 => "f16",
            Numerics::Int8 => "int8",
        }
    }
}

impl fmt::Display for Numerics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
