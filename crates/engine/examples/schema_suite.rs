//! JSON Schema as it is honoured, beside the public JSON-Schema-Test-Suite (its folder `tests/draft2020-12`):
//!
//! ```text
//! cargo run --release -p minfer-engine --example schema_suite -- JSON-Schema-Test-Suite/tests/draft2020-12 [schemas.jsonl]
//! ```
//!
//! Each schema is honoured or refused. Of a honoured one no invalid text may be let through (`wide`, which fails); valid ones that are
//! not let through (`narrow`) narrow what a model can say, as the order of properties does. The honoured schemas go to the second
//! file, a JSON object a line, for `schema_suite.py` to have texts of them generated.
#![allow(clippy::print_stdout, reason = "a tool that prints")]

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;

use minfer_engine::{Begin, Constraint, Grammar};
use serde_json::{Value, json};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<ExitCode, Failure> {
    let mut args = std::env::args_os().skip(1);
    let folder = args.next().ok_or("the folder of the suite is missing")?;
    let mut schemas = args.next().map(std::fs::File::create).transpose()?;
    let mut files = std::fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    files.sort_by_key(std::fs::DirEntry::file_name);
    let mut table = Table::default();
    for file in files.iter().filter(|file| file.path().extension().is_some_and(|ext| ext == "json")) {
        let name = file.file_name().to_string_lossy().trim_end_matches(".json").to_owned();
        let groups: Vec<Value> = serde_json::from_slice(&std::fs::read(file.path())?)?;
        for group in &groups {
            let honoured = table.add(&name, group);
            if let Some(out) = schemas.as_mut().filter(|_| honoured) {
                let line = json!({"file": name, "what": group["description"], "schema": group["schema"]});
                writeln!(out, "{line}")?;
            }
        }
    }
    Ok(table.print())
}

#[derive(Default)]
struct Table {
    rows: BTreeMap<String, Row>,
    refusals: BTreeMap<String, usize>,
    wide: Vec<String>,
}

#[derive(Clone, Copy, Default)]
struct Row {
    honoured: usize,
    refused: usize,
    valid: usize,
    narrow: usize,
    invalid: usize,
    wide: usize,
}

impl Table {
    /// Tries the tests of a schema; whether it is honoured.
    fn add(&mut self, file: &str, group: &Value) -> bool {
        let row = self.rows.entry(file.to_owned()).or_default();
        let schema = &group["schema"];
        let constraint = Constraint { grammar: Grammar::JsonSchema(schema.to_string()), begin: Begin::Now };
        if let Err(error) = constraint.check() {
            row.refused += 1;
            let why = error.to_string();
            *self.refusals.entry(why.lines().next().unwrap_or_default().to_owned()).or_default() += 1;
            return false;
        }
        row.honoured += 1;
        for test in group["tests"].as_array().into_iter().flatten() {
            let admitted = constraint.admits(&test["data"].to_string()).unwrap_or(false);
            match test["valid"].as_bool() {
                Some(true) => {
                    row.valid += 1;
                    row.narrow += usize::from(!admitted);
                }
                _ => {
                    row.invalid += 1;
                    row.wide += usize::from(admitted);
                }
            }
            if admitted && test["valid"] == false {
                self.wide.push(format!(
                    "{file}: {}: {}: {}\n    {schema}",
                    group["description"], test["description"], test["data"]
                ));
            }
        }
        true
    }

    fn print(&self) -> ExitCode {
        println!("| keyword | honoured | refused | valid | narrow | invalid | wide |");
        println!("|---|---:|---:|---:|---:|---:|---:|");
        let mut all = Row::default();
        for (name, row) in &self.rows {
            let Row { honoured, refused, valid, narrow, invalid, wide } = *row;
            println!("| {name} | {honoured} | {refused} | {valid} | {narrow} | {invalid} | {wide} |");
            all = Row {
                honoured: all.honoured + honoured,
                refused: all.refused + refused,
                valid: all.valid + valid,
                narrow: all.narrow + narrow,
                invalid: all.invalid + invalid,
                wide: all.wide + wide,
            };
        }
        let Row { honoured, refused, valid, narrow, invalid, wide } = all;
        println!("| all | {honoured} | {refused} | {valid} | {narrow} | {invalid} | {wide} |\n");
        for (why, count) in &self.refusals {
            println!("{count} × {why}");
        }
        self.wide.iter().for_each(|wide| println!("\nwide: {wide}"));
        ExitCode::from(u8::from(wide > 0))
    }
}
