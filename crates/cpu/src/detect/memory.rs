//! Memory that can be had now: what the system has, and what the process's cgroups grant.

use super::{kilobytes, read};
use crate::cores::control_groups;
use std::path::Path;

/// Bytes of memory that can be had now, if known.
pub(crate) fn available(root: &Path) -> Option<u64> {
    let file = |path: &str| read(&root.join(path).to_string_lossy());
    let system = kilobytes(&file("proc/meminfo"), "MemAvailable");
    let groups = control_groups(root, "memory").into_iter();
    system.into_iter().chain(groups.filter_map(|dir| granted(&dir))).min()
}

/// What is left of a cgroup's limit, version 2 or 1. Pages of files count as used, but go when memory is short.
fn granted(dir: &Path) -> Option<u64> {
    let file = |name: &str| read(&dir.join(name).to_string_lossy());
    let number = |name: &str| file(name).trim().parse::<u64>().ok();
    let limit = number("memory.max").or_else(|| number("memory.limit_in_bytes"))?;
    let used = number("memory.current").or_else(|| number("memory.usage_in_bytes"))?;
    let stat = file("memory.stat");
    let of_files = |names: [&str; 2]| {
        let value =
            |line: &str, name: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<u64>().ok();
        names
            .map(|name| stat.lines().find_map(|line| value(line, name)))
            .into_iter()
            .flatten()
            .reduce(|a, b| a + b)
    };
    // Version 1 counts the groups below under names of their own.
    let files = of_files(["total_inactive_file", "total_active_file"])
        .or_else(|| of_files(["inactive_file", "active_file"]))
        .unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(files)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, files: &[(&str, &str)]) -> Option<u64> {
        let root = std::env::temp_dir().join(format!("minfer-memory-{}-{name}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, text).expect("written");
        }
        let found = available(&root);
        std::fs::remove_dir_all(root).expect("removed");
        found
    }

    #[test]
    fn the_tightest_limit_counts_and_pages_of_files_do_not() {
        let system = ("proc/meminfo", "MemAvailable:   1000 kB\n");
        assert_eq!(found("system", &[system]), Some(1_024_000));
        let v2 = ("proc/self/cgroup", "0::/a/b\n");
        let files = [
            system,
            v2,
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/memory.current", "5\n"),
            ("sys/fs/cgroup/a/memory.max", "500000\n"),
            ("sys/fs/cgroup/a/memory.current", "300000\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 70000\nactive_file 30000\n"),
        ];
        assert_eq!(found("v2", &files), Some(300_000));
        let files = [
            system,
            ("proc/self/cgroup", "7:memory:/m\n0::/\n"),
            ("sys/fs/cgroup/memory/m/memory.limit_in_bytes", "400000\n"),
            ("sys/fs/cgroup/memory/m/memory.usage_in_bytes", "150000\n"),
            ("sys/fs/cgroup/memory/m/memory.stat", "inactive_file 1\ntotal_inactive_file 50000\n"),
        ];
        assert_eq!(found("v1", &files), Some(300_000));
        assert_eq!(found("above", &[system, v2, ("sys/fs/cgroup/memory.max", "9")]), Some(1_024_000));
    }
}
