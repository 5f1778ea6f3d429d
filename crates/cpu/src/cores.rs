//! How many threads are worth having: what of the machine this process may use, and what of that computes at full
//! speed.
//!
//! Two hardware threads of a core share its vector units, and a step waits for its slowest worker; so the default is
//! one thread for each physical core of the fastest kind, within the process's affinity and its cgroup's quota.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

/// Cores as a process sees them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cores {
    /// Logical processors of the machine that are online.
    pub online: usize,
    /// Those that the process's affinity allows.
    pub allowed: usize,
    /// Physical cores that they belong to.
    pub physical: usize,
    /// Physical cores of the fastest kind among them.
    pub fast: usize,
    /// Processor time that the cgroups of the process grant, in processors; `None` if they do not limit it.
    pub quota: Option<f64>,
    /// What the standard library counts (affinity, and quotas wherever cgroups are mounted).
    pub parallelism: usize,
}

impl Cores {
    /// Looks.
    pub fn detect() -> Cores {
        let parallelism = std::thread::available_parallelism().map_or(1, |n| n.get());
        Cores { parallelism, ..Cores::under(Path::new("/")) }
    }

    /// What the files of `/proc` and `/sys` under `root` say; zeros for what they do not.
    fn under(root: &Path) -> Cores {
        let cpus = root.join("sys/devices/system/cpu");
        let online = list(&cpus.join("online"));
        let affinity = read(&root.join("proc/self/status"))
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:").map(parse_list));
        // The affinity may name processors that are not there.
        let allowed = affinity.map_or(online.clone(), |allowed| &allowed & &online);
        let fast = fastest(root, &cpus, &allowed);
        Cores {
            online: online.len(),
            allowed: allowed.len(),
            physical: physical(&cpus, &allowed),
            fast: physical(&cpus, &fast),
            quota: quota(root),
            parallelism: 0,
        }
    }

    /// The default number of threads.
    pub fn threads(&self) -> usize {
        let quota = self.quota.map_or(usize::MAX, |quota| quota as usize);
        let known = |n: usize| if n == 0 { usize::MAX } else { n };
        known(self.fast).min(known(self.parallelism)).min(quota).clamp(1, 1 << 16)
    }
}

impl fmt::Display for Cores {
    /// Why there are so many threads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.allowed == 0 {
            return write!(f, "{} processors for this process", self.parallelism);
        }
        write!(f, "{} logical processors", self.online)?;
        if self.allowed < self.online {
            write!(f, ", {} allowed by affinity", self.allowed)?;
        }
        if self.physical < self.allowed {
            write!(f, ", {} physical cores", self.physical)?;
        }
        if self.fast < self.physical {
            write!(f, ", {} of the fastest kind", self.fast)?;
        }
        match self.quota {
            Some(quota) => write!(f, ", a cgroup quota of {quota:.2}"),
            None => Ok(()),
        }
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn list(path: &Path) -> BTreeSet<usize> {
    parse_list(&read(path))
}

/// A list of the kernel's: `0-3,8,10-11`.
fn parse_list(text: &str) -> BTreeSet<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        // No kernel numbers more processors than that; a longer range is no list.
        (last < 1 << 16).then_some(first..=last)
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// Physical cores that the logical processors `cpus` belong to. One without topology is a core of its own.
fn physical(dir: &Path, cpus: &BTreeSet<usize>) -> usize {
    let first_sibling = |cpu: usize| {
        let topology = dir.join(format!("cpu{cpu}/topology"));
        let siblings = ["core_cpus_list", "thread_siblings_list"].map(|name| list(&topology.join(name)));
        siblings.into_iter().find_map(|siblings| siblings.first().copied()).unwrap_or(cpu)
    };
    cpus.iter().map(|cpu| first_sibling(*cpu)).collect::<BTreeSet<_>>().len()
}

/// Those of `cpus` that are of the fastest kind.
///
/// Hybrid x86 has a performance-monitoring unit for each kind of core, whose name says which it is. Elsewhere the
/// kernel's capacity of a core counts (the fastest is 1024), or its highest frequency. Cores within a third of the best
/// capacity, or a fifth of the best frequency, are of one kind: single cores may be rated some percent above their like.
fn fastest(root: &Path, dir: &Path, cpus: &BTreeSet<usize>) -> BTreeSet<usize> {
    let units = root.join("sys/devices");
    let performance: BTreeSet<usize> = &list(&units.join("cpu_core/cpus")) & cpus;
    if !performance.is_empty() {
        return performance;
    }
    for (name, of_best) in [("cpu_capacity", 2.0 / 3.0), ("cpufreq/cpuinfo_max_freq", 0.8)] {
        let rate =
            |cpu: &usize| Some((*cpu, read(&dir.join(format!("cpu{cpu}/{name}"))).trim().parse().ok()?));
        let rates: BTreeMap<usize, f64> = cpus.iter().filter_map(rate).collect();
        let best = rates.values().copied().fold(0.0, f64::max);
        let of_kind: BTreeSet<usize> =
            rates.iter().filter(|(_, rate)| **rate >= best * of_best).map(|(cpu, _)| *cpu).collect();
        if rates.len() == cpus.len() && of_kind.len() < cpus.len() {
            return of_kind;
        }
    }
    cpus.clone()
}

/// The tightest quota of the process's cgroups and those above, version 1 and 2, in processors.
fn quota(root: &Path) -> Option<f64> {
    let quotas = control_groups(root, "cpu").into_iter();
    quotas.filter_map(|dir| quota_v2(&dir).or_else(|| quota_v1(&dir))).reduce(f64::min)
}

/// Where the files of the process's cgroups and those above may be, for `controller` in version 1, and for version 2.
pub(crate) fn control_groups(root: &Path, controller: &str) -> Vec<PathBuf> {
    let mounts = root.join("sys/fs/cgroup");
    let mut dirs = Vec::new();
    for line in read(&root.join("proc/self/cgroup")).lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        if !controllers.is_empty() && !controllers.split(',').any(|name| name == controller) {
            continue;
        }
        // In a container the group's own path may not be visible; what is mounted is then its root.
        let group = PathBuf::from(group.trim_start_matches('/'));
        for above in group.ancestors() {
            if controllers.is_empty() {
                dirs.extend([mounts.join(above), mounts.join("unified").join(above)]);
            } else {
                dirs.extend([mounts.join(controllers).join(above), mounts.join(controller).join(above)]);
            }
        }
    }
    dirs
}

/// `cpu.max`: microseconds (or `max`) in each period of microseconds.
fn quota_v2(dir: &Path) -> Option<f64> {
    let text = read(&dir.join("cpu.max"));
    let mut numbers = text.split_whitespace().map(|word| word.parse::<f64>().ok());
    share(numbers.next()??, numbers.next()??)
}

/// `cpu.cfs_quota_us`, −1 for none, in each `cpu.cfs_period_us`.
fn quota_v1(dir: &Path) -> Option<f64> {
    let number = |name: &str| read(&dir.join(name)).trim().parse::<f64>().ok();
    share(number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?)
}

fn share(quota: f64, period: f64) -> Option<f64> {
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of files that goes with its owner.
    struct Fixture(PathBuf);

    impl Fixture {
        fn new(name: &str, files: &[(String, &str)]) -> Fixture {
            let root = std::env::temp_dir().join(format!("minfer-cores-{}-{name}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
                std::fs::write(path, text).expect("written");
            }
            Fixture(root)
        }

        fn cores(&self) -> Cores {
            Cores::under(&self.0)
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn cpu(n: usize, file: &str, text: &'static str) -> (String, &'static str) {
        (format!("sys/devices/system/cpu/cpu{n}/{file}"), text)
    }

    fn file(path: &str, text: &'static str) -> (String, &'static str) {
        (path.to_owned(), text)
    }

    fn online(text: &'static str) -> (String, &'static str) {
        file("sys/devices/system/cpu/online", text)
    }

    #[test]
    fn lists_of_the_kernel() {
        assert_eq!(parse_list("0-2,5,7-7\n"), BTreeSet::from([0, 1, 2, 5, 7]));
        for odd in ["", "\n", "x", "3-1", "0-99999999999999999999", "0-99999999"] {
            assert_eq!(parse_list(odd), BTreeSet::new(), "{odd}");
        }
    }

    #[test]
    fn hardware_threads_of_a_core_count_once_within_the_affinity() {
        let siblings = ["0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"];
        let mut files: Vec<_> =
            (0..8).map(|n| cpu(n, "topology/core_cpus_list", siblings[n])).chain([online("0-7\n")]).collect();
        let cores = Fixture::new("smt", &files).cores();
        assert_eq!((cores.online, cores.allowed, cores.physical, cores.fast), (8, 8, 4, 4));
        assert_eq!(cores.threads(), 4);
        files.push(file("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0,4-5,100-200\n"));
        let cores = Fixture::new("affinity", &files).cores();
        assert_eq!((cores.allowed, cores.physical, cores.threads()), (3, 2, 2));
        assert_eq!(cores.to_string(), "8 logical processors, 3 allowed by affinity, 2 physical cores");
    }

    #[test]
    fn performance_cores_by_unit_capacity_and_frequency() {
        let frequencies = ["5300000", "5100000", "3900000", "3900000"];
        let mut files: Vec<_> = (0..4)
            .map(|n| cpu(n, "cpufreq/cpuinfo_max_freq", frequencies[n]))
            .chain([online("0-3")])
            .collect();
        assert_eq!(Fixture::new("frequency", &files).cores().threads(), 2);
        files.push(file("sys/devices/cpu_core/cpus", "0-2\n"));
        let cores = Fixture::new("unit", &files).cores();
        assert_eq!(
            (cores.fast, cores.to_string().as_str()),
            (3, "4 logical processors, 3 of the fastest kind")
        );
        let capacities = ["250", "250", "800", "1024"];
        let files: Vec<_> =
            (0..4).map(|n| cpu(n, "cpu_capacity", capacities[n])).chain([online("0-3")]).collect();
        assert_eq!(Fixture::new("capacity", &files).cores().threads(), 2);
        // All alike, or only slow ones allowed: all of them.
        let slow = file("proc/self/status", "Cpus_allowed_list:\t0-1\n");
        let files: Vec<_> = files.into_iter().chain([slow]).collect();
        assert_eq!(Fixture::new("slow", &files).cores().threads(), 2);
    }

    #[test]
    fn quotas_of_both_versions_and_of_groups_above() {
        let base = [online("0-15")];
        let with = |files: &[(String, &'static str)]| -> Vec<(String, &'static str)> {
            base.iter().chain(files).cloned().collect()
        };
        let v2 = with(&[
            file("proc/self/cgroup", "0::/a/b\n"),
            file("sys/fs/cgroup/a/b/cpu.max", "max 100000\n"),
            file("sys/fs/cgroup/a/cpu.max", "350000 100000\n"),
        ]);
        let cores = Fixture::new("v2", &v2).cores();
        assert_eq!((cores.quota, cores.threads()), (Some(3.5), 3));
        assert_eq!(cores.to_string(), "16 logical processors, a cgroup quota of 3.50");
        let v1 = with(&[
            file("proc/self/cgroup", "5:memory:/m\n3:cpu,cpuacct:/docker/x\n0::/\n"),
            file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n"),
            file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
        ]);
        let cores = Fixture::new("v1", &v1).cores();
        assert_eq!((cores.quota, cores.threads()), (Some(0.5), 1));
        let none = with(&[
            file("proc/self/cgroup", "3:cpu:/\nnonsense\n"),
            file("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            file("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ]);
        let cores = Fixture::new("none", &none).cores();
        assert_eq!((cores.quota, cores.threads()), (None, 16));
    }

    #[test]
    fn nothing_to_read_and_this_machine() {
        let nothing = Cores { parallelism: 6, ..Cores::under(Path::new("/nonexistent")) };
        assert_eq!((nothing.threads(), nothing.to_string().as_str()), (6, "6 processors for this process"));
        assert!(
            (1..=std::thread::available_parallelism().map_or(1, |n| n.get()))
                .contains(&Cores::detect().threads())
        );
    }
}
