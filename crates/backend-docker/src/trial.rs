//! What a daemon can guarantee: what it reports about itself, compared with what a container that it made sees.

use std::path::Path;
use std::time::Duration;

use belljar_core::backend::BackendError;
use belljar_core::guarantee::{Guarantee, Offer, Standing};
use belljar_core::limits::{BoxLimits, LimitsRequest};
use belljar_core::request::Network;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::api::{Api, Version};
use crate::container::{CODE_ID, Container, ContainerSpec, is_emulator, refusal};
use crate::execution::BUILD_LIMIT;
use crate::extras::Extras;
use crate::frame::{Said, Surroundings, Told};
use crate::image::{Images, unique};
use crate::init_channel::InitChannel;
use crate::owner::Owner;
use crate::{errors, remembered};

/// Changes whenever the questions change.
const EDITION: &str = "2";
/// The limit of the trial's container: few processes, so that it is reached soon.
const TRIAL_PIDS: u64 = 12;
const LEASE: Duration = Duration::from_secs(300);

/// What the daemon reports about its host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct Info {
    memory_limit: bool,
    swap_limit: bool,
    #[serde(rename = "CpuCfsQuota")]
    cpu_quota: bool,
    pids_limit: bool,
}

/// The result, and of which daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Findings {
    of: String,
    info: Info,
    seen: Surroundings,
    extras: Extras,
    emulated: bool,
}

/// What a daemon can guarantee, and what its containers get in addition.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) offer: Offer,
    pub(crate) extras: Extras,
}

/// How often gVisor is looked at again if it does not answer.
const MORE_LOOKS: u32 = 2;

/// A daemon, a runtime and a way to prepare images.
pub(crate) struct Trial<'a> {
    pub(crate) api: &'a Api,
    pub(crate) version: &'a Version,
    pub(crate) images: &'a Images,
    pub(crate) runtime: Option<&'a str>,
    pub(crate) state_dir: Option<&'a Path>,
}

impl Trial<'_> {
    /// What this daemon can do: from the cache, or by making containers now.
    pub(crate) async fn verdict(&self) -> Result<Verdict, BackendError> {
        let of = self.subject();
        let known = remembered::read::<Findings>(self.state_dir, &self.file());
        match known.filter(|known| known.of == of) {
            Some(known) => Ok(known.verdict()),
            None => self.again().await,
        }
    }

    /// Makes containers, whatever is cached.
    pub(crate) async fn again(&self) -> Result<Verdict, BackendError> {
        let findings = self.find_out(self.subject()).await?;
        remembered::write(self.state_dir, &self.file(), &findings);
        Ok(findings.verdict())
    }

    fn subject(&self) -> String {
        let Trial { version, runtime, .. } = self;
        let init = std::fs::metadata(&self.images.init).map(|file| file.len()).unwrap_or_default();
        let subject = format!(
            "{EDITION} {} {version:?} {runtime:?} {init} {}",
            self.api.socket().display(),
            env!("CARGO_PKG_VERSION")
        );
        digest(&subject)
    }

    /// The name of the cache file. It contains the runtime, so that alternating between two runtimes does not mean
    /// probing each time.
    fn file(&self) -> String {
        let place = digest(&format!("{} {:?}", self.api.socket().display(), self.runtime));
        format!("docker-trial-{}.json", &place[..16])
    }

    async fn find_out(&self, of: String) -> Result<Findings, BackendError> {
        let info: Info = self.api.get("/info").await.map_err(errors::api("ask the daemon what it can do"))?;
        let emulated = is_emulator(self.runtime);
        let mut seen = self.look(Extras::default()).await;
        // On a busy host the kernel of gVisor sometimes ends while a trial starts many processes in it.
        for _ in 0..if emulated { MORE_LOOKS } else { 0 } {
            if seen.is_err() {
                seen = self.look(Extras::default()).await;
            }
        }
        let seen = seen?;
        // gVisor has its own terminals, and its own memory for sockets.
        let extras = if emulated { Extras::default() } else { self.find_extras(&seen).await };
        Ok(Findings { of, info, seen, extras, emulated })
    }

    /// The best extras with which a container starts and that have an effect in it.
    async fn find_extras(&self, seen: &Surroundings) -> Extras {
        for extras in Extras::candidates(seen) {
            if let Ok(seen) = self.look(extras.clone()).await
                && extras.are_in(&seen)
            {
                return extras;
            }
        }
        Extras::default()
    }

    /// What a container sees that is made with these extras.
    async fn look(&self, extras: Extras) -> Result<Surroundings, BackendError> {
        let spec = ContainerSpec {
            image: self.images.bare(self.api).await?,
            runtime: self.runtime.map(str::to_owned),
            limits: trial_limits()?,
            network: Network::None,
            gate: None,
            user: (CODE_ID, CODE_ID),
            workspace: None,
            extras,
        };
        let owner =
            Owner::this().map_err(errors::setup("identify this process as the owner of a container"))?;
        let description = spec.description(&owner, LEASE);
        let failed = errors::api("make a test container");
        let made = Container::make(self.api, format!("belljar-trial-{}", unique()), &description).await;
        let container = match made {
            Ok(container) => container,
            Err(error) => return Err(refusal(self.api, self.runtime, "make a test container", error).await),
        };
        let mut channel = InitChannel::new(container.attach().await.map_err(&failed)?);
        channel.tell(&Told::Look);
        if let Err(error) = container.start().await {
            return Err(refusal(self.api, self.runtime, "start a test container", error).await);
        }
        let seen = match tokio::time::timeout(BUILD_LIMIT, channel.hear()).await {
            Ok(Ok(Some(Said::Seen(seen)))) => seen,
            other => {
                let state = container.state().await.map_err(&failed)?;
                let said = format!("{other:?} {state:?} {}", channel.last_words());
                return Err(errors::setup("test the daemon")(std::io::Error::other(said)));
            }
        };
        container.part(channel, spec.is_emulated()).await.map_err(&failed)?;
        Ok(seen)
    }
}

fn trial_limits() -> Result<BoxLimits, BackendError> {
    let request = LimitsRequest { pids: Some(TRIAL_PIDS), ..LimitsRequest::default() };
    let limits =
        request.resolve().map_err(|fault| errors::setup("name limits")(std::io::Error::other(fault)))?;
    Ok(limits.0)
}

impl Findings {
    fn verdict(&self) -> Verdict {
        Verdict { offer: self.offer(), extras: self.extras.clone() }
    }

    fn offer(&self) -> Offer {
        Offer::by_asking(|guarantee| self.standing(guarantee))
    }

    fn standing(&self, guarantee: Guarantee) -> Standing {
        let Findings { info, seen, emulated, .. } = self;
        match guarantee {
            Guarantee::Filesystem => judge(
                seen.root_read_only,
                "the image, read-only, and one tmpfs",
                "the root file system of a container is writable",
                "use the storage driver overlay2",
            ),
            Guarantee::Network => judge(
                seen.interfaces.is_empty(),
                "an empty network namespace",
                &format!("a container without a network has the interfaces {}", seen.interfaces.join(", ")),
                "check the daemon's network settings: docker network inspect none",
            ),
            Guarantee::Memory => judge(
                info.memory_limit && info.swap_limit && (*emulated || seen.memory_limit.is_some()),
                "memory cgroup, swap included",
                "the daemon cannot limit memory and swap",
                "boot with cgroup_enable=memory swapaccount=1, or with cgroup v2",
            ),
            Guarantee::Pids => judge(
                info.pids_limit && seen.processes <= TRIAL_PIDS,
                "pids cgroup, tested",
                &format!("with a limit of {TRIAL_PIDS} a container could have {} processes", seen.processes),
                "accept it with --waive pids; memory is still limited",
            ),
            Guarantee::Cpu => judge(
                info.cpu_quota && seen.cpu_quota,
                "CPU cgroup quota; CPU time is checked inside",
                "the CPU rate is not limited, or the CPU time cannot be measured inside",
                "accept it with --waive cpu; the daemon still limits what it can",
            ),
            Guarantee::Disk => judge(
                seen.disk_bytes > 0 && seen.disk_files > 0 && seen.one_disk,
                "one tmpfs, limited in bytes and number of files",
                "the number of files cannot be limited, or /tmp and /dev/shm are separate disks",
                "accept it with --waive disk; the size in bytes is still limited",
            ),
            Guarantee::Syscalls => judge(
                seen.own_filter && (*emulated || seen.filtered),
                if *emulated {
                    "a separate kernel, with a filter in it"
                } else {
                    "seccomp: the engine's profile and a filter inside"
                },
                "no syscall filter is active",
                "use a daemon that was built with seccomp",
            ),
            Guarantee::Privileges => judge(
                seen.uid != 0
                    && seen.capabilities.chars().all(|c| c == '0' || c == ' ')
                    && (*emulated || seen.no_new_privs),
                "a separate user without capabilities, and no way to gain any",
                &format!("a container has uid {} and capabilities {}", seen.uid, seen.capabilities),
                "check the daemon's settings: docker info",
            ),
        }
    }
}

fn judge(kept: bool, how: &str, why: &str, fix: &str) -> Standing {
    if kept {
        Standing::Kept { how: how.to_owned() }
    } else {
        Standing::Unmet { why: why.to_owned(), fix: fix.to_owned() }
    }
}

fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings() -> Findings {
        Findings {
            of: String::new(),
            info: Info { memory_limit: true, swap_limit: true, cpu_quota: true, pids_limit: true },
            seen: Surroundings {
                uid: CODE_ID,
                capabilities: "0000 0000 0000".into(),
                no_new_privs: true,
                filtered: true,
                own_filter: true,
                root_read_only: true,
                interfaces: Vec::new(),
                disk_bytes: 1,
                disk_files: 1,
                one_disk: true,
                memory_limit: Some(1),
                pids_limit: Some(1),
                cpu_quota: true,
                processes: 3,
                terminals: false,
                settings: Vec::new(),
            },
            extras: Extras::default(),
            emulated: false,
        }
    }

    #[test]
    fn a_daemon_that_does_it_all_offers_it_all() {
        let offer = findings().offer();
        assert!(Guarantee::ALL.into_iter().all(|guarantee| offer.keeps(guarantee)), "{offer:?}");
    }

    #[test]
    fn what_was_not_seen_is_not_offered() {
        let unmet = |change: fn(&mut Findings)| {
            let mut findings = findings();
            change(&mut findings);
            let offer = findings.offer();
            Guarantee::ALL.into_iter().filter(|guarantee| !offer.keeps(*guarantee)).collect::<Vec<_>>()
        };
        assert_eq!(unmet(|f| f.info.swap_limit = false), [Guarantee::Memory]);
        assert_eq!(unmet(|f| f.seen.memory_limit = None), [Guarantee::Memory]);
        assert_eq!(unmet(|f| f.seen.processes = 40), [Guarantee::Pids]);
        assert_eq!(unmet(|f| f.seen.disk_files = 0), [Guarantee::Disk]);
        assert_eq!(unmet(|f| f.seen.filtered = false), [Guarantee::Syscalls]);
        assert_eq!(unmet(|f| f.seen.capabilities = "00ff".into()), [Guarantee::Privileges]);
        assert_eq!(unmet(|f| f.seen.interfaces.push("eth0".into())), [Guarantee::Network]);
        assert_eq!(unmet(|f| f.seen.root_read_only = false), [Guarantee::Filesystem]);
    }
}
