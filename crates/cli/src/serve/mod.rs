//! `belljar serve`: the server, on a socket of its own or on one that systemd opened.

mod background;
pub(crate) mod log;
mod notify;
#[cfg(feature = "otel")]
mod otel;
pub(crate) mod pool;
mod privilege_drop;
mod signals;
mod socket;
pub(crate) mod tables;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use belljar_core::Field;
use belljar_core::allowance::Allowance;
use belljar_core::request::{BackendChoice, BackendName};
use belljar_engine::{RunError, Scanning};
use belljar_ledger::approvals::{Abandoned, Approvals};
use belljar_native::PoolSettings;
use belljar_server::http::App;
use belljar_server::{Config, Quiet, Refusals, ServeError, Server};
use belljar_wire::{Code, Problem};
use clap::{Args, ValueHint};
use rustix::process::{Resource, getrlimit, setrlimit};
use tracing::Level;

use self::privilege_drop::{Home, ParentRequest, Role};
use self::socket::Socket;
use crate::approvals::configured::{Configured, Prepared};
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
    /// Address and port to listen on, or unix:PATH; port 0 picks a free one [default: 127.0.0.1:8787]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,

    /// Stop when nobody has been connected and nothing has run for this long [default: never]
    #[arg(long, value_name = "TIME")]
    idle_timeout: Option<String>,

    /// Find your server in the background or start it, print where it listens, and exit
    #[arg(long)]
    background: bool,

    /// Be that server
    #[arg(long, hide = true, conflicts_with = "background")]
    detached: bool,

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
    if args.background {
        return background::run(args, verbosity, environment);
    }
    match serve(args, verbosity, environment) {
        Ok(code) => code,
        Err(problem) => {
            problem::report(&problem, false);
            ExitCode::from(problem::COMMAND_FAILED)
        }
    }
}

fn serve(args: &ServeArgs, verbosity: Verbosity, environment: Environment<'_>) -> Result<ExitCode, Problem> {
    if args.detached {
        background::detach();
    }
    FolderFile::tell_if_overlooked(args.config.as_deref(), verbosity, environment);
    let choose = || Configuration::choose(args.config.as_deref(), environment);
    let mut settings = Settings::gather_with(&Choices::default(), &choose, &FolderFile::Absent, environment)?;
    if args.detached {
        background::keep_small(&mut settings);
    }
    let mut config = configured(args, &settings)?;
    let mut pool = pooled(&settings, &config)?;
    let socket = listening(args, &settings, &config, environment)?;
    let ledger = Planned::of_server(&settings, config.slots.saturating_add(config.queue))?;
    // Its key is read while its file can be.
    let ledger = ledger.map(Planned::unlock).transpose()?;
    config.audit = ledger.as_ref().map(Unlocked::audit);
    let approvals = prepared_approvals(&settings)?;
    let given = approvals.as_ref().map(|approvals| approvals.dir.as_path());
    let split = privilege_drop::drop_root(&mut settings, &config, given, environment, &choose, socket)?;
    let (home, socket) = match split {
        Role::Server(home, socket) => (home, socket),
        Role::RootParent(status) => return Ok(status),
    };
    let _log = log::begin(args.log_format, log::level(Level::INFO, verbosity), environment);
    home.tell();
    raise_open_files();
    leave_descriptors_for_runs(&mut config, pool.as_mut());
    release_memory_at_times();
    if !args.detached {
        warn_of_backends(&config);
    }
    if pool.is_some() && !config.defaults.waive.is_empty() {
        tracing::warn!(
            "the warm pool will not be used: by default, requests get waivers that it does not have"
        );
    }
    let scanning = settings.scan.scanning();
    let scanner = scanner::warm(scanning == Scanning::EveryRun || !settings.policies.are_open());
    let mut engine = compose::pooled_engine(settings.host, pool).with_scanner(scanner, scanning);
    let scribe = ledger.map(Unlocked::start).transpose()?;
    if let Some(scribe) = &scribe {
        engine = engine.with_recorder(scribe.clone());
    }
    let approvals = approvals.map(|approvals| approvals.start(Abandoned::Keep)).transpose()?;
    if let Some(approvals) = &approvals {
        engine = engine.with_approver(approvals.waiting.clone());
        config.approvals = Some(approvals.waiting.store().clone());
    }
    let server = Server::new(engine, config).map_err(|cause| cannot_serve(&cause))?;
    server.find_refusals(move |refusals| tell_of(refusals, &settings.config_to_write));
    let (url, exposed) = (socket.url(), socket.is_exposed());
    let listener = socket.into_listener(home.is_unprivileged())?;
    let store = approvals.as_ref().map(|approvals| approvals.waiting.store().clone());
    let reload = |app: &App| reloaded(args, environment, &home, exposed, app, store.as_deref());
    let text = || home.configuration(args.config.as_deref(), environment).ok()?.text;
    let ready = || {
        announce(url.as_deref(), verbosity);
        home.say(environment, ParentRequest::Ready);
    };
    let until = |app: App, quiet: Quiet| {
        let (home, approvals) = (&home, &approvals);
        async move {
            let idle = async {
                quiet.lasted().await;
                tracing::info!("nobody needs the server any more; it stops");
                home.say(environment, ParentRequest::Stopping);
                quiet.see_out().await;
            };
            signals::obey(app, ready, text, reload, idle).await;
            if let Some(approvals) = approvals {
                approvals.waiting.keep_what_is_left();
            }
            home.say(environment, ParentRequest::Stopping);
        }
    };
    let served = server.serve(listener, until);
    if let Some(scribe) = scribe {
        scribe.stop();
    }
    served.map_err(|cause| cannot_serve(&cause))?;
    Ok(ExitCode::SUCCESS)
}

/// Approvals, if runs can need any.
fn prepared_approvals(settings: &Settings) -> Result<Option<Prepared>, Problem> {
    let configured = Configured::of(settings)?;
    if settings.approvals.is_none() && settings.policies.are_open() {
        return Ok(None);
    }
    configured.prepare(settings).map(Some)
}

fn configured(args: &ServeArgs, settings: &Settings) -> Result<Config, Problem> {
    let mut config = tables::config(settings)?;
    if args.detached {
        settings.server.trust(&mut config.anonymous);
    }
    config.mcp = settings.mcp.clone();
    config.defaults = settings.defaults();
    config.approval_wait = Configured::of(settings)?.wait;
    config.defaults.check().map_err(|mut problem| {
        problem.error.message = format!("the defaults for requests are not valid: {}", problem.error.message);
        problem
    })?;
    refuse_unusable_backend(settings, &config)?;
    if let Some(text) = &args.drain {
        config.drain = time("--drain", text)?;
    }
    if let Some(text) = &args.idle_timeout {
        config.idle_timeout = Some(time("--idle-timeout", text)?);
    }
    if args.detached {
        config.idle_timeout.get_or_insert(background::USUAL_IDLE);
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

fn time(option: &str, text: &str) -> Result<Duration, Problem> {
    belljar_core::limits::parse_duration(text).map_err(|fault| {
        let hint = format!("write a time such as {option} 10s");
        Problem::new(Code::InvalidRequest, format!("{option}: {fault}"), hint)
    })
}

/// The socket that systemd opened, else one on the address that was asked for.
fn listening(
    args: &ServeArgs,
    settings: &Settings,
    config: &Config,
    environment: Environment<'_>,
) -> Result<Socket, Problem> {
    let asked = args.listen.as_deref().or(settings.server.listen.as_deref());
    let socket = Socket::open(asked, environment)?;
    if config.keys.is_empty() && socket.is_exposed() {
        let message = format!(
            "cannot listen on {}: without API keys, the server listens on loopback addresses only",
            socket.place()
        );
        let hint =
            "leave out --listen, or create a key with `belljar key new` and add it to the configuration";
        return Err(Problem::new(Code::InvalidRequest, message, hint));
    }
    Ok(socket)
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
fn announce(url: Option<&str>, verbosity: Verbosity) {
    if let Some(url) = url.filter(|_| verbosity != Verbosity::Quiet) {
        let _ = writeln!(io::stderr(), "listening on {url}");
    }
}

/// Reloads the keys, what callers may do, the policies, the terms of approvals and the defaults for requests. If the configuration is not valid, nothing
/// changes.
fn reloaded(
    args: &ServeArgs,
    environment: Environment<'_>,
    home: &Home,
    exposed: bool,
    app: &App,
    approvals: Option<&Approvals>,
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
    let terms = Configured::of(&settings)?.terms;
    // Before the keys: a new key must not decide under the old terms.
    if let Some(approvals) = approvals {
        approvals.replace_terms(terms);
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
