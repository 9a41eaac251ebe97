//! MCP on standard input and output: one client, which started this process and ends with it.

use std::future::Future;
use std::time::Duration;

use belljar_engine::{Engine, Programs, Slots, WayIn};
use rmcp::RoleServer;
use rmcp::service::{RunningService, ServerInitializeError, serve_server};
use rmcp::transport::stdio_pipes;
use tokio::time::timeout;

use super::service::{Service, Who};
use crate::caller::Caller;
use crate::config::{Config, MOST_PROGRAMS};
use crate::http::LastAnswer;
use crate::http::body::Memory;
use crate::runs::Runs;
use crate::server::{LAST_RITES, ServeError, threads};

/// Serves until standard input ends or `stop` resolves, and returns when no box is left.
///
/// # Errors
/// That the threads for it cannot be started, or that the client does not speak the protocol.
pub fn serve_stdio(
    engine: Engine,
    config: &Config,
    caller: Caller,
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let work = threads("belljar-run", config.slots.clamp(2, 64))?;
    let front = threads("belljar-mcp", 1)?;
    let engine = engine.with_slots(Slots::new(config.slots, config.queue));
    let engine = engine.with_programs(Programs::new(MOST_PROGRAMS));
    let runs = Runs::new(engine, config, work.handle().clone());
    let memory = Memory::new(config.body_memory, config.max_body);
    let service = Service::new(
        runs.clone(),
        config,
        Who::Always(caller.through(WayIn::McpStdio)),
        LastAnswer::default(),
        memory,
    );
    let served = front.block_on(async {
        let served = tokio::select! {
            served = converse(service) => served,
            () = stop => Ok(()),
        };
        leave_nothing(&runs).await;
        served
    });
    // A read from a terminal cannot be interrupted, and must not keep the process.
    front.shutdown_background();
    work.shutdown_background();
    served
}

async fn converse(service: Service) -> Result<(), ServeError> {
    match begin(service).await {
        Ok(conversation) => {
            // It ends with its input, however that came about.
            let _ = conversation.waiting().await;
            Ok(())
        }
        Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
        Err(cause) => Err(ServeError::Protocol(Box::new(cause))),
    }
}

async fn begin(service: Service) -> Result<RunningService<RoleServer, Service>, ServerInitializeError> {
    serve_server(service, stdio_pipes()).await
}

async fn leave_nothing(runs: &Runs) {
    runs.cancel_all();
    let gone = async {
        while runs.count() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if timeout(LAST_RITES, gone).await.is_err() {
        tracing::error!(runs = runs.count(), "boxes that were killed are still there");
    }
}
