//! What this machine's CPU is called, and how many of its cores this process may use.
//!
//! Linux says it in files. Elsewhere, and where they cannot be made sense of, a core is whatever the standard library
//! counts, and the CPU has no name.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

/// Where the files are.
const ROOT: &str = "/";
/// More CPUs than any machine has: a list that names one beyond is garbage.
const MOST: usize = 1 << 16;

/// Physical cores that this process may use, as far as that can be seen: two threads that share a core have one set of
/// multipliers. Affinity and the quota of its control group count. Decided once.
pub fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| {
        let logical = std::thread::available_parallelism().map_or(1, usize::from);
        physical_cores(Path::new(ROOT)).map_or(logical, |cores| cores.min(logical))
    })
}

/// What the CPU calls itself, if the system says it.
pub fn cpu_model() -> Option<String> {
    named(&fs::read_to_string("/proc/cpuinfo").ok()?)
}

/// Cores of the CPUs that are online and allowed for this process. `None` unless all of them can be placed.
fn physical_cores(root: &Path) -> Option<usize> {
    let read = |path: &str| fs::read_to_string(root.join(path)).ok();
    let status = read("proc/self/status")?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let online = cpus(&read("sys/devices/system/cpu/online")?)?;
    let cores: Option<BTreeSet<Core>> = cpus(allowed)?
        .intersection(&online)
        .map(|cpu| Core::of(&root.join(format!("sys/devices/system/cpu/cpu{cpu}/topology")), *cpu))
        .collect();
    cores.map(|cores| cores.len()).filter(|&cores| cores > 0)
}

/// What tells cores apart.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Core {
    /// All of its CPUs.
    Cpus(BTreeSet<usize>),
    /// Its numbers, where its CPUs are not listed.
    Place { package: i64, core: i64 },
}

impl Core {
    fn of(topology: &Path, cpu: usize) -> Option<Self> {
        let read = |name: &str| fs::read_to_string(topology.join(name)).ok();
        match read("thread_siblings_list") {
            Some(siblings) => cpus(&siblings).filter(|cpus| cpus.contains(&cpu)).map(Self::Cpus),
            None => {
                let number = |name: &str| read(name)?.trim().parse().ok();
                Some(Self::Place {
                    package: number("physical_package_id")?,
                    core: number("core_id")?,
                })
            }
        }
    }
}

/// The numbers of a list as the kernel writes it: `0-3,8`.
fn cpus(list: &str) -> Option<BTreeSet<usize>> {
    let mut cpus = BTreeSet::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= MOST {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

fn named(cpuinfo: &str) -> Option<String> {
    let (_, name) = cpuinfo
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == "model name")?;
    let words: Vec<&str> = name.split_whitespace().collect();
    (!words.is_empty()).then(|| words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// Files of a machine that does not exist. They are gone when this is dropped.
    struct Invented(PathBuf);

    impl Invented {
        fn new(name: &str, allowed: &str, online: &str) -> Self {
            let root = std::env::temp_dir().join(format!("hadal-{}-{name}", std::process::id()));
            let machine = Self(root);
            let status = format!("Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t{allowed}\n");
            machine.with("proc/self/status", &status).with("sys/devices/system/cpu/online", online)
        }

        fn with(self, path: &str, text: &str) -> Self {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }

        /// One CPU's file.
        fn cpu(self, cpu: usize, name: &str, text: &str) -> Self {
            self.with(&format!("sys/devices/system/cpu/cpu{cpu}/topology/{name}"), text)
        }

        fn siblings(self, lists: &[&str]) -> Self {
            let each = lists.iter().enumerate();
            each.fold(self, |machine, (cpu, list)| machine.cpu(cpu, "thread_siblings_list", list))
        }

        fn cores(&self) -> Option<usize> {
            physical_cores(&self.0)
        }
    }

    impl Drop for Invented {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn threads_of_one_core_are_one() {
        let pairs = ["0,2\n", "1,3\n", "0,2\n", "1,3\n"];
        assert_eq!(Invented::new("pairs", "0-3", "0-3\n").siblings(&pairs).cores(), Some(2));
        let alone = ["0\n", "1\n", "2\n"];
        assert_eq!(Invented::new("alone", "0-2", "0-2\n").siblings(&alone).cores(), Some(3));
        let both = ["0-1\n", "0-1\n"];
        assert_eq!(Invented::new("both", "0-1", "0-1\n").siblings(&both).cores(), Some(1));
    }

    #[test]
    fn only_cpus_that_are_allowed_and_online_count() {
        let pairs = ["0,2", "1,3", "0,2", "1,3"];
        for (name, allowed, online, cores) in [
            ("first", "0", "0-3", 1),
            ("siblings", "0,2", "0-3", 1),
            ("strangers", "2-3", "0-3", 2),
            // The kernel allows CPUs that are not there.
            ("beyond", "0-127", "0-3", 2),
            ("offline", "0-3", "0,2", 1),
        ] {
            let machine = Invented::new(name, allowed, online).siblings(&pairs);
            assert_eq!(machine.cores(), Some(cores), "{name}");
        }
        // What is offline has no topology.
        assert_eq!(Invented::new("gone", "0-3", "0-1").siblings(&["0", "1"]).cores(), Some(2));
    }

    #[test]
    fn without_lists_a_core_is_its_number_in_its_package() {
        let places = [(0, 0), (0, 0), (0, 1), (1, 0)];
        let machine = places.iter().enumerate().fold(
            Invented::new("places", "0-3", "0-3"),
            |machine, (cpu, (package, core))| {
                machine.cpu(cpu, "physical_package_id", &format!("{package}\n")).cpu(
                    cpu,
                    "core_id",
                    &format!("{core}\n"),
                )
            },
        );
        assert_eq!(machine.cores(), Some(3));
    }

    #[test]
    fn what_cannot_be_made_sense_of_is_not_guessed_at() {
        let of = |name: &str, allowed: &str, online: &str, lists: &[&str]| {
            Invented::new(name, allowed, online).siblings(lists).cores()
        };
        assert_eq!(of("missing", "0-1", "0-1", &["0"]), None);
        assert_eq!(of("words", "0-1", "0-1", &["0", "one"]), None);
        assert_eq!(of("empty", "0-1", "0-1", &["0", ""]), None);
        assert_eq!(of("another's", "0-1", "0-1", &["0", "0"]), None);
        assert_eq!(of("backwards", "0,1-0", "0-1", &["0", "1"]), None);
        assert_eq!(of("huge", "0-99999999999", "0-1", &["0", "1"]), None);
        assert_eq!(of("disjoint", "2-3", "0-1", &["0", "1"]), None);
        assert_eq!(of("nothing", "0-1", "", &["0", "1"]), None);
        assert_eq!(physical_cores(Path::new("/nowhere/at/all")), None);
    }

    #[test]
    fn there_is_a_core_and_no_more_than_the_system_counts() {
        let logical = std::thread::available_parallelism().map_or(1, usize::from);
        assert!((1..=logical).contains(&cores()));
    }

    #[test]
    fn a_cpu_has_a_name_where_the_system_says_it() {
        let text =
            "processor\t: 0\nmodel\t\t: 2\nmodel name\t: AMD EPYC  9B14 \n\nmodel name : b\n";
        assert_eq!(named(text).as_deref(), Some("AMD EPYC 9B14"));
        assert_eq!(named("model name\t:  \n"), None);
        assert_eq!(named("Processor : ARMv7\n"), None);
    }
}
