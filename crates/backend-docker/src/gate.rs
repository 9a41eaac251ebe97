//! The network of a run with `--network full`: a container of its own, whose PID 1 is allowed to configure it, and does
//! so before anything else is in it. The container of the code then joins that network, without that right.
//!
//! An engine's bridge alone would lead to the host's address on that bridge, to other containers, to the local network
//! and to the metadata service of a cloud. Firewall rules of the host are the administrator's, so nothing is changed
//! there: what is refused is refused by a packet filter in the run's own network namespace, which goes with it.

use std::sync::Mutex;
use std::time::Duration;

use belljar_core::backend::BackendError;
use serde_json::{Value, json};

use crate::api::Api;
use crate::container::Container;
use crate::errors;
use crate::execution::BUILD_LIMIT;
use crate::extras::Extras;
use crate::frame::Said;
use crate::image::{Images, unique};
use crate::init::{self, GATE};
use crate::init_channel::InitChannel;
use crate::inside::HOSTNAME;
use crate::owner::Owner;

const MEMORY: u64 = 64 << 20;
const PIDS: u64 = 4;

/// A network that is ready. It exists as long as this does.
pub(crate) struct Gate {
    container: Container,
    /// Its PID 1 ends when this is closed. The lock is never taken: it lets threads share what they do not use.
    _channel: Mutex<InitChannel>,
}

impl Gate {
    /// Makes the network.
    pub(crate) async fn open(
        api: &Api,
        images: &Images,
        extras: &Extras,
        lease: Duration,
    ) -> Result<Gate, BackendError> {
        let owner =
            Owner::this().map_err(errors::setup("identify this process as the owner of a container"))?;
        let failed = errors::api("make the network of the run");
        let mut description = description(&images.bare(api).await?, &owner.labels(lease));
        extras.set(&mut description["HostConfig"]["Sysctls"]);
        let name = format!("belljar-gate-{}", unique());
        let container = Container::make(api, name, &description).await.map_err(&failed)?;
        let mut channel = InitChannel::new(container.attach().await.map_err(&failed)?);
        container.start().await.map_err(&failed)?;
        match tokio::time::timeout(BUILD_LIMIT, channel.hear()).await {
            Ok(Ok(Some(Said::Started))) => Ok(Gate { container, _channel: Mutex::new(channel) }),
            other => {
                let said = format!("{other:?} {}", channel.last_words());
                Err(errors::setup("restrict the network of the run")(std::io::Error::other(said)))
            }
        }
    }

    /// The container that has the network.
    pub(crate) fn name(&self) -> &str {
        self.container.name()
    }
}

fn description(image: &str, labels: &Value) -> Value {
    json!({
        "Image": image,
        "Hostname": HOSTNAME,
        "User": "0:0",
        "Entrypoint": [init::PROGRAM, GATE],
        "Cmd": [],
        "OpenStdin": true, "StdinOnce": true,
        "AttachStdin": true, "AttachStdout": true, "AttachStderr": true,
        "StopSignal": "SIGKILL",
        "Labels": labels,
        "HostConfig": {
            "NetworkMode": "bridge",
            "ReadonlyRootfs": true,
            "Memory": MEMORY, "MemorySwap": MEMORY, "PidsLimit": PIDS,
            "CapDrop": ["ALL"], "CapAdd": ["NET_ADMIN"],
            "SecurityOpt": ["no-new-privileges:true"],
            "IpcMode": "none",
            "LogConfig": { "Type": "none" },
            "Sysctls": {
                // Engines let every user ping, which takes a socket that no program needs.
                "net.ipv4.ping_group_range": "1 0",
                // What arrives at a connection before it is accepted is charged to nobody. It grows with what the
                // program reads.
                "net.ipv4.tcp_rmem": belljar_jail::TCP_RECEIVE_BUFFER,
            },
        },
    })
}
