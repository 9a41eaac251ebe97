//! What a box may use and how long an execution may take.
//!
//! The units are types, so that a number of bytes cannot be mistaken for a number of processes. Their constructors
//! check the range, so that a value can be written to the kernel without another check.

use std::fmt;
use std::time::Duration;

use crate::allowance::Ceilings;
use crate::{Field, Invalid};

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(u64);

impl Bytes {
    /// Any number of bytes; ranges belong to the limit that uses it.
    #[must_use]
    pub const fn new(bytes: u64) -> Bytes {
        Bytes(bytes)
    }

    /// `64M`, `1G`, `512K`, `1048576`: K, M and G are powers of 1024.
    ///
    /// # Errors
    /// The text, if it is not a size.
    pub fn parse(text: &str) -> Result<Bytes, Malformed> {
        let malformed = || Malformed { text: text.to_owned(), expected: "a size such as 512K, 64M or 1G" };
        let (digits, unit) = split_unit(text);
        let factor: u64 = match unit.to_ascii_uppercase().as_str() {
            "" | "B" => 1,
            "K" | "KB" | "KIB" => 1 << 10,
            "M" | "MB" | "MIB" => 1 << 20,
            "G" | "GB" | "GIB" => 1 << 30,
            _ => return Err(malformed()),
        };
        let number: u128 = digits.parse().map_err(|_| malformed())?;
        // A size beyond 64 bits is out of every range, so it only has to stay out of range here.
        let bytes = number.saturating_mul(u128::from(factor));
        Ok(Bytes(u64::try_from(bytes).unwrap_or(u64::MAX)))
    }

    /// The plain number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(30, "G"), (20, "M"), (10, "K")] {
            if self.0 >= 1 << shift && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

/// `500ms`, `10s`, `2m`, `1h`; a bare number is seconds.
///
/// # Errors
/// The text, if it is not a duration.
pub fn parse_duration(text: &str) -> Result<Duration, Malformed> {
    let malformed = || Malformed { text: text.to_owned(), expected: "a duration such as 500ms, 10s or 2m" };
    let (digits, unit) = split_unit(text);
    let millis: f64 = match unit {
        "ms" => 1.0,
        "" | "s" => 1e3,
        "m" => 60e3,
        "h" => 3600e3,
        _ => return Err(malformed()),
    };
    let number: f64 = digits.parse().map_err(|_| malformed())?;
    Ok(Duration::try_from_secs_f64(number * millis / 1e3).unwrap_or(Duration::MAX))
}

/// A duration the way the command line writes it.
#[must_use]
pub fn show_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    match millis {
        0 if !duration.is_zero() => format!("{}us", duration.as_micros()),
        _ if millis.is_multiple_of(3_600_000) && millis > 0 => format!("{}h", millis / 3_600_000),
        _ if millis.is_multiple_of(60_000) && millis > 0 => format!("{}m", millis / 60_000),
        _ if millis.is_multiple_of(1000) => format!("{}s", millis / 1000),
        _ => format!("{millis}ms"),
    }
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()))
}

/// Text that should have been a number with a unit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not {expected}")]
pub struct Malformed {
    text: String,
    expected: &'static str,
}

/// A CPU rate in thousandths of one CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cpus(u32);

impl Cpus {
    /// The rate in thousandths of one CPU.
    #[must_use]
    pub const fn milli(self) -> u32 {
        self.0
    }
}

impl Cpus {
    /// A rate, as `--cpus` has it.
    ///
    /// # Errors
    /// A rate that is out of range.
    pub fn parse(rate: f64) -> Result<Cpus, Invalid> {
        cpus(Some(rate))
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.0) / 1000.0)
    }
}

/// What the box as a whole may use, for as long as it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoxLimits {
    /// Memory and swap together.
    pub memory: Bytes,
    /// CPU rate.
    pub cpus: Cpus,
    /// Processes and threads.
    pub pids: u32,
    /// Everything that the code can write, in bytes.
    pub disk: Bytes,
}

/// Variables by which programs choose how many threads to start. Without them, many start one for each CPU of the host.
pub const THREAD_VARIABLES: &[&str] = &[
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "LOKY_MAX_CPU_COUNT",
    "RAYON_NUM_THREADS",
    "TOKIO_WORKER_THREADS",
    "GOMAXPROCS",
];

impl BoxLimits {
    /// How many CPUs the box has, as far as its programs can tell: the rate, rounded up.
    #[must_use]
    pub fn cpu_count(&self) -> u32 {
        self.cpus.milli().div_ceil(1000).max(1)
    }

    /// The number of files that may exist in the writable part: one for each 4 KiB of it, at least 1,024 and
    /// at most 65,536. A file costs the kernel about a kilobyte that `disk` alone would not count.
    #[must_use]
    pub fn max_files(&self) -> u64 {
        (self.disk.get() / 4096).clamp(1024, 65_536)
    }
}

/// What one execution may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecutionLimits {
    /// Wall clock for all processes together.
    pub timeout: Duration,
    /// CPU time for all processes together.
    pub cpu_time: Option<Duration>,
    /// How much of each of stdout and stderr is kept.
    pub output: Bytes,
    /// How much all files together may have that are collected, holes included.
    pub collected: Bytes,
    /// What a compiler may take before that.
    pub compile: CompileLimits,
}

/// What a compiler may take. It has a box of its own, so nothing of it counts for the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompileLimits {
    /// Wall clock for all its processes together.
    pub timeout: Duration,
    /// CPU time for all its processes together.
    pub cpu_time: Option<Duration>,
    /// What its box may use.
    pub sandbox: BoxLimits,
}

impl ExecutionLimits {
    /// What is left after some CPU time was used.
    #[must_use]
    pub fn after(self, cpu: Duration) -> ExecutionLimits {
        // No time at all would be no limit.
        let left = |limit: Duration| limit.saturating_sub(cpu).max(Duration::from_millis(1));
        ExecutionLimits { cpu_time: self.cpu_time.map(left), ..self }
    }
}

/// Limits as a caller states them; absent ones take the default.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[allow(missing_docs, reason = "the fields are those of the two structs they become")]
pub struct LimitsRequest {
    pub timeout: Option<Duration>,
    pub cpu_time: Option<Duration>,
    pub memory: Option<u64>,
    pub cpus: Option<f64>,
    pub pids: Option<u64>,
    pub disk: Option<u64>,
    pub output: Option<u64>,
    pub collected: Option<u64>,
    pub compile_timeout: Option<Duration>,
    pub compile_memory: Option<u64>,
    pub compile_cpu_time: Option<Duration>,
    /// Not for callers: what a compiler may have of the rest, if that is less than usual.
    pub compile_pids: Option<u64>,
    pub compile_disk: Option<u64>,
}

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
const DEFAULT_MEMORY: u64 = 256 << 20;
const DEFAULT_CPUS: f64 = 1.0;
const DEFAULT_PIDS: u64 = 50;
const DEFAULT_DISK: u64 = 64 << 20;
const DEFAULT_OUTPUT: u64 = 1 << 20;
/// A compiler is slow on a busy host, and how slow says nothing about the code.
const DEFAULT_COMPILE_TIMEOUT: Duration = Duration::from_secs(30);
const DEFAULT_COMPILE_MEMORY: u64 = 512 << 20;
const DEFAULT_COMPILE_DISK: u64 = 128 << 20;

const DAY: Duration = Duration::from_secs(24 * 3600);
const TIB: u64 = 1 << 40;

impl LimitsRequest {
    /// The same, but absent limits take a ceiling that is lower than the default.
    #[must_use]
    pub fn within(self, ceilings: &Ceilings) -> LimitsRequest {
        let cpus = ceilings.cpus.map(|cpus| f64::from(cpus.milli()) / 1000.0);
        LimitsRequest {
            timeout: self.timeout.or(lower(ceilings.timeout, DEFAULT_TIMEOUT)),
            cpu_time: self.cpu_time.or(ceilings.cpu_time),
            memory: self.memory.or(lower(ceilings.memory.map(Bytes::get), DEFAULT_MEMORY)),
            cpus: self.cpus.or(lower(cpus, DEFAULT_CPUS)),
            pids: self.pids.or(lower(ceilings.pids.map(u64::from), DEFAULT_PIDS)),
            disk: self.disk.or(lower(ceilings.disk.map(Bytes::get), DEFAULT_DISK)),
            output: self.output.or(lower(ceilings.output.map(Bytes::get), DEFAULT_OUTPUT)),
            collected: self.collected.or(ceilings.collected.map(Bytes::get)),
            compile_timeout: self
                .compile_timeout
                .or(lower(ceilings.of_compile_timeout(), DEFAULT_COMPILE_TIMEOUT)),
            compile_memory: self.compile_memory.or(usual(
                ceilings.of_compile_memory().map(Bytes::get),
                self.memory,
                DEFAULT_COMPILE_MEMORY,
            )),
            compile_cpu_time: self.compile_cpu_time,
            compile_pids: usual(ceilings.pids.map(u64::from), self.pids, DEFAULT_PIDS),
            compile_disk: usual(ceilings.disk.map(Bytes::get), self.disk, DEFAULT_COMPILE_DISK),
        }
    }

    /// Every limit, checked and complete.
    ///
    /// # Errors
    /// The first limit that is out of its range.
    pub fn resolve(self) -> Result<(BoxLimits, ExecutionLimits), Invalid> {
        let sandbox = BoxLimits {
            memory: bytes(Field::Memory, "memory", self.memory, DEFAULT_MEMORY, 4 << 20, 16 * TIB)?,
            cpus: cpus(self.cpus)?,
            pids: pids(self.pids)?,
            disk: bytes(Field::Disk, "disk", self.disk, DEFAULT_DISK, 64 << 10, 16 * TIB)?,
        };
        let execution = ExecutionLimits {
            timeout: duration(
                Field::Timeout,
                "timeout",
                self.timeout.unwrap_or(DEFAULT_TIMEOUT),
                DEFAULT_TIMEOUT,
            )?,
            cpu_time: self
                .cpu_time
                .map(|time| duration(Field::CpuTime, "cpu-time", time, DEFAULT_TIMEOUT))
                .transpose()?,
            output: bytes(Field::Output, "output-limit", self.output, DEFAULT_OUTPUT, 1, 1 << 30)?,
            // What can be collected was written to the disk.
            collected: self.collected.map_or(sandbox.disk, |most| sandbox.disk.min(Bytes(most))),
            compile: self.compile(&sandbox)?,
        };
        Ok((sandbox, execution))
    }

    /// A compiler gets at least what it usually needs, however little the program may have.
    fn compile(self, program: &BoxLimits) -> Result<CompileLimits, Invalid> {
        let asked = self.compile_timeout.unwrap_or(DEFAULT_COMPILE_TIMEOUT);
        let memory = self.compile_memory;
        let usual = DEFAULT_COMPILE_MEMORY.max(program.memory.get());
        let memory = bytes(Field::CompileMemory, "compile-memory", memory, usual, 4 << 20, 16 * TIB)?;
        let pids = pids(Some(self.compile_pids.unwrap_or(DEFAULT_PIDS.max(u64::from(program.pids)))))?;
        let disk = Bytes(self.compile_disk.unwrap_or(DEFAULT_COMPILE_DISK.max(program.disk.get())));
        Ok(CompileLimits {
            timeout: duration(Field::CompileTimeout, "compile-timeout", asked, DEFAULT_COMPILE_TIMEOUT)?,
            cpu_time: self.compile_cpu_time,
            sandbox: BoxLimits { memory, cpus: program.cpus, pids, disk },
        })
    }
}

/// What a compiler usually gets, or what the program has if that is more, within a ceiling if there is one.
fn usual(ceiling: Option<u64>, program: Option<u64>, default: u64) -> Option<u64> {
    ceiling.map(|ceiling| ceiling.min(default.max(program.unwrap_or(0))))
}

fn lower<T: PartialOrd>(ceiling: Option<T>, default: T) -> Option<T> {
    ceiling.filter(|ceiling| *ceiling < default)
}

fn bytes(
    field: Field,
    name: &str,
    asked: Option<u64>,
    default: u64,
    min: u64,
    max: u64,
) -> Result<Bytes, Invalid> {
    let bytes = Bytes(asked.unwrap_or(default));
    if (min..=max).contains(&bytes.0) {
        return Ok(bytes);
    }
    let mut refused =
        out_of_range(field, name, &in_words(bytes), &in_words(Bytes(min)), &Bytes(max), &Bytes(default));
    let megabytes = bytes.0.saturating_mul(1 << 20);
    if is_bare(bytes) && (min.max(1)..=max).contains(&megabytes) {
        refused.hint = format!("did you mean {0}M ({megabytes} bytes)? Otherwise {1}", bytes.0, refused.hint);
    }
    Err(refused)
}

/// Whether a size is so small that its unit may have been forgotten.
fn is_bare(bytes: Bytes) -> bool {
    bytes.0 < 64 << 10
}

/// A size in a message: a number alone would not say of what.
fn in_words(size: Bytes) -> String {
    match size.0 {
        1 => "1 byte".to_owned(),
        bytes if is_bare(size) => format!("{bytes} bytes"),
        _ => size.to_string(),
    }
}

fn duration(field: Field, name: &str, asked: Duration, default: Duration) -> Result<Duration, Invalid> {
    if (Duration::from_millis(1)..=DAY).contains(&asked) {
        return Ok(asked);
    }
    Err(out_of_range(field, name, &show_duration(asked), &"1ms", &"24h", &show_duration(default)))
}

fn cpus(asked: Option<f64>) -> Result<Cpus, Invalid> {
    let asked = asked.unwrap_or(DEFAULT_CPUS);
    if !(0.01..=1024.0).contains(&asked) {
        return Err(out_of_range(Field::Cpus, "cpus", &asked, &0.01, &1024, &1));
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range was just checked")]
    Ok(Cpus((asked * 1000.0).round() as u32))
}

fn pids(asked: Option<u64>) -> Result<u32, Invalid> {
    let asked = asked.unwrap_or(DEFAULT_PIDS);
    match u32::try_from(asked) {
        Ok(pids) if (1..=32_768).contains(&pids) => Ok(pids),
        _ => Err(out_of_range(Field::Pids, "pids", &asked, &1, &32_768, &50)),
    }
}

fn out_of_range(
    field: Field,
    name: &str,
    asked: &dyn fmt::Display,
    min: &dyn fmt::Display,
    max: &dyn fmt::Display,
    typical: &dyn fmt::Display,
) -> Invalid {
    Invalid::new(
        field,
        format!("{name} must be between {min} and {max}, not {asked}"),
        format!("leave it out for the default, {typical}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn defaults_are_those_of_the_contract() {
        let (sandbox, execution) = LimitsRequest::default().resolve().unwrap();
        assert_eq!(sandbox.memory, Bytes(256 << 20));
        assert_eq!(sandbox.cpus.milli(), 1000);
        assert_eq!(sandbox.pids, 50);
        assert_eq!(sandbox.disk, Bytes(64 << 20));
        assert_eq!(execution.timeout, Duration::from_secs(10));
        assert_eq!(execution.cpu_time, None);
        assert_eq!(execution.output, Bytes(1 << 20));
        assert_eq!(execution.compile.timeout, Duration::from_secs(30));
        assert_eq!(execution.compile.sandbox.memory, Bytes(512 << 20));
    }

    #[test]
    fn a_compiler_has_limits_of_its_own_within_those_of_its_caller() {
        let tight = LimitsRequest {
            timeout: Some(Duration::from_millis(5)),
            memory: Some(8 << 20),
            ..Default::default()
        };
        let compile = tight.resolve().unwrap().1.compile;
        assert_eq!((compile.timeout, compile.sandbox.memory), (Duration::from_secs(30), Bytes(512 << 20)));
        let roomy = LimitsRequest { memory: Some(1 << 30), ..Default::default() };
        assert_eq!(roomy.resolve().unwrap().1.compile.sandbox.memory, Bytes(1 << 30));
        let ceilings = Ceilings {
            timeout: Some(Duration::from_secs(5)),
            memory: Some(Bytes(64 << 20)),
            ..Ceilings::default()
        };
        let compile =
            |ceilings: &Ceilings| LimitsRequest::default().within(ceilings).resolve().unwrap().1.compile;
        let held = compile(&ceilings);
        assert_eq!((held.timeout, held.sandbox.memory), (Duration::from_secs(5), Bytes(64 << 20)));
        let own = Ceilings {
            compile_timeout: Some(Duration::from_secs(60)),
            compile_memory: Some(Bytes(1 << 30)),
            ..ceilings
        };
        let own = compile(&own);
        assert_eq!((own.timeout, own.sandbox.memory), (Duration::from_secs(30), Bytes(512 << 20)));
    }

    #[test]
    fn zero_is_no_limit_at_all_and_refused() {
        let zero = LimitsRequest { memory: Some(0), ..LimitsRequest::default() };
        assert_eq!(zero.resolve().unwrap_err().field, Field::Memory);
        let zero = LimitsRequest { timeout: Some(Duration::ZERO), ..LimitsRequest::default() };
        let refused = zero.resolve().unwrap_err();
        assert_eq!(refused.message, "timeout must be between 1ms and 24h, not 0s");
        assert_eq!(refused.hint, "leave it out for the default, 10s");
        let zero = LimitsRequest { cpus: Some(0.0), ..LimitsRequest::default() };
        assert_eq!(zero.resolve().unwrap_err().field, Field::Cpus);
        let nan = LimitsRequest { cpus: Some(f64::NAN), ..LimitsRequest::default() };
        assert_eq!(nan.resolve().unwrap_err().field, Field::Cpus);
    }

    #[test]
    fn a_size_without_its_unit_is_told_in_bytes_and_in_megabytes() {
        let refusal = |limits: LimitsRequest| {
            let Invalid { message, hint, .. } = limits.resolve().unwrap_err();
            (message, hint)
        };
        let (message, hint) = refusal(LimitsRequest { memory: Some(64), ..LimitsRequest::default() });
        assert_eq!(message, "memory must be between 4M and 16384G, not 64 bytes");
        assert_eq!(hint, "did you mean 64M (67108864 bytes)? Otherwise leave it out for the default, 256M");
        let (message, hint) = refusal(LimitsRequest { disk: Some(1024), ..LimitsRequest::default() });
        assert_eq!(message, "disk must be between 64K and 16384G, not 1024 bytes");
        assert!(hint.starts_with("did you mean 1024M (1073741824 bytes)? "), "{hint}");
        let (message, hint) = refusal(LimitsRequest { output: Some(0), ..LimitsRequest::default() });
        assert_eq!(message, "output-limit must be between 1 byte and 1G, not 0 bytes");
        assert_eq!(hint, "leave it out for the default, 1M", "no unit makes more of nothing");
        let (message, hint) = refusal(LimitsRequest { memory: Some(1 << 20), ..LimitsRequest::default() });
        assert_eq!(message, "memory must be between 4M and 16384G, not 1M");
        assert_eq!(hint, "leave it out for the default, 256M", "this one has its unit");
        let (_, hint) = refusal(LimitsRequest { compile_memory: Some(512), ..LimitsRequest::default() });
        assert!(hint.starts_with("did you mean 512M "), "{hint}");
    }

    #[test]
    fn ten_to_the_twenty_is_out_of_range_and_not_a_crash() {
        assert_eq!(Bytes::parse("100000000000000000000").unwrap(), Bytes(u64::MAX));
        assert_eq!(parse_duration("100000000000000000000s").unwrap(), Duration::MAX);
    }

    #[test]
    fn units_are_powers_of_1024() {
        assert_eq!(Bytes::parse("64M").unwrap(), Bytes(64 << 20));
        assert_eq!(Bytes::parse("1g").unwrap(), Bytes(1 << 30));
        assert!(Bytes::parse("64X").is_err());
        assert!(Bytes::parse("").is_err());
        assert!(Bytes::parse("-1").is_err());
        assert_eq!(parse_duration("500ms").unwrap(), Duration::from_millis(500));
        assert_eq!(parse_duration("2m").unwrap(), Duration::from_secs(120));
        assert_eq!(parse_duration("1.5s").unwrap(), Duration::from_millis(1500));
        assert!(parse_duration("fast").is_err());
        assert!(parse_duration("1.2.3s").is_err());
    }

    proptest! {
        #[test]
        fn a_size_reads_back_as_it_was_shown(bytes in 0u64..=16 * TIB) {
            prop_assert_eq!(Bytes::parse(&Bytes(bytes).to_string()).unwrap(), Bytes(bytes));
        }

        #[test]
        fn a_duration_reads_back_as_it_was_shown(millis in 1u64..=86_400_000) {
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(parse_duration(&show_duration(duration)).unwrap(), duration);
        }

        #[test]
        fn no_text_makes_the_parsers_panic(text in ".{0,40}") {
            let _ = Bytes::parse(&text);
            let _ = parse_duration(&text);
        }
    }
}
