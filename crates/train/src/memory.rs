//! Memory: the most that this process ever held, and what a new one can have. Linux alone says it, in `/proc`.

/// Peak resident memory in MiB since the process started; `None` where the system does not say.
pub fn peak_rss_mb() -> Option<f64> {
    high_water_mark(&std::fs::read_to_string("/proc/self/status").ok()?)
}

fn high_water_mark(status: &str) -> Option<f64> {
    mebibytes(status, "VmHWM:")
}

/// `VmHWM:     1234 kB`, where a kB is 1024 bytes.
fn mebibytes(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_high_water_mark_is_found_among_the_other_lines() {
        let status = "Name:\thadal\nVmPeak:\t  999999 kB\nVmHWM:\t    3072 kB\nVmRSS:\t 1 kB\n";
        assert_eq!(high_water_mark(status), Some(3.0));
    }

    #[test]
    fn what_is_missing_or_strange_is_not_guessed() {
        for status in ["", "VmRSS:\t1 kB\n", "VmHWM:\n", "VmHWM:\tmuch kB\n", "VmHWM:\t12 MB\n"] {
            assert_eq!(high_water_mark(status), None, "{status:?}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_holds_something() {
        assert!(peak_rss_mb().unwrap() > 0.1);
    }
}
