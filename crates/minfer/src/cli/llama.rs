//! What users of llama.cpp type: understood where it means something here, answered with the right spelling where not.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Commands whose model is an argument, not a flag.
const POSITIONAL: [&str; 3] = ["inspect", "pull", "rm"];

/// The one flag with a value that may stand before the command.
const GLOBAL: &str = "--log";

/// Flags of llama.cpp, and what to write here instead.
const ANSWERS: &[(&[&str], &str)] = &[
    (&["-fa", "--flash-attn"], "leave it out: minfer chooses how attention is computed"),
    (
        &["--jinja", "--no-jinja"],
        "leave it out: the model's own chat template is used, --raw goes without one",
    ),
    (
        &["-cnv", "--conversation", "-i", "--interactive", "-if", "--interactive-first"],
        "`minfer chat` is the conversation, `minfer run` the single answer",
    ),
    (
        &["-no-cnv", "--no-conversation", "-st", "--single-turn"],
        "leave it out: `minfer run` answers one prompt",
    ),
    (&["--ub", "--ubatch-size", "-b", "--batch-size"], "leave it out: only `minfer bench` has -b and -ub"),
    (
        &["--mmap", "--no-mmap", "--mlock"],
        "leave it out: files are mapped, and weights copied to where they are fastest (--repack)",
    ),
    (&["-sys", "--system-prompt"], "write --system TEXT"),
    (&["-f", "--file"], "give the text on stdin: minfer run < FILE"),
    (
        &["-e", "--escape", "--no-escape"],
        "leave it out: the prompt is taken as it is; $'…' of the shell knows \\n",
    ),
    (&["-s"], "write --seed N"),
    (&["-tb", "--threads-batch"], "leave it out: --threads counts for the prompt too"),
    (&["--ctx-size"], "write -c N or --ctx N"),
    (&["--predict"], "write -n N or --n-predict N"),
    (&["--no-display-prompt", "--display-prompt"], "leave it out: the prompt is never repeated"),
    (&["--log-disable", "-v", "--verbose"], "write --log LEVEL: error, warn, info, debug, trace"),
    (&["-mu", "--model-url"], "write -m URL"),
    (&["-md", "--model-draft"], "write --draft MODEL"),
    (&["--draft-max", "--draft-n"], "write --draft-tokens N"),
    (&["--cache-type-k"], "write --ctk TYPE"),
    (&["--cache-type-v"], "write --ctv TYPE"),
    (
        &[
            "-mg",
            "--main-gpu",
            "-sm",
            "--split-mode",
            "-ts",
            "--tensor-split",
            "-nkvo",
            "--no-kv-offload",
            "-dev",
        ],
        "leave it out: a model is computed on one device, the one that --device names",
    ),
];

/// Whether clap would take the flag for several of one letter.
fn is_cluster(flag: &str) -> bool {
    flag.len() > 2 && !flag.starts_with("--")
}

/// What to write instead of a flag of llama.cpp.
fn answer(flag: &str) -> Option<&'static str> {
    ANSWERS.iter().find(|(flags, _)| flags.contains(&flag)).map(|(_, answer)| *answer)
}

/// The hint for an unknown flag that llama.cpp has.
pub(super) fn hint(e: &clap::Error) -> Option<String> {
    if e.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(given)) = e.get(ContextKind::InvalidArg) else { return None };
    let flag = given.split(['=', ' ']).next().unwrap_or(given);
    answer(flag).map(|text| format!("llama.cpp's {flag}: {text}"))
}

/// Turns `-hf REPO[:QUANT]`, `-hff FILE` and `-ngl N` into what they mean here.
///
/// # Errors
///
/// An error of usage for `-ngl` with layers in a build without GPU support, and for flags that clap would misread as several of one letter.
pub(super) fn translate(args: impl Iterator<Item = OsString>) -> Result<Vec<OsString>, clap::Error> {
    let mut args = args;
    let mut out: Vec<OsString> = args.by_ref().take(1).collect();
    let mut repo: Option<String> = None;
    let mut file: Option<String> = None;
    let mut command: Option<usize> = None;
    let mut device: Option<&'static str> = None;
    let mut names_device = false;
    while let Some(arg) = args.next() {
        let Some(text) = arg.to_str() else {
            out.push(arg);
            continue;
        };
        if text == "--" {
            out.push(arg);
            break;
        }
        let (flag, value) = match text.split_once('=') {
            Some((flag, value)) if flag.starts_with('-') => (flag, Some(value.to_owned())),
            _ => (text, None),
        };
        let mut value = |what: &str| {
            let next = || args.next().and_then(|v| v.into_string().ok()).filter(|v| !v.starts_with('-'));
            value.clone().or_else(next).ok_or_else(|| error(format!("{flag} wants {what}")))
        };
        match flag {
            "-hf" | "-hfr" | "--hf" | "--hf-repo" => {
                repo = Some(value("a repository: ORG/REPO or ORG/REPO:QUANT")?)
            }
            "-hff" | "--hf-file" => file = Some(value("the name of a file in the repository of -hf")?),
            "-ngl" | "--gpu-layers" | "--n-gpu-layers" => {
                device = gpu_layers(flag, &value("a number of layers")?)?.or(device)
            }
            _ if is_cluster(flag) && answer(flag).is_some() => {
                let text = answer(flag).unwrap_or_default();
                return Err(error(format!("unexpected argument '{flag}'\n\nllama.cpp's {flag}: {text}")));
            }
            _ => {
                let is_value = out.last().is_some_and(|before| before == GLOBAL);
                names_device |= flag == "--device";
                if command.is_none() && !is_value && !text.starts_with('-') {
                    command = Some(out.len());
                }
                out.push(arg);
            }
        }
    }
    out.extend(args);
    // Behind the command, where no `--` precedes it.
    let at = command.map_or(out.len(), |i| i + 1);
    if let Some(device) = device.filter(|_| !names_device) {
        out.splice(at..at, ["--device", device].map(OsString::from));
    }
    let Some(source) = hub_source(repo, file)? else { return Ok(out) };
    let name = command.and_then(|i| out.get(i)).and_then(|c| c.to_str()).unwrap_or_default();
    let flag = (!POSITIONAL.contains(&name)).then(|| OsString::from("--model"));
    out.splice(at..at, flag.into_iter().chain([source.into()]));
    Ok(out)
}

/// The device that a number of layers on a GPU means, if any: a model is on one device as a whole. Without GPU support 0
/// says so, and anything else asks for what is not here.
fn gpu_layers(flag: &str, value: &str) -> Result<Option<&'static str>, clap::Error> {
    let layers = match value {
        "all" | "auto" => None,
        _ => Some(value.parse::<i64>().map_err(|_| error(format!("{flag} wants a number, not {value}")))?),
    };
    match (layers, cfg!(feature = "cuda")) {
        (Some(0), true) => Ok(Some("cpu")),
        (None, true) if value == "auto" => Ok(None),
        (_, true) => Ok(Some("cuda")),
        (Some(0), false) => Ok(None),
        (_, false) => Err(error(format!(
            "{flag} {value}: this build computes on the CPU, so there are no layers for a GPU; leave {flag} out or give 0 \
             (`minfer doctor` shows what would be used)"
        ))),
    }
}

/// The source that `-hf` and `-hff` name together.
fn hub_source(repo: Option<String>, file: Option<String>) -> Result<Option<String>, clap::Error> {
    let repo = repo.map(|r| r.strip_prefix("hf:").unwrap_or(&r).to_owned());
    match (repo, file) {
        (Some(repo), None) => Ok(Some(format!("hf:{repo}"))),
        (Some(repo), Some(file)) => {
            Ok(Some(format!("hf:{}/{file}", repo.split(':').next().unwrap_or_default())))
        }
        (None, Some(file)) => {
            Err(error(format!("-hff {file} wants a repository: write -m hf:ORG/REPO/{file}")))
        }
        (None, None) => Ok(None),
    }
}

fn error(message: String) -> clap::Error {
    clap::Error::raw(ErrorKind::ValueValidation, format!("{message}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(args: &str) -> Result<String, String> {
        let args = args.split(' ').map(OsString::from);
        let out = translate(args).map_err(|e| e.to_string())?;
        Ok(out.iter().map(|a| a.to_str().unwrap()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn spellings_of_llama_cpp_are_understood() {
        for (given, expected) in [
            ("minfer run -hf a/b:Q4_0 -c 9 hello", "minfer run --model hf:a/b:Q4_0 -c 9 hello"),
            ("minfer run hello --hf-repo=a/b", "minfer run --model hf:a/b hello"),
            ("minfer --log info run -hff m.gguf -hf a/b:Q8_0", "minfer --log info run --model hf:a/b/m.gguf"),
            ("minfer inspect -hf a/b", "minfer inspect hf:a/b"),
            ("minfer run -- -hf a/b -fa", "minfer run -- -hf a/b -fa"),
            ("minfer run -hf a/b -- -ngl", "minfer run --model hf:a/b -- -ngl"),
        ] {
            assert_eq!(translated(given).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn layers_on_a_gpu_are_a_device() {
        let cpu = if cfg!(feature = "cuda") { "--device cpu " } else { "" };
        for given in ["minfer bench -ngl 0 -p 5", "minfer bench --n-gpu-layers=0 -p 5"] {
            assert_eq!(translated(given), Ok(format!("minfer bench {cpu}-p 5")));
        }
        let own = translated("minfer run --device cpu -ngl 0 x");
        assert_eq!(own.as_deref(), Ok("minfer run --device cpu x"));
        match translated("minfer run -ngl 99 x") {
            Ok(args) => assert!(cfg!(feature = "cuda") && args == "minfer run --device cuda x", "{args}"),
            Err(why) => assert!(!cfg!(feature = "cuda") && why.contains("give 0"), "{why}"),
        }
        assert!(translated("minfer run -ngl hello").unwrap_err().contains("wants a number"));
    }

    #[test]
    fn spellings_without_a_meaning_here_are_answered() {
        for (given, expected) in [
            ("minfer run -ngl", "wants a number"),
            ("minfer run -hf -c 5", "wants a repository"),
            ("minfer run -hff m.gguf", "-m hf:ORG/REPO/m.gguf"),
            ("minfer run -fa on x", "minfer chooses"),
            ("minfer run -cnv", "minfer chat"),
            ("minfer run -sys s x", "--system"),
        ] {
            let e = translated(given).unwrap_err();
            assert!(e.contains(expected), "{given}: {e}");
        }
    }
}
