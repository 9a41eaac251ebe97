//! `[server]` and `[[keys]]` in `belljar.toml`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belljar_core::allowance::{Allowance, Ceilings, Networks, Permitted, Workspaces};
use belljar_core::language::Language;
use belljar_core::limits::{Bytes, Cpus, parse_duration};
use belljar_core::request::{BackendChoice, Network, parse_waivers};
use belljar_core::secret::SecretHost;
use belljar_server::Config;
use belljar_server::caller::{Key, KeyHash, Quota};
use belljar_server::config::usual_allowance;
use belljar_wire::{Code, Limits, Problem};
use serde::Deserialize;

use crate::policy::table::{Policies, PolicyTable};
use crate::settings::{LimitsTable, Scalar, Settings};

/// Which names a key may have.
pub(crate) const KEY_NAMES: &str = "a name has 1 to 64 bytes, no control characters, and is not 'anonymous'";
/// The least memory for bodies.
const LEAST_BODY_MEMORY: usize = 1 << 20;

/// The table `[server]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(crate) struct ServerTable {
    pub(crate) listen: Option<String>,
    /// Whether a server that was started as root stays root.
    pub(crate) keep_root: bool,
    slots: Option<usize>,
    queue: Option<usize>,
    max_body: Option<Scalar>,
    max_collect: Option<Scalar>,
    body_memory: Option<Scalar>,
    max_connections: Option<usize>,
    max_connections_per_address: Option<usize>,
    header_timeout: Option<Scalar>,
    body_timeout: Option<Scalar>,
    heartbeat: Option<Scalar>,
    drain: Option<Scalar>,
    idle_timeout: Option<Scalar>,
    keep_runs: Option<usize>,
    keep_bytes: Option<Scalar>,
    keep_for: Option<Scalar>,
    max_upload: Option<Scalar>,
    upload_memory: Option<Scalar>,
    keep_uploads_for: Option<Scalar>,
    allow_origins: Vec<String>,
    /// What callers may do if the server has no keys.
    allow: AllowanceTable,
}

impl ServerTable {
    /// What the only caller may do on a server that this caller has started, where the configuration does not say: as much as
    /// `belljar run` lets them, but with the maxima of a server, which has to hold what runs give back. A workspace has to be
    /// beneath a root all the same: a directory with the server's own socket in it would let code in a container ask for
    /// more than the box that it is in.
    pub(super) fn trust(&self, allowance: &mut Allowance) {
        let Allowance { backends, networks, secrets, waivers, .. } = Allowance::everything();
        let AllowanceTable { backends: own, network, secrets: named, waive, .. } = &self.allow;
        if own.is_none() {
            allowance.backends = backends;
        }
        if network.is_none() {
            allowance.networks = networks;
        }
        if named.is_none() {
            allowance.secrets = secrets;
        }
        if waive.is_none() {
            allowance.waivers = waivers;
        }
    }
}

/// A key and what its holder may do.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct KeyTable {
    name: String,
    sha256: String,
    concurrent: Option<usize>,
    requests_per_minute: Option<u32>,
    uploads: Option<Scalar>,
    /// Whether its holder may read the audit log.
    #[serde(default)]
    audit: bool,
    /// Whether its holder may decide about runs that wait for approval.
    #[serde(default)]
    approve: bool,
    #[serde(default)]
    allow: AllowanceTable,
    /// What is done with what its holder wants to run, before the rules for all.
    policy: Option<PolicyTable>,
}

impl KeyTable {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn policy(&self) -> Option<&PolicyTable> {
        self.policy.as_ref()
    }
}

/// What a caller may do; the defaults are those of [`usual_allowance`].
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct AllowanceTable {
    languages: Option<Vec<String>>,
    backends: Option<Vec<String>>,
    network: Option<String>,
    /// The hosts whose secrets may be used.
    secrets: Option<Vec<String>>,
    /// Without it, what the operator does without.
    waive: Option<Vec<String>>,
    workspace_roots: Vec<PathBuf>,
    limits: LimitsTable,
}

/// What is written for all requests, and so for callers that have nothing of their own written.
#[derive(Debug, Clone, Copy)]
struct Common<'a> {
    limits: &'a Limits,
    /// The guarantees that the operator does without. Callers may do without them as well.
    waived: &'a [String],
    policies: &'a Policies,
}

/// The settings of the server.
pub(crate) fn config(settings: &Settings) -> Result<Config, Problem> {
    let Settings { server, keys, limits, waive, policies, config: place, .. } = settings;
    read(server, keys, Common { limits, waived: waive, policies }, place)
}

/// The same; `place` is the name of the file, for messages.
fn read(server: &ServerTable, keys: &[KeyTable], common: Common<'_>, place: &str) -> Result<Config, Problem> {
    let mut usual = usual_allowance(common.limits);
    usual.waivers = Permitted::Only(parse_waivers(common.waived)?);
    let at = |option: &'static str| Place { place, table: "server", option };
    let mut config = Config::default();
    set(&mut config.slots, server.slots);
    set(&mut config.queue, server.queue);
    set(&mut config.max_body, at("max-body").size(server.max_body.as_ref())?);
    set(&mut config.body_memory, at("body-memory").size(server.body_memory.as_ref())?);
    set(&mut config.max_connections, server.max_connections);
    config.max_connections_per_address = server.max_connections_per_address;
    set(&mut config.header_timeout, at("header-timeout").time(server.header_timeout.as_ref())?);
    set(&mut config.body_timeout, at("body-timeout").time(server.body_timeout.as_ref())?);
    set(&mut config.heartbeat, at("heartbeat").time(server.heartbeat.as_ref())?);
    set(&mut config.drain, at("drain").time(server.drain.as_ref())?);
    config.idle_timeout = at("idle-timeout").time(server.idle_timeout.as_ref())?;
    set(&mut config.kept.runs, server.keep_runs);
    set(&mut config.kept.bytes, at("keep-bytes").size(server.keep_bytes.as_ref())?);
    set(&mut config.kept.age, at("keep-for").time(server.keep_for.as_ref())?);
    set(&mut config.max_upload, at("max-upload").size(server.max_upload.as_ref())?);
    set(&mut config.uploads.bytes, at("upload-memory").size(server.upload_memory.as_ref())?);
    set(&mut config.uploads.age, at("keep-uploads-for").time(server.keep_uploads_for.as_ref())?);
    refuse_zero(&at("slots"), config.slots)?;
    refuse_zero(&at("max-connections"), config.max_connections)?;
    refuse_zero(&at("max-connections-per-address"), config.max_connections_per_address.unwrap_or(1))?;
    refuse_narrow(&at("body-memory"), &config)?;
    if let Some(origin) = server.allow_origins.iter().find(|origin| !is_origin(origin)) {
        let message = format!("'{}' is not the origin of a web page", origin.escape_debug());
        return Err(at("allow-origins").wrong(&message, "allow-origins = [\"https://app.example.org\"]"));
    }
    config.origins.clone_from(&server.allow_origins);
    config.anonymous = allowance(&server.allow, usual.clone(), place, "server.allow")?;
    config.policy = common.policies.general.clone();
    for (at, table) in keys.iter().enumerate() {
        let policy = common.policies.of_key(at).clone();
        config.keys.push(Key { policy, ..key(table, &usual, place)? });
    }
    refuse_twins(&config.keys, place)?;
    if let Some(most) = at("max-collect").size(server.max_collect.as_ref())? {
        let allowances = config.keys.iter_mut().map(|key| &mut key.allowance).chain([&mut config.anonymous]);
        allowances.for_each(|allowance| allowance.ceilings.collected = Some(Bytes::new(most as u64)));
    }
    Ok(config)
}

/// Whether a key may have this name: [`KEY_NAMES`].
pub(crate) fn is_key_name(name: &str) -> bool {
    // Runs are found by the name of their caller; those from before there were keys belong to 'anonymous'.
    (1..=64).contains(&name.len()) && !name.contains(char::is_control) && name != "anonymous"
}

/// A scheme, a host and an optional port, as browsers send it. Nothing else would ever match, and any page can have
/// the origin `null`.
fn is_origin(text: &str) -> bool {
    let name = text.split_once("://").filter(|(scheme, _)| !scheme.is_empty()).map(|(_, name)| name);
    let plain = |name: &str| !name.is_empty() && !name.contains(['/', '*', '@', ' ', '?', '#']);
    name.is_some_and(plain)
}

fn key(table: &KeyTable, usual: &Allowance, place: &str) -> Result<Key, Problem> {
    let at = |option| Place { place, table: "keys", option };
    if !is_key_name(&table.name) {
        return Err(at("name").wrong(KEY_NAMES, "name = \"ci\""));
    }
    let hash = KeyHash::parse(&table.sha256).ok_or_else(|| {
        let message =
            format!("the sha256 of key '{}' is not 64 hexadecimal digits", table.name.escape_debug());
        at("sha256").wrong(&message, "what `belljar key new` prints")
    })?;
    let uploads = at("uploads").size(table.uploads.as_ref())?;
    let quota = Quota { concurrent: table.concurrent, per_minute: table.requests_per_minute, uploads };
    if quota.concurrent == Some(0) || quota.per_minute == Some(0) {
        return Err(at("concurrent").wrong("0 would allow no requests at all", "concurrent = 4"));
    }
    Ok(Key {
        name: table.name.clone(),
        hash,
        allowance: allowance(&table.allow, usual.clone(), place, "keys.allow")?,
        policy: Arc::default(),
        quota,
        audits: table.audit,
        approves: table.approve,
    })
}

fn allowance(
    table: &AllowanceTable,
    mut allowance: Allowance,
    place: &str,
    name: &'static str,
) -> Result<Allowance, Problem> {
    let at = |option| Place { place, table: name, option };
    if let Some(languages) = &table.languages {
        let known = |name: &String| Language::parse(name).map(|language| language.name);
        let names: Result<_, _> = languages.iter().map(known).collect();
        allowance.languages = Permitted::Only(names.map_err(|fault| at("languages").blame(fault.into()))?);
    }
    if let Some(backends) = &table.backends {
        let mut names = Vec::new();
        for backend in backends {
            match BackendChoice::parse(backend).map_err(|fault| at("backends").blame(fault.into()))? {
                BackendChoice::Named(name) => names.push(name),
                BackendChoice::Auto => {
                    return Err(at("backends").wrong("'auto' is not a backend", "backends = [\"native\"]"));
                }
            }
        }
        allowance.backends = Permitted::Only(names);
    }
    if let Some(network) = &table.network {
        let most = Network::parse(network).map_err(|fault| at("network").blame(fault.into()))?;
        allowance.networks = match most {
            Network::None => Networks::None,
            Network::Full => Networks::Full,
            Network::Allow(hosts) => Networks::Hosts(hosts),
        };
    }
    if let Some(secrets) = &table.secrets {
        let hosts: Result<_, _> = secrets.iter().map(|host| SecretHost::parse(host)).collect();
        allowance.secrets = Permitted::Only(hosts.map_err(|fault| at("secrets").blame(fault.into()))?);
    }
    if let Some(waive) = &table.waive {
        let waivers = parse_waivers(waive).map_err(|fault| at("waive").blame(fault.into()))?;
        allowance.waivers = Permitted::Only(waivers);
    }
    if let Some(root) = table.workspace_roots.iter().find(|root| !root.is_absolute()) {
        let message = format!("'{}' is not an absolute path", root.display());
        return Err(at("workspace-roots").wrong(&message, "workspace-roots = [\"/srv/projects\"]"));
    }
    allowance.workspaces = Workspaces::Beneath(table.workspace_roots.clone());
    allowance.ceilings = ceilings(&table.limits, &allowance.ceilings, &at)?;
    Ok(allowance)
}

fn ceilings<'a>(
    limits: &LimitsTable,
    usual: &Ceilings,
    at: &dyn Fn(&'static str) -> Place<'a>,
) -> Result<Ceilings, Problem> {
    let bytes = |size: Option<usize>| size.map(|size| Bytes::new(size as u64));
    Ok(Ceilings {
        timeout: at("limits.timeout").time(limits.timeout.as_ref())?.or(usual.timeout),
        cpu_time: at("limits.cpu-time").time(limits.cpu_time.as_ref())?,
        memory: bytes(at("limits.memory").size(limits.memory.as_ref())?).or(usual.memory),
        cpus: at("limits.cpus").rate(limits.cpus.as_ref())?.or(usual.cpus),
        pids: at("limits.pids").count(limits.pids.as_ref())?.or(usual.pids),
        disk: bytes(at("limits.disk").size(limits.disk.as_ref())?).or(usual.disk),
        output: bytes(at("limits.output-limit").size(limits.output_limit.as_ref())?).or(usual.output),
        collected: usual.collected,
        // A maximum for programs that is written down holds for compilers, too, unless they have one of their own.
        compile_timeout: at("limits.compile-timeout")
            .time(limits.compile_timeout.as_ref())?
            .or(usual.compile_timeout.filter(|_| limits.timeout.is_none())),
        compile_memory: bytes(at("limits.compile-memory").size(limits.compile_memory.as_ref())?)
            .or(usual.compile_memory.filter(|_| limits.memory.is_none())),
    })
}

/// Where a value is written, for the message about it.
pub(super) struct Place<'a> {
    pub(super) place: &'a str,
    pub(super) table: &'static str,
    pub(super) option: &'static str,
}

impl Place<'_> {
    pub(super) fn size(&self, text: Option<&Scalar>) -> Result<Option<usize>, Problem> {
        let Some(Scalar(text)) = text else { return Ok(None) };
        let size = Bytes::parse(text).map_err(|fault| self.wrong(&fault.to_string(), "512K, 64M or 1G"))?;
        usize::try_from(size.get()).map(Some).map_err(|_| self.wrong("it is too large", "1G"))
    }

    pub(super) fn time(&self, text: Option<&Scalar>) -> Result<Option<Duration>, Problem> {
        let Some(Scalar(text)) = text else { return Ok(None) };
        let time = parse_duration(text).map_err(|fault| self.wrong(&fault.to_string(), "500ms or 10s"))?;
        let most = Duration::from_secs(7 * 24 * 3600);
        let in_range = (Duration::from_millis(1)..=most).contains(&time);
        in_range.then_some(Some(time)).ok_or_else(|| self.wrong("it is not between 1ms and a week", "10s"))
    }

    fn rate(&self, text: Option<&Scalar>) -> Result<Option<Cpus>, Problem> {
        let Some(Scalar(text)) = text else { return Ok(None) };
        let rate = text.parse().map_err(|_| self.wrong("it is not a number of CPUs", "0.5 or 2"))?;
        Cpus::parse(rate).map(Some).map_err(|fault| self.blame(fault.into()))
    }

    fn count(&self, text: Option<&Scalar>) -> Result<Option<u32>, Problem> {
        let Some(Scalar(text)) = text else { return Ok(None) };
        text.parse().map(Some).map_err(|_| self.wrong("it is not a number of processes", "50"))
    }

    pub(super) fn wrong(&self, message: &str, example: &str) -> Problem {
        let message = format!("{}: {message}", self.name());
        Problem::new(Code::InvalidRequest, message, format!("write a value such as {example}"))
    }

    pub(super) fn blame(&self, mut problem: Problem) -> Problem {
        problem.error.message = format!("{}: {}", self.name(), problem.error.message);
        problem
    }

    fn name(&self) -> String {
        format!("{} of [{}] in {}", self.option, self.table, self.place)
    }
}

fn set<T>(slot: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *slot = value;
    }
}

fn refuse_zero(place: &Place<'_>, number: usize) -> Result<(), Problem> {
    if number == 0 { Err(place.wrong("0 would allow no runs at all", "4")) } else { Ok(()) }
}

/// There must be enough memory for the largest request.
fn refuse_narrow(place: &Place<'_>, config: &Config) -> Result<(), Problem> {
    let least = config.max_body.max(LEAST_BODY_MEMORY);
    if config.body_memory >= least {
        return Ok(());
    }
    let message =
        format!("it is less than the {least} bytes that one request can have (max-body, and at least 1M)");
    Err(place.wrong(&message, "body-memory = \"256M\", or lower max-body"))
}

/// Each name stands for one caller: runs are found by it.
fn refuse_twins(keys: &[Key], place: &str) -> Result<(), Problem> {
    for (at, key) in keys.iter().enumerate() {
        if keys[..at].iter().any(|other| other.name == key.name || other.hash == key.hash) {
            let message = format!("the key '{}' is configured twice in {place}", key.name.escape_debug());
            return Err(Problem::new(
                Code::InvalidRequest,
                message,
                "give every key a different name and a different hash",
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_core::guarantee::Guarantee;

    #[derive(Deserialize)]
    struct File {
        #[serde(default)]
        waive: Vec<String>,
        #[serde(default)]
        server: ServerTable,
        #[serde(default)]
        keys: Vec<KeyTable>,
    }

    fn read(text: &str) -> Result<Config, String> {
        let file: File = toml::from_str(text).map_err(|fault| fault.message().to_owned())?;
        let policies = Policies::default();
        let common = Common { limits: &Limits::default(), waived: &file.waive, policies: &policies };
        super::read(&file.server, &file.keys, common, "belljar.toml").map_err(|problem| problem.error.message)
    }

    #[test]
    fn nothing_written_is_the_default_which_allows_no_waivers_and_no_workspaces() {
        let config = read("").unwrap();
        assert_eq!(config.anonymous, usual_allowance(&Limits::default()));
        assert_eq!(config.max_body, 16 << 20);
        assert!(config.keys.is_empty());
    }

    #[test]
    fn every_option_is_understood() {
        let config = read(&format!(
            "[server]\nslots = 3\nqueue = 0\nmax-body = '1M'\nheartbeat = '50ms'\nkeep-for = 60\n\
             allow-origins = ['https://app.example.org']\n\
             allow.workspace-roots = ['/srv']\n\
             max-upload = '1M'\nupload-memory = '4M'\nkeep-uploads-for = '5m'\n\
             [[keys]]\nname = 'ci'\nsha256 = '{}'\nconcurrent = 2\nrequests-per-minute = 30\nuploads = '2M'\n\
             [keys.allow]\nlanguages = ['py', 'node']\nbackends = ['native']\nnetwork = 'none'\nwaive = ['disk']\n\
             limits = {{ timeout = '5s', memory = '64M', cpus = 0.5, pids = 10 }}\n",
            "ab".repeat(32)
        ))
        .unwrap();
        assert_eq!((config.slots, config.queue, config.max_body), (3, 0, 1 << 20));
        assert_eq!((config.heartbeat, config.kept.age), (Duration::from_millis(50), Duration::from_secs(60)));
        assert_eq!(config.anonymous.workspaces, Workspaces::Beneath(vec!["/srv".into()]));
        assert_eq!(config.origins, ["https://app.example.org"]);
        let key = &config.keys[0];
        assert_eq!(key.allowance.languages, Permitted::Only(vec!["python", "javascript"]));
        assert_eq!(key.allowance.networks, Networks::None);
        assert_eq!(key.allowance.ceilings.pids, Some(10));
        assert_eq!(key.allowance.ceilings.cpus.unwrap().milli(), 500);
        assert_eq!((key.quota.concurrent, key.quota.per_minute), (Some(2), Some(30)));
        assert_eq!(key.quota.uploads, Some(2 << 20));
        assert_eq!((config.max_upload, config.uploads.bytes), (1 << 20, 4 << 20));
        assert_eq!(config.uploads.age, Duration::from_secs(300));
    }

    #[test]
    fn what_the_operator_waives_callers_may_waive_unless_they_have_a_list_of_their_own() {
        let hash = |digit: &str| digit.repeat(64);
        let config = read(&format!(
            "waive = ['memory']\n[[keys]]\nname = 'a'\nsha256 = '{}'\n[[keys]]\nname = 'b'\nsha256 = '{}'\n\
             allow.waive = []\n[[keys]]\nname = 'c'\nsha256 = '{}'\nallow.waive = ['disk']\n",
            hash("a"),
            hash("b"),
            hash("c"),
        ))
        .unwrap();
        let waivers: Vec<_> = config.keys.iter().map(|key| key.allowance.waivers.clone()).collect();
        let only = |guarantees: &[Guarantee]| Permitted::Only(guarantees.to_vec());
        assert_eq!(waivers, [only(&[Guarantee::Memory]), only(&[]), only(&[Guarantee::Disk])]);
        assert_eq!(config.anonymous.waivers, only(&[Guarantee::Memory]));
    }

    #[test]
    fn a_mistake_is_named_with_its_place() {
        let hash = "ab".repeat(32);
        let key = |more: &str| read(&format!("[[keys]]\nname = 'a'\nsha256 = '{hash}'\n{more}")).unwrap_err();
        assert_eq!(
            key("allow.languages = ['cobol']"),
            "languages of [keys.allow] in belljar.toml: unknown language 'cobol'"
        );
        assert!(key("allow.backends = ['auto']").contains("'auto' is not a backend"));
        assert!(key("allow.workspace-roots = ['srv']").contains("not an absolute path"));
        assert!(key("allow.limits = { memory = 'much' }").contains("limits.memory of [keys.allow]"));
        assert!(key("allow.lanugages = []").contains("unknown field `lanugages`"));
        assert!(key("languages = []").contains("unknown field `languages`"));
        assert!(key(&format!("[[keys]]\nname = 'a'\nsha256 = '{hash}'")).contains("configured twice"));
        assert!(read("[server]\nslot = 1").unwrap_err().contains("unknown field `slot`"));
        for origin in ["*", "null", "app.example.org", "https://app.example.org/", "https://*.example.org"] {
            let wrong = read(&format!("[server]\nallow-origins = ['{origin}']")).unwrap_err();
            assert!(wrong.contains("is not the origin of a web page"), "{wrong}");
        }
        assert!(read("[server]\nslots = 0").unwrap_err().contains("0 would allow no runs at all"));
        assert!(read("[server]\nbody-memory = '8M'").unwrap_err().contains("less than the 16777216 bytes"));
        assert!(read("[server]\nbody-memory = '1K'\nmax-body = '1K'").unwrap_err().contains("1048576"));
        assert!(read("[server]\nbody-memory = '8M'\nmax-body = '8M'").is_ok());
        assert!(read("[[keys]]\nname = 'a'\nsha256 = 'x'").unwrap_err().contains("not 64 hexadecimal"));
    }
}
