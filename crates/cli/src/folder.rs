//! What the `belljar.toml` of the working directory may say. It comes with the directory, so it can only restrict
//! runs: lower limits, less network. It can also choose a language for code that does not tell its own.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use belljar_core::allowance::Networks;
use belljar_core::language::Language;
use belljar_core::limits::{BoxLimits, Bytes, ExecutionLimits, LimitsRequest, show_duration};
use belljar_core::request::Network;
use belljar_wire::{Code, Limits, Problem};

use crate::configuration::FILE_NAME;
use crate::settings::{Origin, Origins};

/// The keys that it may have.
const ITS_KEYS: [&str; 3] = ["language", "limits", "network"];

/// Refuses what only a trusted file may say.
pub(crate) fn refuse_other_keys(table: &toml::Table, users_file: Option<&Path>) -> Result<(), Problem> {
    let Some(key) = table.keys().find(|key| !ITS_KEYS.contains(&key.as_str())) else { return Ok(()) };
    let message = format!(
        "{FILE_NAME} in the working directory cannot set '{key}': a file there can only lower limits, restrict the \
         network and choose a language"
    );
    Err(Problem::new(Code::InvalidRequest, message, elsewhere(users_file)))
}

/// Where a setting has to be written to count.
fn elsewhere(users_file: Option<&Path>) -> String {
    let users = users_file.map_or_else(|| "your own configuration".into(), Path::to_string_lossy);
    format!(
        "write it in {users} or in /etc/belljar/belljar.toml, or, if you trust this file: --config {FILE_NAME}"
    )
}

/// Applies the restrictions of the working directory. What an option or a variable sets stays as it is.
pub(crate) struct Restriction<'a> {
    pub(crate) origins: &'a mut Origins,
    pub(crate) users_file: Option<&'a Path>,
}

impl Restriction<'_> {
    /// The limits, as far as they are lower in the directory.
    pub(crate) fn limits(&mut self, mut limits: Limits, folder: Limits) -> Result<Limits, Problem> {
        let (BoxLimits { memory, cpus, pids, disk }, ExecutionLimits { timeout, output, compile, .. }) =
            LimitsRequest::default().resolve()?;
        let time = |millis: u64| show_duration(Duration::from_millis(millis));
        let size = |bytes: u64| Bytes::new(bytes).to_string();
        let timeout = u64::try_from(timeout.as_millis()).ok();
        let cpus = Some(f64::from(cpus.milli()) / 1000.0);
        self.lower("limits.timeout", &mut limits.timeout_ms, folder.timeout_ms, timeout, time)?;
        let compile_timeout = u64::try_from(compile.timeout.as_millis()).ok();
        let (key, limit) = ("limits.compile-timeout", &mut limits.compile_timeout_ms);
        self.lower(key, limit, folder.compile_timeout_ms, compile_timeout, time)?;
        let (key, limit) = ("limits.compile-memory", &mut limits.compile_memory_bytes);
        let compile_memory = Some(compile.sandbox.memory.get());
        self.lower(key, limit, folder.compile_memory_bytes, compile_memory, size)?;
        self.lower("limits.cpu-time", &mut limits.cpu_ms, folder.cpu_ms, None, time)?;
        self.lower("limits.memory", &mut limits.memory_bytes, folder.memory_bytes, Some(memory.get()), size)?;
        self.lower("limits.cpus", &mut limits.cpus, folder.cpus, cpus, |rate| rate.to_string())?;
        self.lower("limits.pids", &mut limits.pids, folder.pids, Some(pids.into()), |pids| pids.to_string())?;
        self.lower("limits.disk", &mut limits.disk_bytes, folder.disk_bytes, Some(disk.get()), size)?;
        let output = Some(output.get());
        self.lower("limits.output-limit", &mut limits.output_bytes, folder.output_bytes, output, size)?;
        Ok(limits)
    }

    /// Without a default there is no limit.
    fn lower<T: PartialOrd + Copy>(
        &mut self,
        key: &'static str,
        limit: &mut Option<T>,
        folder: Option<T>,
        default: Option<T>,
        show: impl Fn(T) -> String,
    ) -> Result<(), Problem> {
        let Some(wanted) = folder.filter(|_| !self.origins.is_of_the_caller(key)) else { return Ok(()) };
        if let Some(now) = limit.or(default)
            && wanted > now
        {
            return Err(self.would_raise(key, &show(wanted), &show(now)));
        }
        *limit = Some(wanted);
        self.origins.replace(key, Origin::Folder);
        Ok(())
    }

    pub(crate) fn network(
        &mut self,
        network: Option<String>,
        folder: Option<String>,
    ) -> Result<Option<String>, Problem> {
        let Some(wanted) = folder.filter(|_| !self.origins.is_of_the_caller("network")) else {
            return Ok(network);
        };
        let now = network.as_deref().map_or(Ok(Network::None), Network::parse)?;
        let allowed = match &now {
            Network::None => Networks::None,
            Network::Allow(hosts) => Networks::Hosts(hosts.clone()),
            Network::Full => Networks::Full,
        };
        if !allowed.contains(&Network::parse(&wanted)?) {
            return Err(self.would_raise("network", &wanted, &now));
        }
        self.origins.replace("network", Origin::Folder);
        Ok(Some(wanted))
    }

    pub(crate) fn language(
        &mut self,
        language: Option<Language>,
        folder: Option<Language>,
    ) -> Option<Language> {
        let Some(wanted) = folder.filter(|_| !self.origins.is_of_the_caller("language")) else {
            return language;
        };
        self.origins.replace("language", Origin::Folder);
        Some(wanted)
    }

    fn would_raise(&self, key: &str, wanted: &dyn Display, now: &dyn Display) -> Problem {
        let message = format!(
            "{FILE_NAME} in the working directory sets {key} to {wanted}, but a file there can only lower it, and it \
             is {now}"
        );
        Problem::new(Code::InvalidRequest, message, elsewhere(self.users_file))
    }
}
