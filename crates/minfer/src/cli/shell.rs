//! `minfer completions` and `minfer man`: what a shell and `man` know of the command line, made from its definition.

use anyhow::Result;
use clap::{Command, CommandFactory};
use clap_complete::Shell;

use super::Cli;
use super::args::usage;
use super::terminal::print;

/// Print a script that completes commands and flags in a shell
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  minfer completions bash > ~/.local/share/bash-completion/completions/minfer\n  \
    minfer completions zsh > ~/.zfunc/_minfer        # with fpath+=~/.zfunc before compinit\n  \
    minfer completions fish > ~/.config/fish/completions/minfer.fish"
)]
pub(super) struct CompletionsArgs {
    /// Which shell
    shell: Shell,
}

impl CompletionsArgs {
    /// Runs the command.
    pub(super) fn run(self) -> Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "minfer", &mut script);
        print(script)
    }
}

/// Print the manual page
#[derive(clap::Args)]
#[command(after_help = "Example:\n  minfer man | man -l -\n  minfer man run > minfer-run.1")]
pub(super) struct ManArgs {
    /// The page of this command; of minfer as a whole if left out
    command: Option<String>,
}

impl ManArgs {
    /// Runs the command.
    pub(super) fn run(self) -> Result<()> {
        let whole = Cli::command();
        let page = match &self.command {
            None => whole,
            Some(name) => of_command(&whole, name)?,
        };
        let mut text = Vec::new();
        clap_mangen::Man::new(page).render(&mut text)?;
        print(text)
    }
}

/// A command as a page of its own, with the flags that all commands have.
fn of_command(whole: &Command, name: &str) -> Result<Command> {
    let names = || whole.get_subcommands().map(Command::get_name).collect::<Vec<_>>().join(", ");
    let Some(command) = whole.find_subcommand(name) else {
        return Err(usage(format!("no command '{name}': there are {}", names())));
    };
    let global = whole.get_arguments().filter(|arg| arg.is_global_set()).cloned();
    Ok(command.clone().display_name(format!("minfer-{name}")).bin_name(format!("minfer {name}")).args(global))
}
