//! What a box shows of its machine in `/proc`: as many CPUs and as much memory as its limits give it.
//!
//! These are plain files that are written when the box is made. They do not count anything: the times of the CPUs are 0,
//! the load is 0, all memory is free. `uptime` is the kernel's own, because the start times in `/proc/PID/stat` and the
//! clock `CLOCK_BOOTTIME` count from the boot of the host: with another beginning, `ps` would show nonsense.

use std::fmt::Write as _;
use std::io::Read;
use std::sync::LazyLock;

use belljar_core::limits::BoxLimits;
use belljar_jail::plan::{ProcContent, ProcFile};
use rustix::time::{ClockId, clock_gettime};

/// What is read from the host, once: a plan must not change while a box that was made from it is parked.
static MACHINE: LazyLock<Machine> = LazyLock::new(Machine::read);

struct Machine {
    /// The paragraph of one CPU in `/proc/cpuinfo`.
    cpu: String,
    /// The number of CPUs that processes may use.
    cpus: u32,
    /// The time of the host's boot, in seconds of Unix time.
    booted: i64,
    version: String,
}

impl Machine {
    fn read() -> Machine {
        let mut start = Vec::new();
        // The kernel writes this file as it is read, and each CPU takes a while.
        let cpuinfo = std::fs::File::open("/proc/cpuinfo");
        let _ = cpuinfo.and_then(|file| file.take(4096).read_to_end(&mut start));
        let start = String::from_utf8_lossy(&start);
        let cpu = start.split_once("\n\n").map_or(&*start, |(first, _)| first).to_owned();
        let cpus = rustix::thread::sched_getaffinity(None).map_or(1, |cpus| cpus.count()).max(1);
        let (now, up) = (clock_gettime(ClockId::Realtime), clock_gettime(ClockId::Boottime));
        let system = rustix::system::uname();
        let [name, release, version] =
            [system.sysname(), system.release(), system.version()].map(|text| text.to_string_lossy());
        let version = format!("{name} version {release} {version}\n");
        Machine { cpu, cpus, booted: now.tv_sec - up.tv_sec, version }
    }
}

/// The files that the box has instead of the kernel's, beside `meminfo`.
pub(crate) fn proc_files(limits: &BoxLimits) -> [(&'static str, String); 5] {
    let cpus = limits.cpu_count().min(MACHINE.cpus);
    [
        ("cpuinfo", cpuinfo(&MACHINE.cpu, cpus)),
        ("filesystems", "nodev\tproc\nnodev\ttmpfs\nnodev\tdevpts\n".to_owned()),
        ("loadavg", "0.00 0.00 0.00 1/1 2\n".to_owned()),
        ("stat", stat(cpus, MACHINE.booted)),
        ("version", MACHINE.version.clone()),
    ]
}

/// What `/proc` shows beside processes and `meminfo`.
pub(crate) fn shown_in_proc() -> Vec<ProcFile> {
    let file = |name: &&str, content| ProcFile { name: (*name).to_owned(), content };
    let own = ["cpuinfo", "filesystems", "loadavg", "stat", "version"];
    // The first two are links to what each process has in its own directory.
    let kernels = ["mounts", "net", "uptime"];
    let own = own.iter().map(|name| file(name, ProcContent::Own));
    own.chain(kernels.iter().map(|name| file(name, ProcContent::Kernel))).collect()
}

/// All memory is free: nobody counts here what the box uses.
pub(crate) fn meminfo(limits: &BoxLimits) -> Vec<u8> {
    const EMPTY: &[&str] = &[
        "Buffers",
        "Cached",
        "SwapCached",
        "Active",
        "Inactive",
        "SwapTotal",
        "SwapFree",
        "Dirty",
        "Writeback",
        "AnonPages",
        "Mapped",
        "Shmem",
        "Slab",
        "SReclaimable",
        "SUnreclaim",
    ];
    let memory = limits.memory.get() >> 10;
    let lines = ["MemTotal", "MemFree", "MemAvailable"].map(|name| (name, memory));
    let lines = lines.into_iter().chain(EMPTY.iter().map(|name| (*name, 0)));
    let mut text = String::with_capacity(1024);
    for (name, size) in lines {
        let _ = writeln!(text, "{:<16}{size:>8} kB", format!("{name}:"));
    }
    text.into_bytes()
}

/// The first CPU of the host, as many times as there are CPUs in the box.
fn cpuinfo(cpu: &str, cpus: u32) -> String {
    let mut text = String::with_capacity((cpu.len() + 2) * cpus as usize);
    for number in 0..cpus {
        for line in cpu.lines() {
            let changed = line.split_once(':').and_then(|(field, _)| {
                let value = match field.trim_end() {
                    "processor" | "core id" | "apicid" | "initial apicid" => number,
                    "siblings" | "cpu cores" => cpus,
                    "physical id" => 0,
                    _ => return None,
                };
                Some(format!("{field}: {value}"))
            });
            text.push_str(changed.as_deref().unwrap_or(line));
            text.push('\n');
        }
        text.push('\n');
    }
    text
}

fn stat(cpus: u32, booted: i64) -> String {
    const NO_TIME: &str = "0 0 0 0 0 0 0 0 0 0";
    let mut text = format!("cpu  {NO_TIME}\n");
    for number in 0..cpus {
        let _ = writeln!(text, "cpu{number} {NO_TIME}");
    }
    let _ = write!(
        text,
        "intr 0\nctxt 0\nbtime {booted}\nprocesses 2\nprocs_running 1\nprocs_blocked 0\nsoftirq 0\n"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_core::limits::LimitsRequest;

    fn limits(memory: u64, cpus: f64) -> BoxLimits {
        let request = LimitsRequest { memory: Some(memory), cpus: Some(cpus), ..LimitsRequest::default() };
        request.resolve().unwrap().0
    }

    #[test]
    fn memory_is_the_limit() {
        let text = String::from_utf8(meminfo(&limits(64 << 20, 1.0))).unwrap();
        assert!(text.starts_with("MemTotal:          65536 kB\nMemFree:           65536 kB\n"), "{text}");
    }

    #[test]
    fn each_cpu_has_its_own_number() {
        let host = "processor\t: 7\nmodel name\t: Model: 9\nsiblings\t: 64\ncore id\t\t: 3";
        let expected = "processor\t: 0\nmodel name\t: Model: 9\nsiblings\t: 2\ncore id\t\t: 0\n\n\
                        processor\t: 1\nmodel name\t: Model: 9\nsiblings\t: 2\ncore id\t\t: 1\n\n";
        assert_eq!(cpuinfo(host, 2), expected);
        assert_eq!(stat(2, 5).lines().filter(|line| line.starts_with("cpu")).count(), 3);
    }

    #[test]
    fn only_memory_differs_between_plans_with_the_same_number_of_cpus() {
        assert_eq!(proc_files(&limits(64 << 20, 0.5)), proc_files(&limits(1 << 30, 1.0)));
        assert_ne!(meminfo(&limits(64 << 20, 1.0)), meminfo(&limits(1 << 30, 1.0)), "the control");
    }
}
