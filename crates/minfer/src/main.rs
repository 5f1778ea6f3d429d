//! The minfer command.
fn main() {}
