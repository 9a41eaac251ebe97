//! The cached result of the probe, for the next run: trial boxes cost more than the run itself.
//!
//! Only success is cached. It is valid on the same boot, for the same user, from the same binary, in the same
//! namespaces. If a setting changes in between, a step fails, with its own message.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use belljar_host::state;
use belljar_jail::landlock;
use belljar_jail::plan::Opener;

use crate::cgroup::{self, Cgroups};
use crate::host::Host;

/// The cached result, if it still holds.
pub(crate) fn recall(dir: &Path, settings: &cgroup::Settings) -> Option<Host> {
    let text = String::from_utf8(state::read(dir, &file_name())?).ok()?;
    let mut lines = text.strip_prefix(&circumstances()?)?.splitn(3, '\n');
    let opener = match lines.next()? {
        "opener keeper" => Opener::Keeper,
        "opener init" => Opener::Init,
        _ => return None,
    };
    let counts_processes = match lines.next()? {
        "processes counted" => true,
        "processes uncounted" => false,
        _ => return None,
    };
    // What cgroups could not do may be possible by now, so that is probed again.
    let cgroups = match lines.next()? {
        "" => Cgroups::probe(settings),
        text => Cgroups::from_text(text, settings).ok()?,
    };
    Some(Host { opener, boxes: Ok(()), counts_processes, landlock: landlock::abi(), cgroups })
}

/// Caches it for the next run.
pub(crate) fn keep(dir: &Path, host: &Host) {
    let (Ok(()), Some(mut text)) = (&host.boxes, circumstances()) else { return };
    let opener = match host.opener {
        Opener::Keeper => "keeper",
        Opener::Init => "init",
    };
    let counted = if host.counts_processes { "counted" } else { "uncounted" };
    let cgroups = host.cgroups.to_text().ok().flatten().unwrap_or_default();
    let _ = write!(text, "opener {opener}\nprocesses {counted}\n{cgroups}");
    state::write(dir, &file_name(), text.as_bytes());
}

fn file_name() -> String {
    format!("host-{}", rustix::process::geteuid().as_raw())
}

/// Everything that the result depends on and that is cheap to read.
fn circumstances() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let binary = fs::metadata("/proc/self/exe").ok()?;
    let namespace = |name: &str| fs::read_link(format!("/proc/self/ns/{name}")).ok();
    Some(format!(
        "belljar-host {}\nboot {}\nbinary {} {} {}\nnamespaces {} {}\n",
        env!("CARGO_PKG_VERSION"),
        boot.trim(),
        binary.ino(),
        binary.size(),
        binary.mtime_nsec(),
        namespace("user")?.display(),
        namespace("mnt")?.display(),
    ))
}
