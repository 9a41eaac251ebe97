//! `belljar serve`: the server, on a socket of its own.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;

use belljar_server::{Config, Server};
use belljar_wire::{Code, Problem};
use clap::Args;

use crate::args::Choices;
use crate::cancel::Signals;
use crate::compose;
use crate::problem;
use crate::settings::{Environment, Settings};

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The address and port to listen on; port 0 takes any that is free
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8787")]
    pub(crate) listen: SocketAddr,

    /// The configuration to read [default: ./belljar.toml, else the user's]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

pub(crate) fn run(args: &ServeArgs, environment: Environment<'_>) -> ExitCode {
    match serve(args, environment) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            problem::report(&problem, false);
            ExitCode::from(problem::COMMAND_FAILED)
        }
    }
}

fn serve(args: &ServeArgs, environment: Environment<'_>) -> Result<(), Problem> {
    let settings = Settings::gather(&Choices::default(), args.config.as_deref(), environment)?;
    let listener = listen(args.listen)?;
    let config = Config { mcp: settings.mcp, ..Config::default() };
    let engine = compose::engine(settings.host, None);
    let server = Server::new(engine, config).map_err(|cause| cannot_serve(&cause))?;
    announce(&listener);
    server.serve(listener, told_to_stop()).map_err(|cause| cannot_serve(&cause))
}

pub(crate) fn listen(address: SocketAddr) -> Result<TcpListener, Problem> {
    if !address.ip().is_loopback() {
        let message = format!("without keys the server listens on loopback only, not on {address}");
        return Err(Problem::new(Code::InvalidRequest, message, "leave --listen out, or configure keys"));
    }
    TcpListener::bind(address).map_err(|cause| {
        let message = format!("cannot listen on {address}: {cause}");
        Problem::new(Code::Internal, message, "choose another port with --listen 127.0.0.1:PORT")
    })
}

/// One line, for people and for scripts that wait for it. Nobody is left to tell if stderr is gone.
pub(crate) fn announce(listener: &TcpListener) {
    if let Ok(address) = listener.local_addr() {
        let _ = writeln!(io::stderr(), "listening on http://{address}");
    }
}

pub(crate) async fn told_to_stop() {
    match Signals::listen() {
        Ok(signals) => drop(signals.first().await),
        Err(cause) => tracing::error!(%cause, "cannot listen to signals"),
    }
}

pub(crate) fn cannot_serve(cause: &belljar_server::ServeError) -> Problem {
    let causes = std::iter::successors(Some(cause as &dyn std::error::Error), |cause| cause.source());
    let message = causes.map(ToString::to_string).collect::<Vec<_>>().join(": ");
    Problem::new(
        Code::Internal,
        message,
        "check the limits on open files and processes (ulimit -n, ulimit -u)",
    )
}
