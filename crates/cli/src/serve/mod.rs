//! `belljar serve`: the server, on a socket of its own or on one that systemd opened.

mod exile;
pub(crate) mod log;
mod notify;
#[cfg(feature = "otel")]
mod otel;
pub(crate) mod pool;
mod signals;
mod socket;
pub(crate) mod tables;

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use belljar_core::Field;
use belljar_core::allowance::Allowance;
use belljar_core::request::{BackendChoice, BackendName};
use belljar_engine::RunError;
use belljar_native::PoolSettings;
use belljar_server::http::App;
use belljar_server::{Config, Refusals, ServeError, Server};
use belljar_wire::{Code, Problem};
use clap::{Args, ValueHint};
use rustix::process::{Resource, getrlimit, setrlimit};
use tracing::Level;

use self::exile::{Fate, Home, Plea};
use crate::args::{Choices, Verbosity};
use crate::audit::configured::{Planned, Unlocked};
use crate::configuration::{Configuration, FolderFile};
use crate::problem;
use crate::settings::{Environment, Settings};
use crate::{compose, doctor, scanner};

/// How often memory that nothing uses goes back to the system.
const RELEASE_EVERY: Duration = Duration::from_secs(10);

/// Descriptors that a box takes at most; about 11 were seen.
const DESCRIPTORS_OF_A_BOX: usize = 16;
/// Descriptors that the server has anyway, those of connections that were told to go, and what a backend needs for itself.
const DESCRIPTORS_OF_THE_SERVER: usize = 160;
/// Fewer connections than that would be of no use, whatever the limit.
const FEWEST_CONNECTIONS: usize = 16;

pub(crate) const DEFAULT_LISTEN: &str = "127.0.0.1:8787";

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Address and port to listen on; port 0 picks a free one [default: 127.0.0.1:8787]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,

    /// How long to wait for runs to finish when the server stops [default: 10s]
    #[arg(long, value_name = "TIME")]
    drain: Option<String>,

    /// Format of the log
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "human")]
    log_format: log::Format,

    /// Configuration file [default: the user's, else the system's]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
}

pub(crate) fn run(args: &ServeArgs, verbosity: Verbosity, environment: Environment<'_>) -> ExitCode {
    match serve(args, verbosity, environment) {
        Ok(code) => code,
        Err(problem) => {
            problem::report(&problem, false);
            ExitCode::from(problem::COMMAND_FAILED)
        }
    }
}

fn serve(args: &ServeArgs, verbosity: Verbosity, environment: Environment<'_>) -> Result<ExitCode, Problem> {
    let choose = || Configuration::choose(args.config.as_deref(), environment);
    let mut settings = Settings::gather_with(&Choices::default(), &choose, &FolderFile::Absent, environment)?;
    let mut config = configured(args, &settings)?;
    let mut pool = pooled(&settings, &config)?;
    let listener = listener(args, &settings, &config, environment)?;
    let ledger = Planned::of(&settings, config.slots.saturating_add(config.queue))?;
    // Its key is read while its file can be.
    let ledger = ledger.map(Planned::unlock).transpose()?;
    config.audit = ledger.as_ref().map(Unlocked::audit);
    let departed = exile::depart(&mut settings, &config, environment, &choose, listener)?;
    let (home, listener) = match departed {
        Fate::Server(home, listener) => (home, listener),
        Fate::Steward(status) => return Ok(status),
    };
    let _log = log::begin(args.log_format, log::level(Level::INFO, verbosity), environment);
    home.tell();
    raise_open_files();
    leave_descriptors_for_runs(&mut config, pool.as_mut());
    release_memory_at_times();
    warn_of_backends(&config);
    if pool.is_some() && !config.defaults.waive.is_empty() {
        tracing::warn!(
            "the warm pool will not be used: by default, requests get waivers that it does not have"
        );
    }
    let scanning = settings.scan.scanning();
    let mut engine =
        compose::pooled_engine(settings.host, pool).with_scanner(scanner::warm(scanning), scanning);
    let scribe = ledger.map(Unlocked::start).transpose()?;
    if let Some(scribe) = &scribe {
        engine = engine.with_recorder(scribe.clone());
    }
    let server = Server::new(engine, config).map_err(|cause| cannot_serve(&cause))?;
    server.find_refusals(move |refusals| tell_of(refusals, &settings.config_to_write));
    let (address, exposed) = (listener.local_addr().ok(), is_exposed(&listener));
    let reload = |app: &App| reloaded(args, environment, &home, exposed, app);
    let ready = || {
        announce(address, verbosity);
        home.say(environment, Plea::Ready);
    };
    let until = |app: App| async {
        signals::obey(app, ready, reload).await;
        home.say(environment, Plea::Stopping);
    };
    let served = server.serve(listener, until);
    if let Some(scribe) = scribe {
        scribe.stop();
    }
    served.map_err(|cause| cannot_serve(&cause))?;
    Ok(ExitCode::SUCCESS)
}

fn configured(args: &ServeArgs, settings: &Settings) -> Result<Config, Problem> {
    let mut config = tables::config(settings)?;
    config.mcp = settings.mcp.clone();
    config.defaults = settings.defaults();
    config.defaults.check().map_err(|mut problem| {
        problem.error.message = format!("the defaults for requests are not valid: {}", problem.error.message);
        problem
    })?;
    refuse_unusable_backend(settings, &config)?;
    if let Some(text) = &args.drain {
        config.drain = drain_time(text)?;
    }
    Ok(config)
}

/// The default backend must be one that some caller may use. For `process` and `none` it is not enough to be the
/// default: the configuration has to allow them explicitly.
fn refuse_unusable_backend(settings: &Settings, config: &Config) -> Result<(), Problem> {
    let BackendChoice::Named(name) = doctor::backend_choice(settings)? else { return Ok(()) };
    if callers(config).any(|allowance| allowance.backends.contains(&name)) {
        return Ok(());
    }
    let message = format!("the default backend is '{name}', but no caller may use it");
    let hint =
        format!("choose another backend, or write backends = [\"{name}\"] in [server.allow] or [keys.allow]");
    Err(Problem::new(Code::Forbidden, message, hint).at(Field::Backend))
}

/// What each possible caller may do.
fn callers(config: &Config) -> impl Iterator<Item = &Allowance> {
    let anonymous = config.keys.is_empty().then_some(&config.anonymous);
    anonymous.into_iter().chain(config.keys.iter().map(|key| &key.allowance))
}

/// Logs a warning if callers may use a backend that is not a sandbox.
fn warn_of_backends(config: &Config) {
    for name in BackendName::ALL.into_iter().filter(|name| name.is_only_by_name()) {
        if callers(config).any(|allowance| allowance.backends.contains(&name)) {
            tracing::warn!(backend = %name, "requests may use a backend that is not a sandbox: their code runs with the rights of this server");
        }
    }
}

/// Logs which callers cannot run anything on this host unless their requests say more than code, and what to do.
fn tell_of(refusals: Refusals, config: &str) {
    let Refusals { of, is_everybody } = refusals;
    let mut told: Vec<String> = Vec::new();
    for (caller, error) in of {
        let hint = refusal_hint(&error, config);
        let error = Problem::from(error).error.message;
        let whose = if is_everybody { "runs".to_owned() } else { format!("runs of the key '{caller}'") };
        let text = format!("{whose} are refused on this host: {error}; {hint}");
        if !told.contains(&text) {
            tracing::error!("{text}");
            told.push(text);
        }
    }
}

/// What the operator can do about runs that are refused, with the file to write to.
fn refusal_hint(error: &RunError, config: &str) -> String {
    let RunError::Unmet { unmet, .. } = error else {
        return "`belljar doctor --all` shows what the backends need".to_owned();
    };
    let remedies = unmet.remedies().join("; ");
    let names: Vec<_> = unmet.missing.iter().map(|(guarantee, _, _)| guarantee.name()).collect();
    format!(
        "{remedies}; or do without: write waive = {names:?} at the top of {config}, and restart the server"
    )
}

/// The boxes of the warm pool have the default limits: those of the first key, if there are keys.
pub(crate) fn pooled(settings: &Settings, config: &Config) -> Result<Option<PoolSettings>, Problem> {
    let caller = config.keys.first().map_or(&config.anonymous, |key| &key.allowance);
    pool::configured(&settings.pool, &settings.config, config.defaults.box_limits(caller)?)
}

fn drain_time(text: &str) -> Result<Duration, Problem> {
    belljar_core::limits::parse_duration(text).map_err(|fault| {
        Problem::new(Code::InvalidRequest, format!("--drain: {fault}"), "write a time such as --drain 10s")
    })
}

/// The socket that systemd opened, else one on the address that was asked for.
fn listener(
    args: &ServeArgs,
    settings: &Settings,
    config: &Config,
    environment: Environment<'_>,
) -> Result<TcpListener, Problem> {
    let listener = match socket::inherited(environment)? {
        Some(listener) => listener,
        None => bind(args.listen.as_deref().or(settings.server.listen.as_deref()))?,
    };
    if config.keys.is_empty() && is_exposed(&listener) {
        let place =
            listener.local_addr().map_or_else(|_| "this socket".to_owned(), |address| address.to_string());
        let message = format!(
            "cannot listen on {place}: without API keys, the server listens on loopback addresses only"
        );
        let hint =
            "leave out --listen, or create a key with `belljar key new` and add it to the configuration";
        return Err(Problem::new(Code::InvalidRequest, message, hint));
    }
    Ok(listener)
}

pub(crate) fn bind(text: Option<&str>) -> Result<TcpListener, Problem> {
    let text = text.unwrap_or(DEFAULT_LISTEN);
    let address: SocketAddr = text.parse().map_err(|_| {
        let message = format!("'{}' is not an address and a port", text.escape_debug());
        Problem::new(Code::InvalidRequest, message, "write an IP address and a port such as 127.0.0.1:8787")
    })?;
    TcpListener::bind(address).and_then(with_backlog).map_err(|cause| {
        let message = format!("cannot listen on {address}: {cause}");
        Problem::new(Code::Internal, message, "choose another port with --listen 127.0.0.1:PORT")
    })
}

/// A backlog for bursts of clients; the default of 128 is too small for them.
fn with_backlog(listener: TcpListener) -> io::Result<TcpListener> {
    rustix::net::listen(&listener, 4096)?;
    Ok(listener)
}

/// Whether other machines can reach it; if that is unknown, assume that they can.
pub(crate) fn is_exposed(listener: &TcpListener) -> bool {
    !listener.local_addr().is_ok_and(|address| address.ip().is_loopback())
}

/// Raises the limit on open files: a connection is one, and a run takes several. Sandboxes have their own limit.
fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(cause) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%cause, "cannot raise the limit on open files");
    }
}

/// Runs come first: no more boxes are parked and no more connections taken than leave descriptors for all runs.
fn leave_descriptors_for_runs(config: &mut Config, pool: Option<&mut PoolSettings>) {
    let Some(limit) = getrlimit(Resource::Nofile).current else { return };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let parked = pool.map_or(0, |pool| park_within(limit / 2, pool));
    let most = connections_within(limit, config.slots, parked);
    if most < config.max_connections {
        let (wanted, slots) = (config.max_connections, config.slots);
        tracing::warn!(
            limit,
            wanted,
            connections = most,
            slots,
            "the limit on open files allows fewer connections"
        );
        config.max_connections = most;
    }
}

/// Lets the pool have no more boxes than there are descriptors for, and returns how many it may have.
fn park_within(descriptors: usize, pool: &mut PoolSettings) -> usize {
    let all = |pool: &PoolSettings| pool.languages.iter().map(|(_, bounds)| bounds.max).sum::<usize>();
    let (wanted, room) = (all(pool), descriptors / DESCRIPTORS_OF_A_BOX);
    if wanted > room {
        for (_, bounds) in &mut pool.languages {
            bounds.max = bounds.max * room / wanted;
            bounds.min = bounds.min.min(bounds.max);
        }
        tracing::warn!(wanted, boxes = all(pool), "the limit on open files allows fewer parked boxes");
    }
    all(pool)
}

/// How many connections there can be with so many descriptors. A WebSocket takes another one, of which there are a
/// quarter as many (`Config::max_sockets`).
fn connections_within(descriptors: usize, slots: usize, parked: usize) -> usize {
    let boxes = slots.saturating_add(parked).saturating_mul(DESCRIPTORS_OF_A_BOX);
    let left = descriptors.saturating_sub(boxes.saturating_add(DESCRIPTORS_OF_THE_SERVER));
    (left / 5 * 4).max(FEWEST_CONNECTIONS)
}

/// Keeps the server small after a burst of requests. Without the thread it is only larger.
fn release_memory_at_times() {
    let release = || {
        loop {
            std::thread::sleep(RELEASE_EVERY);
            belljar_jail::release_unused();
        }
    };
    if let Err(cause) = std::thread::Builder::new().name("belljar-memory".to_owned()).spawn(release) {
        tracing::warn!(%cause, "cannot start the thread that returns unused memory");
    }
}

/// One line, for people and for scripts that wait for it. If stderr is closed, nobody reads it.
pub(crate) fn announce(address: Option<SocketAddr>, verbosity: Verbosity) {
    if let Some(address) = address.filter(|_| verbosity != Verbosity::Quiet) {
        let _ = writeln!(io::stderr(), "listening on http://{address}");
    }
}

/// Reloads the keys, what callers may do and the defaults for requests. If the configuration is not valid, nothing
/// changes.
fn reloaded(
    args: &ServeArgs,
    environment: Environment<'_>,
    home: &Home,
    exposed: bool,
    app: &App,
) -> Result<usize, Problem> {
    let choose = || home.configuration(args.config.as_deref(), environment);
    let settings = Settings::gather_with(&Choices::default(), &choose, &FolderFile::Absent, environment)?;
    let config = configured(args, &settings)?;
    pooled(&settings, &config)?;
    if config.keys.is_empty() && exposed {
        let message = "the configuration no longer has keys, and other machines can reach the server";
        return Err(Problem::new(
            Code::InvalidRequest,
            message,
            "add a key to the configuration, or stop the server",
        ));
    }
    app.replace_callers(&config);
    Ok(config.keys.len())
}

pub(crate) fn cannot_serve(cause: &ServeError) -> Problem {
    let causes = std::iter::successors(Some(cause as &dyn std::error::Error), |cause| cause.source());
    let message = causes.map(ToString::to_string).collect::<Vec<_>>().join(": ");
    let hint = "check the limits on open files and processes (ulimit -n, ulimit -u)";
    Problem::new(Code::Internal, message, hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_have_their_descriptors_before_connections_do() {
        assert_eq!(connections_within(1024, 4, 0), 640);
        assert!(connections_within(1024, 4, 0) * 5 / 4 + 4 * DESCRIPTORS_OF_A_BOX < 1024);
        assert!(connections_within(1024, 4, 20) < connections_within(1024, 4, 0));
        assert_eq!(connections_within(256, 64, 64), FEWEST_CONNECTIONS);
        assert!(connections_within(1 << 20, 8, 64) > 2048);
    }
}
