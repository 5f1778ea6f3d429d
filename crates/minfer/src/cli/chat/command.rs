//! The commands of a chat.

use std::path::PathBuf;
use std::str::FromStr;

/// How each is written, and what it does.
pub(super) const COMMANDS: [(&str, &str); 12] = [
    ("/help", "this list"),
    ("/exit", "leave; Ctrl-D and, at the prompt, Ctrl-C do too"),
    ("/new", "begin a new conversation, with the same system prompt"),
    ("/system [TEXT]", "set the system prompt, or take it away"),
    ("/regen", "answer the last message again"),
    ("/undo", "take the last message and its answer back"),
    ("/drop N", "forget the N oldest messages and their answers"),
    ("/save [FILE]", "save the conversation, where it was saved before if FILE is left out"),
    ("/load FILE", "go on with a saved conversation"),
    ("/set [NAME VALUE]", "list the settings, or change one: temp, top-k, seed, max-tokens, on-full, ..."),
    ("/stats", "how full the context is, and how fast the last answer was"),
    ("/multi", "messages of many lines, up to an empty one, on or off"),
];

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Help,
    Exit,
    New,
    System(Option<String>),
    Regen,
    Undo,
    Drop(usize),
    Save(Option<PathBuf>),
    Load(PathBuf),
    Set(Option<(String, String)>),
    Stats,
    Multi,
}

impl FromStr for Command {
    type Err = String;

    fn from_str(line: &str) -> Result<Command, String> {
        let line = line.trim();
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        let argument = (!rest.is_empty()).then(|| rest.to_owned());
        let alone = |command| match &argument {
            None => Ok(command),
            Some(_) => Err(format!("{name} takes no argument")),
        };
        match name {
            "/help" | "/?" => alone(Command::Help),
            "/exit" | "/quit" | "/bye" => alone(Command::Exit),
            "/new" | "/clear" => alone(Command::New),
            "/system" => Ok(Command::System(argument)),
            "/regen" => alone(Command::Regen),
            "/undo" => alone(Command::Undo),
            "/drop" => match rest.parse() {
                Ok(n) if n > 0 => Ok(Command::Drop(n)),
                _ => Err("/drop how many? /drop N".to_owned()),
            },
            "/save" => Ok(Command::Save(argument.map(PathBuf::from))),
            "/load" => {
                argument.map(|f| Command::Load(f.into())).ok_or_else(|| "/load what? /load FILE".into())
            }
            "/set" => match rest.split_once(char::is_whitespace) {
                Some((name, value)) => Ok(Command::Set(Some((name.to_owned(), value.trim().to_owned())))),
                None if rest.is_empty() => Ok(Command::Set(None)),
                None => Err(format!("/set {rest} to what? /set {rest} VALUE")),
            },
            "/stats" => alone(Command::Stats),
            "/multi" => alone(Command::Multi),
            _ => Err(format!(
                "no command '{name}': /help lists them. To send it as a message, put a space before it"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_with_their_arguments() {
        let of = |line: &str| line.parse::<Command>();
        assert_eq!(of("/drop  2 "), Ok(Command::Drop(2)));
        assert_eq!(of("/system  Be  brief. "), Ok(Command::System(Some("Be  brief.".into()))));
        assert_eq!(of("/system"), Ok(Command::System(None)));
        assert_eq!(of("/save a b.json"), Ok(Command::Save(Some("a b.json".into()))));
        assert_eq!(of("/set temp 0.5"), Ok(Command::Set(Some(("temp".into(), "0.5".into())))));
        for (line, word) in [
            ("/drop", "/drop N"),
            ("/drop 0", "/drop N"),
            ("/drop many", "/drop N"),
            ("/load", "/load FILE"),
            ("/set temp", "/set temp VALUE"),
            ("/new now", "takes no argument"),
            ("/etc/passwd", "/help"),
            ("/", "/help"),
        ] {
            let e = of(line).unwrap_err();
            assert!(e.contains(word), "{line}: {e}");
        }
    }

    #[test]
    fn every_listed_command_exists() {
        for (usage, _) in COMMANDS {
            let line = usage.replace(['[', ']'], "").replace(" N", " 1");
            assert!(line.parse::<Command>().is_ok(), "{line}");
        }
    }
}
