//! How much memory is free. Linux alone says it.

use std::path::Path;

/// Bytes that can be had without swapping: what the system has, and what the control groups of this process leave.
/// `None` where the system does not say.
pub fn free_memory() -> Option<u64> {
    free_below(Path::new("/"))
}

fn free_below(root: &Path) -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    let system =
        field(&read("proc/meminfo")?, "MemAvailable:").map(|kibibytes| 1024 * kibibytes)?;
    let groups = read("proc/self/cgroup").unwrap_or_default();
    let limits = groups.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        match (parts.next(), parts.next()) {
            (Some(""), Some(path)) => left(&read, "sys/fs/cgroup", path, &UNIFIED),
            (Some(kinds), Some(path)) if kinds.split(',').any(|kind| kind == "memory") => {
                left(&read, "sys/fs/cgroup/memory", path, &FIRST)
            }
            _ => Vec::new(),
        }
    });
    Some(limits.fold(system, u64::min))
}

/// The files of a control group: its limit, what it uses, and where its page cache is counted.
struct Files {
    limit: &'static str,
    used: &'static str,
    cached: &'static str,
}

const UNIFIED: Files =
    Files { limit: "memory.max", used: "memory.current", cached: "inactive_file" };
const FIRST: Files = Files {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cached: "total_inactive_file",
};

/// What a group and those above it leave. Inside a container, the outermost that can be seen is the container's own.
fn left(read: &dyn Fn(&str) -> Option<String>, mount: &str, path: &str, files: &Files) -> Vec<u64> {
    let own = Path::new(path.trim_start_matches('/'));
    let groups = own.ancestors().map(|group| Path::new(mount).join(group));
    let free = groups.filter_map(|group| {
        let text = |name: &str| read(&group.join(name).to_string_lossy());
        let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
        let limit = number(files.limit)?;
        let used = number(files.used).unwrap_or(0);
        // The page cache is given back when memory is needed.
        let cached = text("memory.stat").and_then(|stat| field(&stat, files.cached)).unwrap_or(0);
        Some(limit.saturating_sub(used.saturating_sub(cached)))
    });
    free.collect()
}

/// The number after a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn machine(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        free_below(root.path())
    }

    const SYSTEM: (&str, &str) =
        ("proc/meminfo", "MemTotal: 24000 kB\nMemFree: 1 kB\nMemAvailable:   20000 kB\n");

    #[test]
    fn the_system_says_what_is_available() {
        assert_eq!(machine(&[]), None);
        assert_eq!(machine(&[SYSTEM]), Some(20_000 * 1024));
        #[cfg(target_os = "linux")]
        assert!(free_memory().unwrap() > 1_000_000);
    }

    #[test]
    fn a_container_may_have_less() {
        let group = ("proc/self/cgroup", "0::/a/b\n");
        let limited = [
            SYSTEM,
            group,
            ("sys/fs/cgroup/a/memory.max", "9000000\n"),
            ("sys/fs/cgroup/a/memory.current", "5000000\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 2000000\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
        ];
        assert_eq!(machine(&limited), Some(6_000_000));
        // Only the outermost is to be seen.
        let inside = [SYSTEM, group, ("sys/fs/cgroup/memory.max", "7000000")];
        assert_eq!(machine(&inside), Some(7_000_000));
        let first = [
            SYSTEM,
            ("proc/self/cgroup", "5:cpu:/x\n4:hugetlb,memory:/x\n"),
            ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "8000000"),
            ("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "3000000"),
        ];
        assert_eq!(machine(&first), Some(5_000_000));
    }

    #[test]
    fn no_limit_is_no_limit() {
        let huge = [
            SYSTEM,
            ("proc/self/cgroup", "4:memory:/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
        ];
        assert_eq!(machine(&huge), Some(20_000 * 1024));
    }
}
