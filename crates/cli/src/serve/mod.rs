//! `belljar serve`: the server, on a socket of its own or on one that systemd opened for it.

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
use belljar_native::PoolSettings;
use belljar_server::http::App;
use belljar_server::{Config, ServeError, Server};
use belljar_wire::{Code, Problem};
use clap::Args;
use rustix::process::{Resource, getrlimit, setrlimit};
use tracing::Level;

use self::exile::{Fate, Home, Plea};
use crate::args::Choices;
use crate::problem;
use crate::settings::{Configuration, Environment, Settings};
use crate::{compose, doctor};

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The address and port to listen on; port 0 takes any that is free [default: 127.0.0.1:8787]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,

    /// How long runs may go on after the server was told to stop [default: 10s]
    #[arg(long, value_name = "TIME")]
    drain: Option<String>,

    /// How to write the log
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "human")]
    log_format: log::Format,

    /// The configuration to read [default: ./belljar.toml, else the user's]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(crate) fn run(args: &ServeArgs, environment: Environment<'_>) -> ExitCode {
    match serve(args, environment) {
        Ok(code) => code,
        Err(problem) => {
            problem::report(&problem, false);
            ExitCode::from(problem::COMMAND_FAILED)
        }
    }
}

fn serve(args: &ServeArgs, environment: Environment<'_>) -> Result<ExitCode, Problem> {
    let choose = || Configuration::choose(args.config.as_deref(), environment);
    let mut settings = Settings::gather_with(&Choices::default(), &choose, environment)?;
    let config = configured(args, &settings)?;
    let pool = pooled(&settings, &config)?;
    let listener = listener(args, &settings, &config, environment)?;
    let (home, listener) = match exile::depart(&mut settings, &config, environment, &choose, listener)? {
        Fate::Server(home, listener) => (home, listener),
        Fate::Steward(status) => return Ok(status),
    };
    let _log = log::begin(args.log_format, Level::INFO, environment);
    home.tell();
    raise_open_files();
    warn_of_backends(&config);
    if pool.is_some() && (config.defaults.image.is_some() || !config.defaults.waive.is_empty()) {
        tracing::warn!(
            "boxes wait, but suit no request with the image or the waivers that requests get by default"
        );
    }
    let engine = compose::pooled_engine(settings.host, pool);
    let server = Server::new(engine, config).map_err(|cause| cannot_serve(&cause))?;
    let (address, exposed) = (listener.local_addr().ok(), is_exposed(&listener));
    let reload = |app: &App| reloaded(args, environment, &home, exposed, app);
    let ready = || {
        announce(address);
        home.say(environment, Plea::Ready);
    };
    let until = |app: App| async {
        signals::obey(app, ready, reload).await;
        home.say(environment, Plea::Stopping);
    };
    server.serve(listener, until).map_err(|cause| cannot_serve(&cause))?;
    Ok(ExitCode::SUCCESS)
}

fn configured(args: &ServeArgs, settings: &Settings) -> Result<Config, Problem> {
    let mut config = tables::config(&settings.server, &settings.keys, &settings.config)?;
    config.mcp = settings.mcp.clone();
    config.defaults = settings.defaults();
    config.defaults.check().map_err(|mut problem| {
        problem.error.message = format!("for requests that do not say: {}", problem.error.message);
        problem
    })?;
    refuse_unusable_backend(settings, &config)?;
    if let Some(text) = &args.drain {
        config.drain = drain_time(text)?;
    }
    Ok(config)
}

/// The backend that requests get if they name none is one that somebody may use. `process` and `none` take more than
/// being chosen: whoever serves others has to allow them in so many words.
fn refuse_unusable_backend(settings: &Settings, config: &Config) -> Result<(), Problem> {
    let BackendChoice::Named(name) = doctor::backend_choice(settings)? else { return Ok(()) };
    if callers(config).any(|allowance| allowance.backends.contains(&name)) {
        return Ok(());
    }
    let message = format!("the backend '{name}' was chosen for all requests, and none may use it");
    let hint = format!("choose another, or write backends = [\"{name}\"] in [server.allow] or [keys.allow]");
    Err(Problem::new(Code::Forbidden, message, hint).at(Field::Backend))
}

/// What each caller may do who can come.
fn callers(config: &Config) -> impl Iterator<Item = &Allowance> {
    let anonymous = config.keys.is_empty().then_some(&config.anonymous);
    anonymous.into_iter().chain(config.keys.iter().map(|key| &key.allowance))
}

/// An operator who lets others out of the box reads so in the log.
fn warn_of_backends(config: &Config) {
    for name in BackendName::ALL.into_iter().filter(|name| name.is_only_by_name()) {
        if callers(config).any(|allowance| allowance.backends.contains(&name)) {
            tracing::warn!(backend = %name, "requests may choose a backend that is no sandbox: their code runs as this server");
        }
    }
}

/// Boxes that wait are made with the limits of a caller who names none: with keys, the holder of the first.
fn pooled(settings: &Settings, config: &Config) -> Result<Option<PoolSettings>, Problem> {
    let caller = config.keys.first().map_or(&config.anonymous, |key| &key.allowance);
    pool::configured(&settings.pool, &settings.config, config.defaults.box_limits(caller)?)
}

fn drain_time(text: &str) -> Result<Duration, Problem> {
    belljar_core::limits::parse_duration(text).map_err(|fault| {
        Problem::new(Code::InvalidRequest, format!("--drain: {fault}"), "write it as in --drain 10s")
    })
}

/// The socket that we were given, else the one that was asked for.
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
        let message = "without keys the server listens on loopback only";
        let hint = "leave --listen out, or make a key with `belljar key new` and configure it";
        return Err(Problem::new(Code::InvalidRequest, message, hint));
    }
    Ok(listener)
}

pub(crate) fn bind(text: Option<&str>) -> Result<TcpListener, Problem> {
    let text = text.unwrap_or("127.0.0.1:8787");
    let address: SocketAddr = text.parse().map_err(|_| {
        let message = format!("'{}' is not an address to listen on", text.escape_debug());
        Problem::new(Code::InvalidRequest, message, "write an IP address and a port, as in 127.0.0.1:8787")
    })?;
    TcpListener::bind(address).and_then(with_backlog).map_err(|cause| {
        let message = format!("cannot listen on {address}: {cause}");
        Problem::new(Code::Internal, message, "choose another port with --listen 127.0.0.1:PORT")
    })
}

/// A burst of clients must not have to knock twice; the 128 that a listener has otherwise are few.
fn with_backlog(listener: TcpListener) -> io::Result<TcpListener> {
    rustix::net::listen(&listener, 4096)?;
    Ok(listener)
}

/// Whether others than this machine can reach it; if that cannot be told, they can.
pub(crate) fn is_exposed(listener: &TcpListener) -> bool {
    !listener.local_addr().is_ok_and(|address| address.ip().is_loopback())
}

/// As many open files as we may have: a connection is one, and a run takes several. Boxes have a limit of their own.
fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(cause) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%cause, "cannot raise the limit on open files");
    }
}

/// One line, for people and for scripts that wait for it. Nobody is left to tell if stderr is gone.
pub(crate) fn announce(address: Option<SocketAddr>) {
    if let Some(address) = address {
        let _ = writeln!(io::stderr(), "listening on http://{address}");
    }
}

/// Takes up what the configuration says now of keys, of what callers may do and of what they get if they do not say. A file that cannot be used changes
/// nothing.
fn reloaded(
    args: &ServeArgs,
    environment: Environment<'_>,
    home: &Home,
    exposed: bool,
    app: &App,
) -> Result<usize, Problem> {
    let choose = || home.configuration(args.config.as_deref(), environment);
    let settings = Settings::gather_with(&Choices::default(), &choose, environment)?;
    let config = configured(args, &settings)?;
    pooled(&settings, &config)?;
    if config.keys.is_empty() && exposed {
        let message = "the configuration has no keys any more, and the server can be reached from elsewhere";
        return Err(Problem::new(Code::InvalidRequest, message, "configure a key, or stop the server"));
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
