//! `cargo xtask golden`: what the golden data is and how it is made again.
//!
//! The scripts need software from outside of this repository (Python packages, a build of llama.cpp) and are run by
//! hand on the rare occasion that a reference changes; the tests only need what is committed.

use std::path::Path;

use anyhow::{Context, Result};

/// Prints, for each folder of golden data, its scripts and the first paragraphs of their documentation, which say
/// what they need and how they are called.
pub(crate) fn run(root: &Path) -> Result<()> {
    let golden = root.join("tests/golden");
    let mut folders: Vec<_> = std::fs::read_dir(&golden)
        .with_context(|| golden.display().to_string())?
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .map(|e| e.path())
        .filter(|p| p.is_dir())
        .collect();
    folders.sort();
    for folder in folders {
        let mut names: Vec<_> = std::fs::read_dir(&folder)?.collect::<Result<Vec<_>, _>>()?;
        names.sort_by_key(|e| e.file_name());
        println!("{}", folder.strip_prefix(root).unwrap_or(&folder).display());
        for entry in names {
            let path = entry.path();
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if path.extension().is_none_or(|e| e != "py") {
                println!("  {name}, {} bytes", entry.metadata()?.len());
                continue;
            }
            println!("  {name}");
            for line in docstring(&std::fs::read_to_string(&path)?).lines() {
                println!("    {line}");
            }
        }
    }
    Ok(())
}

/// The documentation string of a Python script.
fn docstring(script: &str) -> &str {
    script.split("\"\"\"").nth(1).unwrap_or("(no documentation)").trim_end()
}

#[cfg(test)]
mod tests {
    use super::docstring;

    #[test]
    fn the_docstring_is_found() {
        assert_eq!(docstring("#!/x\n\"\"\"What.\nHow.\n\"\"\"\ncode"), "What.\nHow.");
        assert_eq!(docstring("code"), "(no documentation)");
    }
}
