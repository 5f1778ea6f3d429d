//! Prints the ledger with the lines of this build's architectures renewed; `cargo xtask cuda-ledger` keeps it.
#![allow(clippy::print_stdout, reason = "a tool that prints")]

use minfer_cuda::ledger;

fn main() {
    let built = ledger::built();
    let arch = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let archs: Vec<String> = built.keys().map(|key| arch(key)).collect();
    let mut all = ledger::parse(include_str!("../ledger.toml"));
    all.retain(|key, _| !archs.contains(&arch(key)));
    all.extend(built);
    print!("{}", ledger::print(&all));
}
