//! Numerics profiles of a GPU; what they compute is said in the crate's documentation.

use std::fmt;

/// Which of a GPU's profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numerics {
    /// Inputs of products in half precision.
    F16,
    /// Inputs of products as bytes, where a matrix has tuned kernels; half precision elsewhere.
    Int8,
}

impl Numerics {
    /// The profile of a GPU of this compute capability that is asked for none: bytes where tensor cores take halves with
    /// sums in single precision at half their rate (the tables of throughput in NVIDIA's architecture papers: GeForce of
    /// 8.6, 8.9 and 12.0;
    /// cards for servers of the same capability cannot be told from them), halves elsewhere.
    pub fn of(capability: (i32, i32)) -> Numerics {
        match capability {
            (8, 6..) | (12, _) => Numerics::Int8,
            _ => Numerics::F16,
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_with_slow_halves_take_bytes() {
        for capability in [(8, 6), (8, 7), (8, 9), (12, 0), (12, 1)] {
            assert_eq!(Numerics::of(capability), Numerics::Int8, "{capability:?}");
        }
        for capability in [(8, 0), (9, 0), (10, 0), (10, 3)] {
            assert_eq!(Numerics::of(capability), Numerics::F16, "{capability:?}");
        }
    }
}
