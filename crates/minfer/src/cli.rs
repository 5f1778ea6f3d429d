//! The command line: one file per command, shared flags in [`args`], text in [`terminal`].

mod args;
mod bench;
mod chat;
mod constraint;
mod doctor;
mod embed;
mod inspect;
mod interrupt;
mod llama;
mod models;
mod perplexity;
mod run;
mod serve;
mod shell;
mod synth;
mod template;
mod terminal;
mod tokenize;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

/// Exit code after an interrupt: 128 + SIGINT, as a shell reports it.
const INTERRUPTED: u8 = 130;

/// Local LLM inference: load any GGUF, run it fast, prove it right.
#[derive(Parser)]
#[command(name = "minfer", version = VERSION, arg_required_else_help = true, disable_help_subcommand = true)]
struct Cli {
    /// What to log on stderr: error, warn, info, debug, trace, or a filter like `minfer_engine=debug`
    #[arg(long, global = true, value_name = "LEVEL")]
    log: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(Box<run::Args>),
    Chat(Box<chat::Args>),
    Embed(embed::Args),
    Serve(Box<serve::Args>),
    Bench(Box<bench::Args>),
    Perplexity(perplexity::Args),
    Tokenize(tokenize::TokenizeArgs),
    Detokenize(tokenize::DetokenizeArgs),
    Template(template::Args),
    Inspect(inspect::Args),
    Synth(synth::Args),
    Pull(models::PullArgs),
    List(models::ListArgs),
    Rm(models::RmArgs),
    Doctor(doctor::Args),
    Completions(shell::CompletionsArgs),
    Man(shell::ManArgs),
}

/// How a command that did not fail ended.
enum Outcome {
    /// It did all of it.
    Done,
    /// The user stopped it.
    Interrupted,
}

/// `0.1.0 (commit)`.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("MINFER_BUILD_COMMIT"), ")");

/// Runs the command that the process was called with.
pub(crate) fn main() -> ExitCode {
    let args = llama::translate(std::env::args_os());
    let cli = match args.and_then(|args| Cli::try_parse_from(long_flags(args.into_iter()))) {
        Ok(cli) => cli,
        Err(e) => return usage(&e),
    };
    let result = logging(cli.log.as_deref()).and_then(|()| match cli.command {
        Command::Run(args) => args.run(),
        Command::Chat(args) => args.run(),
        Command::Embed(args) => args.run().map(|()| Outcome::Done),
        Command::Serve(args) => args.run(),
        Command::Bench(args) => args.run().map(|()| Outcome::Done),
        Command::Perplexity(args) => args.run().map(|()| Outcome::Done),
        Command::Tokenize(args) => args.run().map(|()| Outcome::Done),
        Command::Detokenize(args) => args.run().map(|()| Outcome::Done),
        Command::Template(args) => args.run().map(|()| Outcome::Done),
        Command::Inspect(args) => args.run().map(|()| Outcome::Done),
        Command::Synth(args) => args.run(),
        Command::Pull(args) => args.run().map(|()| Outcome::Done),
        Command::List(args) => args.run().map(|()| Outcome::Done),
        Command::Rm(args) => args.run().map(|()| Outcome::Done),
        Command::Doctor(args) => args.run().map(|()| Outcome::Done),
        Command::Completions(args) => args.run().map(|()| Outcome::Done),
        Command::Man(args) => args.run().map(|()| Outcome::Done),
    });
    match result {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Interrupted) => ExitCode::from(INTERRUPTED),
        // The reader of our output has seen enough.
        Err(e) if terminal::is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => match e.downcast::<clap::Error>() {
            Ok(e) => usage(&e),
            Err(e) => {
                terminal::note(&format!("minfer: {}", chain(&e)));
                ExitCode::FAILURE
            }
        },
    }
}

/// Prints help to stdout or what is wrong with the usage to stderr, and gives the exit code.
fn usage(e: &clap::Error) -> ExitCode {
    let help = matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    match e.print() {
        // The reader has seen enough.
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            terminal::note(&format!("minfer: {e}"));
            return ExitCode::FAILURE;
        }
        _ => {}
    }
    if let Some(hint) = llama::hint(e) {
        terminal::note(&format!("\n{hint}"));
    }
    ExitCode::from(if help { 0 } else { 2 })
}

/// The error and its causes on one line. A cause that its effect already spells out is left out.
fn chain(e: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in e.chain().map(|c| c.to_string()) {
        if !text.ends_with(&cause) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&cause);
        }
    }
    // A cause may quote a file.
    terminal::printable(&text, &['\n', '\t'])
}

/// llama-bench's flags of one dash and several letters, spelled with two: `-ub 512` is `--ub 512`.
fn long_flags(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut verbatim = false;
    args.map(|arg| {
        verbatim |= arg == "--";
        match arg.to_str() {
            Some("-ub" | "-pg" | "-npl" | "-ctk" | "-ctv") if !verbatim => {
                format!("-{}", arg.to_string_lossy()).into()
            }
            _ => arg,
        }
    })
    .collect()
}

/// Sends log lines to stderr: those of `--log`, else of `$MINFER_LOG`, else warnings.
fn logging(level: Option<&str>) -> Result<()> {
    let filter = level.map(str::to_owned).or_else(minfer::env::minfer_log);
    let filter = filter.unwrap_or_else(|| "warn".to_owned());
    let filter = tracing_subscriber::EnvFilter::try_new(&filter)
        .map_err(|e| args::usage(format!("log level '{filter}': {e}")))?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::{Context, anyhow};
    use clap::CommandFactory;

    #[test]
    fn the_flags_are_consistent_and_every_command_has_an_example() {
        let mut cli = Cli::command();
        cli.clone().debug_assert();
        for command in cli.get_subcommands_mut() {
            let help = command.render_long_help().to_string();
            assert!(help.contains("Example"), "{}", command.get_name());
        }
    }

    #[test]
    fn single_dash_flags_become_long_ones() {
        let given = ["minfer", "bench", "-ub", "64", "-u", "--", "-ub"].map(OsString::from);
        assert_eq!(long_flags(given.into_iter()), ["minfer", "bench", "--ub", "64", "-u", "--", "-ub"]);
    }

    #[test]
    fn a_chain_says_nothing_twice() {
        let e = Err::<(), _>(anyhow!("no such file"))
            .context("a.gguf: no such file")
            .context("cannot load")
            .unwrap_err();
        assert_eq!(chain(&e), "cannot load: a.gguf: no such file");
    }
}
