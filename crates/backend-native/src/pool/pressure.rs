//! Whether this host is short of memory, according to its kernel.

use std::fs;

/// One part in this many of all memory must be available.
const LEAST_PART: u64 = 16;
/// The percentage of the last ten seconds spent waiting for memory, above which it is too much.
const MOST_WAITING: f64 = 10.0;

/// Reads the kernel's figures. If they cannot be read, there is no pressure.
pub(crate) fn is_felt() -> bool {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    is_scarce(&read("/proc/meminfo")) || is_waited_for(&read("/proc/pressure/memory"))
}

fn is_scarce(meminfo: &str) -> bool {
    let kilobytes = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse().ok()
    };
    matches!((kilobytes("MemAvailable"), kilobytes("MemTotal")),
        (Some(available), Some(total)) if available < total / LEAST_PART)
}

fn is_waited_for(pressure: &str) -> bool {
    let some = pressure.lines().find_map(|line| line.strip_prefix("some "));
    let average = some.and_then(|line| line.split(' ').find_map(|word| word.strip_prefix("avg10=")));
    average.and_then(|average| average.parse::<f64>().ok()).is_some_and(|percent| percent > MOST_WAITING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_available_memory_is_scarce() {
        let meminfo =
            |available| format!("MemTotal:  16000 kB\nMemFree: 1 kB\nMemAvailable: {available} kB\n");
        assert!(!is_scarce(&meminfo(1000)));
        assert!(is_scarce(&meminfo(999)));
        assert!(!is_scarce(""), "what is not known is not held against it");
    }

    #[test]
    fn waiting_for_memory_is_pressure() {
        let pressure = |average| {
            format!(
                "some avg10={average} avg60=0.00 avg300=0.00 total=0\nfull avg10=99.00 avg60=0 avg300=0 total=0\n"
            )
        };
        assert!(!is_waited_for(&pressure("0.00")));
        assert!(!is_waited_for(&pressure("10.00")));
        assert!(is_waited_for(&pressure("10.01")));
        assert!(!is_waited_for(""));
    }
}
