//! Rules about any text: no machine of one person in it, no dead links, no golden data that cannot be made again.

/// What no file may contain: directories of one machine, and hosts of package registries (a user's own
/// configuration decides those). Split so that this file does not contain them either.
const FORBIDDEN: &[(&str, &str)] = &[
    ("/ro", "ot/"),
    ("/ho", "me/"),
    ("/Us", "ers/"),
    ("/wo", "rk/"),
    ("py", "pi.org"),
    ("python", "hosted.org"),
    ("index.", "crates.io"),
    ("static.", "crates.io"),
];

/// The host of the model hub, split likewise, and the only file that may name it.
const HUB: ((&str, &str), &str) = (("hugging", "face.co"), "crates/minfer/src/source/hub.rs");

/// Complains about [`FORBIDDEN`] text, once per line.
pub(super) fn forbidden(path: &str, content: &str) -> Vec<String> {
    let mut words: Vec<String> = FORBIDDEN.iter().map(|(a, b)| format!("{a}{b}")).collect();
    if path != HUB.1 {
        words.push(format!("{}{}", HUB.0.0, HUB.0.1));
    }
    let mut complaints = Vec::new();
    for (i, line) in content.lines().enumerate() {
        if let Some(word) = words.iter().find(|w| line.contains(w.as_str())) {
            complaints.push(format!("{path}:{}: contains '{word}'", i + 1));
        }
    }
    complaints
}

/// Complains about links of a Markdown file to files that do not exist.
pub(super) fn links(path: &str, content: &str, exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut complaints = Vec::new();
    let mut fenced = false;
    for (i, line) in content.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            if file.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let full = match folder {
                "" => file.to_owned(),
                folder => format!("{folder}/{file}"),
            };
            if !exists(&full) {
                complaints.push(format!("{path}:{}: link to {file}, which does not exist", i + 1));
            }
        }
    }
    complaints
}

/// Complains about folders of golden data without the script that makes it.
pub(super) fn goldens_have_makers(files: &[String]) -> Vec<String> {
    let folders = files.iter().filter_map(|f| f.strip_prefix("tests/golden/")?.split_once('/'));
    let mut names: Vec<&str> = folders.map(|(folder, _)| folder).collect();
    names.sort_unstable();
    names.dedup();
    names
        .into_iter()
        .filter(|name| {
            let prefix = format!("tests/golden/{name}/");
            !files.iter().any(|f| f.starts_with(&prefix) && f.ends_with(".py"))
        })
        .map(|name| format!("tests/golden/{name}: no script that makes it"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_one_machine_are_found() {
        let bad = format!("ok\nsee {}{}me/x\n", FORBIDDEN[1].0, FORBIDDEN[1].1);
        assert_eq!(forbidden("a.md", &bad).len(), 1);
        assert!(forbidden("a.md", "target/release, ~/.cache, home/x").is_empty());
    }

    #[test]
    fn the_hub_is_named_in_one_place() {
        let line = format!("https://{}{}", HUB.0.0, HUB.0.1);
        assert!(forbidden(HUB.1, &line).is_empty());
        assert_eq!(forbidden("README.md", &line).len(), 1);
    }

    #[test]
    fn dead_links_are_found() {
        let text =
            "[a](there.md#x) [b](gone.md) [c](https://example.org/) [d](#here)\n```\n[e](code.md)\n```\n";
        let complaints = links("docs/x.md", text, &|p| p == "docs/there.md");
        assert_eq!(complaints, ["docs/x.md:1: link to gone.md, which does not exist"]);
    }

    #[test]
    fn goldens_without_a_script_are_found() {
        let files = ["tests/golden/a/x.json", "tests/golden/a/make.py", "tests/golden/b/y.json"];
        let files: Vec<String> = files.map(str::to_owned).into();
        assert_eq!(goldens_have_makers(&files), ["tests/golden/b: no script that makes it"]);
    }
}
