//! A running program, as the engine sees it.

use std::io;
use std::sync::Arc;

use belljar_core::backend::{BackendError, BoxFuture, Event, Execution, Finished};
use belljar_core::outcome::Start;
use wasmtime::Engine;

use crate::guest::End;
use crate::link::{Link, News};

/// A running program. Dropping it ends it.
pub(crate) struct WasmExecution {
    pub(crate) link: Arc<Link<End>>,
    pub(crate) engine: Engine,
    pub(crate) runtime: String,
    /// The last output.
    pub(crate) told: Vec<u8>,
}

impl WasmExecution {
    async fn next(&mut self) -> Event<'_> {
        match self.link.next().await {
            News::Ended => Event::Ended,
            News::Output(stream, bytes) => {
                self.told = bytes;
                Event::Output(stream, &self.told)
            }
        }
    }
}

impl Execution for WasmExecution {
    fn start(&self) -> Start {
        Start::Cold
    }

    fn runtime(&self) -> &str {
        &self.runtime
    }

    fn next_event(&mut self) -> BoxFuture<'_, Result<Event<'_>, BackendError>> {
        Box::pin(async { Ok(self.next().await) })
    }

    /// A program that blocks is woken; one that computes is interrupted.
    fn kill(&mut self) {
        self.link.stop();
        self.engine.increment_epoch();
    }

    fn finish(mut self: Box<Self>) -> BoxFuture<'static, Result<Finished, BackendError>> {
        Box::pin(async move {
            while !matches!(self.next().await, Event::Ended) {}
            let lost = || Err(io::Error::other("its result was taken twice"));
            self.link.take_end().unwrap_or_else(lost).map_err(|source| BackendError::Setup {
                step: "run the module to its end".into(),
                hint: "this is a bug in Belljar; `belljar wasm install` installs the modules again".into(),
                source,
            })
        })
    }
}

impl Drop for WasmExecution {
    fn drop(&mut self) {
        self.kill();
    }
}
