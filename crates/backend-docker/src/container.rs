//! A container that is removed with its handle, and how it is described to the engine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::inside::{HOSTNAME, SANDBOX, WORK};
use belljar_core::backend::BackendError;
use belljar_core::limits::BoxLimits;
use belljar_core::request::Network;
use belljar_host::sockets::BUFFERS_LIMIT;
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::api::{Api, ApiError, Attached, escaped, within};
use crate::blocking::block_on;
use crate::errors;
use crate::extras::Extras;
use crate::init;
use crate::init_channel::{HEAD, InitChannel};
use crate::owner::Owner;

/// The user of the code, by default.
pub(crate) const CODE_ID: u32 = 10_001;
/// How many devices and links an engine puts into `/dev`, with room for one more.
const DEVICES: u32 = 32;
/// What reveals or changes the host's kernel and hardware. The engine's own list, and more.
const MASKED: &[&str] = &[
    "/proc/acpi",
    "/proc/asound",
    "/proc/bus",
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/fs",
    "/proc/interrupts",
    "/proc/iomem",
    "/proc/irq",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/kmsg",
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/latency_stats",
    "/proc/modules",
    "/proc/pagetypeinfo",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/slabinfo",
    "/proc/sysrq-trigger",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/version",
    "/proc/vmallocinfo",
    "/sys/block",
    "/sys/bus",
    "/sys/class",
    "/sys/dev",
    "/sys/devices",
    "/sys/firmware",
    "/sys/fs/bpf",
    "/sys/fs/btrfs",
    "/sys/fs/erofs",
    "/sys/fs/ext4",
    "/sys/fs/f2fs",
    "/sys/fs/fuse",
    "/sys/fs/nfs",
    "/sys/fs/pstore",
    "/sys/fs/resctrl",
    "/sys/fs/selinux",
    "/sys/fs/smackfs",
    "/sys/fs/tmpfs",
    "/sys/fs/virtiofs",
    "/sys/fs/xfs",
    "/sys/fs/zonefs",
    "/sys/hypervisor",
    "/sys/kernel",
    "/sys/module",
    "/sys/power",
];
/// The least, the first and the largest size of a send buffer. The network is a loopback, so it need not be large.
const TCP_SEND_BUFFER: &str = "4096 16384 32768";
/// The fraction of the disk that becomes shared memory, and that becomes `/tmp`, if those are separate disks.
const SHARED_PART: u64 = 4;
/// How many threads a user-space kernel (gVisor) may have, and how many more for each process of the code. Without them
/// it dies, so this limit protects the host and does not limit the code.
const EMULATOR: u32 = 1024;
const EMULATED: u32 = 8;
/// How often to try to remove a container that may still be being made.
const TRIES: u32 = 40;
const BETWEEN_TRIES: Duration = Duration::from_millis(50);
/// How long a command waits for the removal of a container that it gives up. The next one would remove it, too.
const REMOVAL: Duration = Duration::from_secs(10);
/// How long a user-space kernel may take to end by itself.
const ENDING: Duration = Duration::from_secs(2);
/// How old an event may be, in seconds: more than a run takes.
const REMEMBERED: u64 = 48 * 3600;

/// What a container is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerSpec {
    /// The prepared image.
    pub(crate) image: String,
    pub(crate) runtime: Option<String>,
    pub(crate) limits: BoxLimits,
    pub(crate) network: Network,
    /// The container whose network it joins, if it has one.
    pub(crate) gate: Option<String>,
    /// The code's user inside.
    pub(crate) user: (u32, u32),
    pub(crate) workspace: Option<Overlay>,
    pub(crate) extras: Extras,
}

/// A read-only overlay over a directory of the host. Directories are in the engine's order: the first is on top.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Overlay {
    pub(crate) layers: Vec<std::path::PathBuf>,
}

impl ContainerSpec {
    /// Its description for the engine.
    pub(crate) fn description(&self, owner: &Owner, lease: Duration) -> Value {
        let (uid, gid) = self.user;
        let mut description = json!({
            "Image": self.image,
            "Hostname": HOSTNAME,
            "User": format!("{uid}:{gid}"),
            "Entrypoint": [init::PROGRAM],
            "Cmd": [],
            "WorkingDir": "/",
            "Env": [],
            "OpenStdin": true, "StdinOnce": true,
            "AttachStdin": true, "AttachStdout": true, "AttachStderr": true,
            "Tty": false,
            // Nothing in it could use a warning.
            "StopSignal": "SIGKILL",
            "NetworkDisabled": self.network == Network::None,
            "Labels": owner.labels(lease),
            "HostConfig": self.confinement(),
        });
        if let Some(gate) = &self.gate {
            // The name of the host comes with the network.
            description["Hostname"] = Value::Null;
            description["HostConfig"]["NetworkMode"] = json!(format!("container:{gate}"));
            description["HostConfig"]["Sysctls"] = Value::Null;
        }
        description
    }

    fn confinement(&self) -> Value {
        let limits = &self.limits;
        let memory = limits.memory.get();
        let mut confinement = json!({
            "NetworkMode": "none",
            "ReadonlyRootfs": true,
            "Tmpfs": self.disks(),
            "Mounts": self.workspace.iter().map(Overlay::mount).chain(self.extras.mount()).collect::<Vec<_>>(),
            "Memory": memory, "MemorySwap": memory, "MemorySwappiness": 0,
            // Only cgroup v1 counts socket buffers separately, and only with a limit. Engines on v2 ignore it.
            "KernelMemoryTCP": memory.min(BUFFERS_LIMIT),
            "PidsLimit": limits.pids + self.helpers(),
            "NanoCpus": u64::from(limits.cpus.milli()) * 1_000_000,
            "Ulimits": ulimits(limits),
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true", format!("seccomp={}", belljar_jail::seccomp::oci::profile())],
            "Privileged": false,
            "IpcMode": "none",
            "Init": false,
            // The program's output must not be logged.
            "LogConfig": { "Type": "none" },
            "RestartPolicy": { "Name": "no" },
            "MaskedPaths": MASKED,
        });
        if !self.is_emulated() {
            confinement["Sysctls"] = json!({
                // Engines let every user ping, which takes a socket that no program needs.
                "net.ipv4.ping_group_range": "1 0",
                // What arrives at a connection before it is accepted is charged to nobody. It grows with what the
                // program reads.
                "net.ipv4.tcp_rmem": belljar_jail::TCP_RECEIVE_BUFFER,
                // Where the engine does not limit what waits to be sent, this keeps hundreds of honest connections
                // below the limit that is enforced instead.
                "net.ipv4.tcp_wmem": TCP_SEND_BUFFER,
            });
            self.extras.set(&mut confinement["Sysctls"]);
        }
        if let Some(runtime) = &self.runtime {
            confinement["Runtime"] = json!(runtime);
        }
        confinement
    }

    /// One disk for everything that the code can write. `/dev` must belong to the code's user, so that shared memory
    /// can be a link to that disk; it gets one page.
    fn disks(&self) -> Value {
        let ((uid, gid), limits) = (self.user, &self.limits);
        let owner = format!("uid={uid},gid={gid},mode=0755");
        let disk = format!(
            "rw,exec,nosuid,nodev,size={},nr_inodes={},{owner}",
            limits.disk.get(),
            limits.max_files()
        );
        if self.is_emulated() {
            // gVisor has its own devices, so shared memory is a separate disk. It also puts a disk of its own at `/tmp`,
            // without a limit, unless there is one.
            let share = limits.disk.get() / SHARED_PART;
            let disk = format!("rw,exec,nosuid,nodev,size={},{owner}", limits.disk.get() - 2 * share);
            return json!({
                SANDBOX: disk,
                "/tmp": format!("rw,exec,nosuid,nodev,size={share},mode=1777"),
                "/dev/shm": format!("rw,nosuid,nodev,size={share},mode=1777"),
            });
        }
        json!({ SANDBOX: disk, "/dev": format!("rw,dev,nosuid,noexec,size=4096,nr_inodes={DEVICES},{owner}") })
    }

    /// Processes and threads besides those of the code: PID 1, and those of a user-space kernel.
    fn helpers(&self) -> u32 {
        if self.is_emulated() { EMULATOR + EMULATED * self.limits.pids } else { 1 }
    }

    /// Whether the runtime has its own kernel, with its own devices.
    pub(crate) fn is_emulated(&self) -> bool {
        is_emulator(self.runtime.as_deref())
    }
}

/// Whether this runtime is gVisor, by the name under which it is usually installed.
pub(crate) fn is_emulator(runtime: Option<&str>) -> bool {
    runtime.is_some_and(|runtime| runtime.contains("runsc"))
}

impl Overlay {
    fn mount(&self) -> Value {
        let [layer] = self.layers.as_slice() else {
            let layers = self.layers.iter().map(|layer| layer.to_string_lossy().replace(':', "\\:"));
            let layers = layers.collect::<Vec<_>>().join(":");
            let options = json!({ "type": "overlay", "device": "overlay", "o": format!("lowerdir={layers},ro,nodev,nosuid") });
            let volume = json!({ "NoCopy": true, "DriverConfig": { "Name": "local", "Options": options } });
            // Without a writable layer, it is read-only anyway.
            return json!({ "Type": "volume", "Target": WORK, "VolumeOptions": volume });
        };
        json!({ "Type": "bind", "Source": layer, "Target": WORK, "ReadOnly": true })
    }
}

fn ulimits(limits: &BoxLimits) -> Value {
    let limit = |name: &str, value: u64| json!({ "Name": name, "Soft": value, "Hard": value });
    json!([
        // One byte, which unlike zero also keeps the kernel from starting the host's crash handler (core(5)).
        limit("core", 1),
        limit("fsize", limits.disk.get()),
        limit("memlock", 0),
        limit("msgqueue", 0),
        limit("nofile", 1024),
        limit("rtprio", 0),
        limit("sigpending", 1024),
        limit("stack", 8 << 20),
    ])
}

/// A container. Dropping it removes it, whatever state it is in.
#[derive(Debug)]
pub(crate) struct Container {
    api: Api,
    name: String,
    /// Already removed, so that there is nothing left to do.
    gone: bool,
    /// Kept until the container is gone.
    held: Vec<Arc<dyn std::any::Any + Send + Sync>>,
}

/// How a container ended.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct ContainerState {
    #[serde(rename = "OOMKilled")]
    pub(crate) oom_killed: bool,
    pub(crate) running: bool,
    pub(crate) exit_code: i64,
    pub(crate) error: String,
}

impl Container {
    /// Makes one. From here on, its removal is up to us.
    pub(crate) async fn make(api: &Api, name: String, description: &Value) -> Result<Container, ApiError> {
        let path = format!("/containers/create?name={}", escaped(&name));
        let container = Container { api: api.clone(), name, gone: false, held: Vec::new() };
        match api.post::<Value>(&path, description).await {
            Ok(_) => Ok(container),
            Err(error) => {
                // It does not exist, unless the answer was lost.
                container.forget_unless(matches!(error, ApiError::Broken(_) | ApiError::TooLate { .. }));
                Err(error)
            }
        }
    }

    /// Keeps a value alive as long as the container.
    pub(crate) fn hold(&mut self, thing: Arc<dyn std::any::Any + Send + Sync>) {
        self.held.push(thing);
    }

    /// Connects to its streams. Before it starts, so that no output is lost.
    pub(crate) async fn attach(&self) -> Result<Attached, ApiError> {
        self.api.attach(&self.name).await
    }

    /// Lets it start.
    pub(crate) async fn start(&self) -> Result<(), ApiError> {
        self.api.order(&format!("/containers/{}/start", self.name)).await
    }

    /// Kills everything in it at once.
    pub(crate) async fn kill(&self) -> Result<(), ApiError> {
        self.api.order(&format!("/containers/{}/kill", self.name)).await
    }

    /// Waits until it ends, and returns the exit code.
    pub(crate) async fn exit_code(&self) -> Result<i64, ApiError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Waited {
            status_code: i64,
        }
        let path = format!("/containers/{}/wait", self.name);
        Ok(self.api.post::<Waited>(&path, &json!({})).await?.status_code)
    }

    /// The last line that it wrote, if the engine keeps a log of it.
    pub(crate) async fn last_line(&self) -> Result<String, ApiError> {
        let path = format!("/containers/{}/logs?stdout=1&stderr=1&tail=1", self.name);
        let log = self.api.get_lines(&path).await?;
        // The engine puts a header before each line.
        Ok(String::from_utf8_lossy(log.get(HEAD..).unwrap_or_default()).trim().to_owned())
    }

    /// How it ended.
    pub(crate) async fn state(&self) -> Result<ContainerState, ApiError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Inspected {
            state: ContainerState,
        }
        Ok(self.api.get::<Inspected>(&format!("/containers/{}/json", self.name)).await?.state)
    }

    /// Whether the engine has reported that it ran out of memory, possibly after it recorded the end.
    pub(crate) async fn ran_out_of_memory(&self) -> Result<bool, ApiError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let filters = json!({ "container": [self.name], "event": ["oom"] }).to_string();
        let path = format!(
            "/events?since={}&until={}&filters={}",
            now.saturating_sub(REMEMBERED),
            now + 1,
            escaped(&filters)
        );
        Ok(!self.api.get_lines(&path).await?.is_empty())
    }

    /// The name of the container, for callers that put something into it before it starts.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Disconnects and removes it. A user-space kernel is left to end by itself, which it does at once: if it is
    /// killed, the engine sometimes does not notice for ten seconds, when it checks by itself.
    pub(crate) async fn part(self, channel: InitChannel, own_kernel: bool) -> Result<(), ApiError> {
        if own_kernel {
            drop(channel);
            let end = format!("/containers/{}/wait?condition=not-running", self.name);
            // If it does not end, it is killed after all.
            let _ = timeout(ENDING, self.api.post::<Value>(&end, &json!({}))).await;
        }
        self.remove().await
    }

    /// Removes it, and returns when it is gone.
    pub(crate) async fn remove(mut self) -> Result<(), ApiError> {
        let removed = remove(&self.api, &self.name).await;
        self.gone = removed.is_ok();
        removed
    }

    /// Leaves a container to a daemon that does not answer. The program in it ends with the connection; a server
    /// removes it as soon as the daemon answers, and the next run removes what a command leaves.
    pub(crate) fn abandon(mut self) {
        self.gone = !is_served();
    }

    /// Removes a container whose daemon may be about to stop.
    pub(crate) async fn remove_or_abandon(self, patience: Duration) {
        match within(patience, remove(&self.api, &self.name)).await {
            Ok(()) => self.forget_unless(false),
            Err(_) => self.abandon(),
        }
    }

    fn forget_unless(mut self, possible: bool) {
        self.gone = !possible;
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if self.gone {
            return;
        }
        let (api, name, held) =
            (self.api.clone(), std::mem::take(&mut self.name), std::mem::take(&mut self.held));
        let removal = async move {
            for _ in 0..TRIES {
                match remove_once(&api, &name).await {
                    // It may appear in a moment: the engine's answer was not waited for.
                    Err(error) if error.is(StatusCode::NOT_FOUND) => tokio::time::sleep(BETWEEN_TRIES).await,
                    Ok(()) | Err(_) => break,
                }
            }
            drop(held);
        };
        if is_served() {
            tokio::spawn(removal);
        } else {
            // The program may end as soon as this returns.
            drop(block_on(timeout(REMOVAL, removal)));
        }
    }
}

/// Whether this is a server, whose tasks go on when a run is over.
fn is_served() -> bool {
    tokio::runtime::Handle::try_current()
        .is_ok_and(|runtime| runtime.runtime_flavor() != tokio::runtime::RuntimeFlavor::CurrentThread)
}

/// Why the daemon did not make or start a container: the runtime that was named may be one that it does not have.
pub(crate) async fn refusal(
    api: &Api,
    runtime: Option<&str>,
    step: &'static str,
    error: ApiError,
) -> BackendError {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Info {
        #[serde(default)]
        runtimes: BTreeMap<String, serde::de::IgnoredAny>,
    }
    let (Some(runtime), ApiError::Refused { .. }) = (runtime, &error) else {
        return errors::api(step)(error);
    };
    match api.get::<Info>("/info").await {
        Ok(info) if !info.runtimes.contains_key(runtime) => {
            let known: Vec<String> = info.runtimes.into_keys().collect();
            errors::unknown_runtime(runtime, &known)
        }
        Ok(_) | Err(_) => errors::api(step)(error),
    }
}

/// Removes a container and its own volumes. It is no error if it is already gone.
pub(crate) async fn remove(api: &Api, name: &str) -> Result<(), ApiError> {
    match remove_once(api, name).await {
        Err(error) if error.is(StatusCode::NOT_FOUND) || error.is(StatusCode::CONFLICT) => Ok(()),
        other => other,
    }
}

async fn remove_once(api: &Api, name: &str) -> Result<(), ApiError> {
    api.delete(&format!("/containers/{}?force=true&v=true", escaped(name))).await
}
