//! `--cache-dir`: another process goes on where one has ended, to the same text, and a damaged folder costs time only.

use std::path::{Path, PathBuf};

use super::*;

struct Run {
    text: String,
    /// Tokens of the prompt, and those of them that were taken over.
    prompt: usize,
    cached: usize,
    warnings: usize,
}

fn args<'a>(dir: &'a str, prompt: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let fixed = [
        "--log",
        "warn",
        "run",
        "-m",
        endless_model(),
        "--raw",
        "--temp",
        "0",
        "-n",
        "8",
        "--cache-dir",
        dir,
    ];
    [&fixed[..], more, &[prompt]].concat()
}

fn checked(output: &Output) -> Run {
    let errors = stderr(output);
    assert!(output.status.success(), "{errors}");
    let summary = errors.lines().find_map(|line| line.strip_prefix("prompt ")).expect("a summary");
    let number = |text: &str| text.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
    let cached = summary.split_once(" tokens (").map_or(0, |(_, rest)| number(rest));
    let warnings = errors.matches(" WARN ").count();
    Run { text: stdout(output), prompt: number(summary), cached, warnings }
}

fn answer(dir: &Path, prompt: &str, more: &[&str]) -> Run {
    checked(&run(&args(dir.to_str().expect("UTF-8"), prompt, more)))
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> =
        std::fs::read_dir(dir).expect("a folder").map(|f| f.expect("a file").path()).collect();
    files.sort();
    files
}

fn prompt() -> String {
    (0..60).map(|i| format!("{} is {}. ", i * i % 97, i * 7 % 31)).collect()
}

#[test]
fn another_process_goes_on_where_one_has_ended() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (prompt, longer) = (prompt(), prompt() + "And so on, for a while.");
    for ty in ["f16", "q8_0", "fp8"] {
        let more = ["--ctk", ty, "--ctv", ty];
        let first = answer(dir.path(), &prompt, &more);
        assert_eq!((first.cached, first.warnings), (0, 0), "{ty}");
        assert!(first.prompt > 200 && first.prompt < 4000, "{}", first.prompt);
        let second = answer(dir.path(), &prompt, &more);
        assert_eq!((second.cached, second.warnings), ((first.prompt - 1) / 64 * 64, 0), "{ty}");
        assert_eq!(second.text, first.text, "{ty}");
        // A prompt that goes on, in a process with other threads and steps.
        let other = tempfile::tempdir().expect("a temporary folder");
        let alone = answer(other.path(), &longer, &more);
        let found = answer(dir.path(), &longer, &[&more[..], &["-t", "1"]].concat());
        assert!(found.cached >= second.cached - 64 && alone.cached == 0, "{ty}: {}", found.cached);
        assert_eq!(found.text, alone.text, "{ty}");
    }
}

#[test]
fn a_damaged_folder_costs_time_only() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let prompt = prompt() + "7 is 8. 9 is 10.";
    let first = answer(dir.path(), &prompt, &[]);
    let count = files(dir.path()).len();
    // All of them are read again: none has the last token of the prompt.
    assert!(count >= 4 && count == (first.prompt - 1) / 64, "{count} files of {} tokens", first.prompt);
    let damage = |which: usize, change: &dyn Fn(&mut Vec<u8>)| {
        let path = &files(dir.path())[which];
        let mut bytes = std::fs::read(path).expect("a file");
        change(&mut bytes);
        std::fs::write(path, bytes).expect("a file");
        let found = answer(dir.path(), &prompt, &[]);
        assert_eq!(found.text, first.text);
        assert_eq!(found.warnings, 1, "one line in the log");
        assert!(found.cached < (first.prompt - 1) / 64 * 64, "what is damaged is no hit");
        assert_eq!(files(dir.path()).len(), count, "it was written again");
    };
    for which in 0..count {
        let places = [0, 9, 30, 70, 200, 30_000, 65_000];
        for place in [places[which % 7], places[(which + 3) % 7]] {
            damage(which, &|bytes| bytes[place] ^= 1);
        }
    }
    damage(0, &|bytes| bytes.truncate(1000));
    damage(1, &|bytes| bytes.clear());
    let other = std::fs::read(&files(dir.path())[2]).expect("a file");
    damage(3, &|bytes| bytes.clone_from(&other));
    let last = answer(dir.path(), &prompt, &[]);
    assert_eq!((last.cached, last.warnings), ((first.prompt - 1) / 64 * 64, 0));
}

#[test]
fn processes_share_a_folder_and_it_keeps_to_its_size() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().to_str().expect("UTF-8");
    let prompt = prompt();
    let spawn = || {
        let mut command = minfer();
        command.args(args(path, &prompt, &[])).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the binary runs")
    };
    let children = [spawn(), spawn(), spawn()];
    let runs = children.map(|child| checked(&child.wait_with_output().expect("an end")));
    assert!(runs.iter().all(|run| run.text == runs[0].text && run.warnings == 0));
    let again = answer(dir.path(), &prompt, &[]);
    assert_eq!((again.cached, &again.text), ((again.prompt - 1) / 64 * 64, &runs[0].text));
    // Of another prompt, in a folder of three blocks.
    let reversed: String = prompt.chars().rev().collect();
    answer(dir.path(), &reversed, &["--cache-disk", "200K"]);
    let bytes: u64 = files(dir.path()).iter().map(|file| file.metadata().expect("a file").len()).sum();
    assert!(bytes <= 200 << 10, "{bytes}");
}

#[test]
fn a_folder_that_cannot_be_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("file");
    std::fs::write(&file, "").expect("a file");
    let file = file.to_str().expect("UTF-8");
    let text = fails(&["run", "-m", tiny_model(), "--cache-dir", file, "Hi"], 1);
    assert!(text.contains(file), "{text}");
    for size in ["0", "many", "1.5G", "-1", "99999999999T"] {
        fails(&["run", "-m", tiny_model(), "--cache-dir", file, "--cache-disk", size, "Hi"], 2);
    }
    fails(&["run", "-m", tiny_model(), "--cache-disk", "1G", "Hi"], 2);
}
