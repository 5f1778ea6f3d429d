//! NEON with the dot product of Armv8.2: Cortex-A76 and A55, Neoverse N1, Apple M1, and what came after them. The
//! vectors are those of [`super::neon`].

type Dotprod = super::neon::Neon<true>;

super::entry_points!(Dotprod, "neon,dotprod");
