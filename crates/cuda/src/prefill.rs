//! Which kernel takes the products of prompts in the int8 profile: by a table, unless an experiment asks for another.

use minfer_ops::GgmlType;
use minfer_ops::GgmlType::{Q4_1, Q4_K};
use std::str::FromStr;

/// What takes products of many tokens as bytes. All but [`Prefill::Nb2`] are experiments of `csrc/lab/mmq.cu`, whose
/// arithmetic is not the profile's: they have the same bits among each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefill {
    /// What the table says of a product that nothing is asked for.
    #[default]
    Auto,
    /// The profile's own kernel.
    Nb2,
    /// Nibbles stay packed in shared memory: two blocks a multiprocessor, columns of whole tiles.
    Nb,
    /// The same, the loop over a tile's groups unrolled.
    NbUnrolled,
    /// Nibbles are unpacked into shared memory: one block where there is 100 KB of it, any columns.
    Wide,
    /// The same, the loop over a tile's groups unrolled.
    WideUnrolled,
}

use Prefill::{Auto, Nb, Nb2, NbUnrolled, Wide, WideUnrolled};

/// Columns of a tile of the experiments.
const TILE_COLS: usize = 256;

/// A line of the table: what is asked for, from which compute capability on, of which types (all that the profile has if
/// there are none), of columns that are a multiple of how many, takes which kernel.
struct Rule {
    asked: Prefill,
    from: (i32, i32),
    types: &'static [GgmlType],
    cols: usize,
    takes: Prefill,
}

const fn rule(asked: Prefill, types: &'static [GgmlType], cols: usize, takes: Prefill) -> Rule {
    Rule { asked, from: (8, 0), types, cols, takes }
}

/// The first line that fits counts; a product that none fits takes [`Prefill::Nb2`].
const RULES: &[Rule] = &[
    rule(Auto, &[], 1, Nb2),
    rule(Nb2, &[], 1, Nb2),
    rule(Nb, &[Q4_K, Q4_1], TILE_COLS, Nb),
    rule(Nb, &[Q4_K, Q4_1], 32, Wide),
    rule(NbUnrolled, &[Q4_K, Q4_1], TILE_COLS, NbUnrolled),
    rule(NbUnrolled, &[Q4_K, Q4_1], 32, WideUnrolled),
    rule(Wide, &[Q4_K, Q4_1], 32, Wide),
    rule(WideUnrolled, &[Q4_K, Q4_1], 32, WideUnrolled),
];

impl Prefill {
    /// All that may be asked for.
    pub const ALL: [Prefill; 6] = [Auto, Nb2, Nb, NbUnrolled, Wide, WideUnrolled];

    /// Its name, as `--kernels prefill=NAME` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Auto => "auto",
            Nb2 => "nb2",
            Nb => "nb",
            NbUnrolled => "nb-unrolled",
            Wide => "wide",
            WideUnrolled => "wide-unrolled",
        }
    }

    /// Whether only builds with the laboratory's kernels, the feature `lab`, have it.
    pub fn is_experiment(self) -> bool {
        !matches!(self, Auto | Nb2)
    }

    /// Whether this build has it.
    pub fn is_available(self) -> bool {
        !self.is_experiment() || cfg!(feature = "lab")
    }

    /// What takes a product with a matrix of this type and so many columns, on a GPU of this compute capability, where this
    /// is asked for.
    pub fn of(self, capability: (i32, i32), ty: GgmlType, cols: usize) -> Prefill {
        let fits = |rule: &&Rule| {
            self.is_available()
                && rule.asked == self
                && capability >= rule.from
                && (rule.types.is_empty() || rule.types.contains(&ty))
                && cols.is_multiple_of(rule.cols)
        };
        RULES.iter().find(fits).map_or(Nb2, |rule| rule.takes)
    }
}

impl FromStr for Prefill {
    type Err = String;

    fn from_str(name: &str) -> Result<Prefill, String> {
        let names = || Prefill::ALL.map(Prefill::name).join(", ");
        let found = Prefill::ALL.into_iter().find(|known| known.name() == name);
        found.ok_or_else(|| format!("{name:?} is none of {}", names()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_whole_tiles_falls_back_to_wide_and_other_types_to_the_profiles_own() {
        let of = |asked: Prefill, ty, cols| asked.of((9, 0), ty, cols);
        for asked in Prefill::ALL {
            assert_eq!(of(asked, GgmlType::Q6_K, 3584), Nb2, "{}", asked.name());
            assert_eq!(asked.name().parse(), Ok(asked));
        }
        assert_eq!((of(Auto, Q4_K, 3584), of(Nb2, Q4_K, 3584)), (Nb2, Nb2));
        if !cfg!(feature = "lab") {
            assert_eq!(of(Nb, Q4_K, 3584), Nb2);
            return;
        }
        assert_eq!((of(Nb, Q4_K, 3584), of(NbUnrolled, Q4_1, 2304)), (Nb, NbUnrolled));
        // 576 columns are 18 groups.
        assert_eq!((of(Nb, Q4_1, 576), of(NbUnrolled, Q4_1, 576)), (Wide, WideUnrolled));
        assert_eq!(of(Wide, Q4_K, 3584), Wide);
    }
}
