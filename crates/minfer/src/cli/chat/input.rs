//! What the user says: from an editor on a terminal, from lines of stdin otherwise.

use std::io::{Lines, StdinLock};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use rustyline::completion::Completer;
use rustyline::config::Config;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Editor, Helper};

use super::super::terminal::note;
use super::command::COMMANDS;

/// Marks the beginning and the end of a text that is taken as it is.
const QUOTES: &str = "\"\"\"";

/// Messages and commands, one after the other.
pub(super) enum Input {
    Terminal(Box<Terminal>),
    Lines(Lines<StdinLock<'static>>),
}

/// The editor.
pub(super) struct Terminal {
    editor: Editor<Rules, FileHistory>,
    /// `None` if nothing is kept.
    history: Option<PathBuf>,
}

impl Input {
    pub(super) fn new(interactive: bool, keep_history: bool) -> Input {
        if interactive {
            match Terminal::new(keep_history) {
                Ok(terminal) => return Input::Terminal(Box::new(terminal)),
                Err(e) => note(&format!("no line editing: {e}")),
            }
        }
        Input::Lines(std::io::stdin().lines())
    }

    /// The next message or command, of one or several lines; `None` at the end.
    pub(super) fn read(&mut self, many_lines: bool) -> Result<Option<String>> {
        match self {
            Input::Terminal(terminal) => terminal.read(many_lines),
            Input::Lines(lines) => read_lines(lines, many_lines),
        }
    }
}

impl Terminal {
    fn new(keep_history: bool) -> rustyline::Result<Terminal> {
        let config = Config::builder().history_ignore_space(false).build();
        let mut editor = Editor::with_config(config)?;
        editor.set_helper(Some(Rules::default()));
        let history = if keep_history { super::history_file() } else { None };
        if let Some(path) = &history
            && path.exists()
            && let Err(e) = editor.load_history(path)
        {
            note(&format!("cannot read {}: {e}", path.display()));
        }
        Ok(Terminal { editor, history })
    }

    fn read(&mut self, many_lines: bool) -> Result<Option<String>> {
        if let Some(rules) = self.editor.helper_mut() {
            rules.many_lines = many_lines;
        }
        let text = match self.editor.readline("> ") {
            Ok(text) => text,
            Err(ReadlineError::Eof | ReadlineError::Interrupted) => return Ok(None),
            Err(e) => return Err(e).context("cannot read from the terminal"),
        };
        if !text.trim().is_empty() {
            self.editor.add_history_entry(text.as_str())?;
            // At once, so that it is there however the program ends.
            if let Some(path) = &self.history
                && let Err(e) = self.editor.append_history(path)
            {
                note(&format!("cannot write {}: {e}; history is not kept", path.display()));
                self.history = None;
            }
        }
        Ok(Some(text))
    }
}

fn read_lines(
    lines: &mut impl Iterator<Item = std::io::Result<String>>,
    many_lines: bool,
) -> Result<Option<String>> {
    let mut text: Option<String> = None;
    for line in lines {
        let line = line.context("cannot read stdin")?;
        let text = match &mut text {
            None => text.insert(line),
            Some(text) => {
                text.push('\n');
                text.push_str(&line);
                text
            }
        };
        if is_complete(text, many_lines) {
            return Ok(Some(std::mem::take(text)));
        }
    }
    match text {
        Some(text) if text.trim_start().starts_with(QUOTES) => {
            bail!("the text that begins with {QUOTES} does not end; nothing was sent of it")
        }
        text => Ok(text),
    }
}

/// Whether a message or command is whole.
fn is_complete(text: &str, many_lines: bool) -> bool {
    if let Some(rest) = text.trim_start().strip_prefix(QUOTES) {
        return rest.trim_end().ends_with(QUOTES);
    }
    if many_lines && !text.starts_with('/') {
        return text.is_empty() || text.ends_with('\n');
    }
    !text.ends_with('\\')
}

/// The message that was meant: without quotes, or without the \ at line ends.
pub(super) fn message(text: &str) -> String {
    let quoted = text.trim().strip_prefix(QUOTES).and_then(|rest| rest.strip_suffix(QUOTES));
    match quoted {
        Some(text) => text.trim_matches('\n').to_owned(),
        None => text.replace("\\\n", "\n").trim_end_matches(['\n', '\\']).trim_start_matches(' ').to_owned(),
    }
}

/// When a message is whole, and what Tab completes: commands.
#[derive(Default)]
struct Rules {
    many_lines: bool,
}

impl Validator for Rules {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match is_complete(context.input(), self.many_lines) {
            true => ValidationResult::Valid(None),
            false => ValidationResult::Incomplete,
        })
    }
}

impl Completer for Rules {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &rustyline::Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let start = line.get(..position).unwrap_or_default();
        let names = COMMANDS.iter().filter_map(|(usage, _)| usage.split(' ').next());
        let matches = |name: &&str| start.starts_with('/') && name.starts_with(start);
        Ok((0, names.filter(matches).map(str::to_owned).collect()))
    }
}

impl Hinter for Rules {
    type Hint = String;
}
impl Highlighter for Rules {}
impl Helper for Rules {}

#[cfg(test)]
mod tests {
    use std::io::BufRead;

    use super::*;

    fn all(text: &str, many_lines: bool) -> Result<Vec<String>> {
        let mut lines = text.as_bytes().lines();
        let mut found = Vec::new();
        while let Some(text) = read_lines(&mut lines, many_lines)? {
            found.push(if text.starts_with('/') { text } else { message(&text) });
        }
        Ok(found)
    }

    #[test]
    fn messages_go_on_as_they_say() {
        assert_eq!(all("a\n\nb", false).unwrap(), ["a", "", "b"]);
        assert_eq!(all("a\\\nb\\\n c\nd\n", false).unwrap(), ["a\nb\n c", "d"]);
        assert_eq!(all("\"\"\"\nx\\\n\n /y\n\"\"\"\nz", false).unwrap(), ["x\\\n\n /y", "z"]);
        assert_eq!(all("\"\"\"one line\"\"\"\nz", false).unwrap(), ["one line", "z"]);
        assert_eq!(all("a\nb\n\n/exit\nc\n", true).unwrap(), ["a\nb", "/exit", "c"]);
        assert_eq!(all("the end \\", false).unwrap(), ["the end "]);
        assert_eq!(all(" /not a command", false).unwrap(), ["/not a command"]);
        assert!(all("\"\"\"\nnever ends\n", false).unwrap_err().to_string().contains("does not end"));
    }
}
