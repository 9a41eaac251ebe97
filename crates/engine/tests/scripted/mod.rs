//! A backend that plays a script: what it outputs and when, so that the engine's timing can be tested exactly.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use belljar_core::backend::{
    Backend, BackendError, BoxFuture, Ending, Event, Execution, ExecutionSpec, Finished, PullEvent,
    PullListener, RuntimeInfo, SandboxSpec, Stream, Work,
};
use belljar_core::guarantee::{Guarantee, Offer, Standing};
use belljar_core::language::Language;
use belljar_core::outcome::{CollectedFile, Start};
use belljar_core::request::{BackendName, Network};
use tokio::time::{Instant, sleep, sleep_until};

/// One step of a program's life.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    Say(Stream, Vec<u8>),
    Sleep(Duration),
    /// Outputs this for ever, without ever yielding.
    Flood(Vec<u8>),
}

#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(crate) name: BackendName,
    pub(crate) acts: Vec<Act>,
    pub(crate) ending: Ending,
    /// What a kill turns the rest of the script into.
    pub(crate) after_kill: Vec<Act>,
    pub(crate) ending_after_kill: Ending,
    pub(crate) fails_to_start: bool,
    pub(crate) start_takes: Duration,
    pub(crate) not_ready: bool,
    pub(crate) unmet: Vec<Guarantee>,
    pub(crate) files: Vec<CollectedFile>,
    /// What the compiler does, and how it ends.
    pub(crate) compiler: (Vec<Act>, Ending),
    /// The layers that are pulled before it can start.
    pub(crate) layers: Vec<&'static str>,
}

impl Script {
    pub(crate) fn of(acts: Vec<Act>, ending: Ending) -> Script {
        Script {
            name: BackendName::Native,
            acts,
            ending,
            after_kill: Vec::new(),
            ending_after_kill: Ending::Signaled(9),
            fails_to_start: false,
            start_takes: Duration::ZERO,
            not_ready: false,
            unmet: Vec::new(),
            files: Vec::new(),
            compiler: (Vec::new(), Ending::Exited(0)),
            layers: Vec::new(),
        }
    }

    pub(crate) fn backend(self) -> Arc<Scripted> {
        let unmet = self.unmet.clone();
        let offer = Offer::by_asking(|guarantee| {
            if unmet.contains(&guarantee) {
                Standing::Unmet { why: "the host has none".into(), fix: "get one".into() }
            } else {
                Standing::Kept { how: "by script".into() }
            }
        });
        Arc::new(Scripted { script: self, offer, log: Arc::default() })
    }
}

#[derive(Debug)]
pub(crate) struct Scripted {
    script: Script,
    offer: Offer,
    /// What was done to it: `start NAME`, `kill`, `finish`, `drop`.
    pub(crate) log: Arc<Mutex<Vec<String>>>,
}

impl Backend for Scripted {
    fn name(&self) -> BackendName {
        self.script.name
    }

    fn ready(&self) -> Result<(), BackendError> {
        if self.script.not_ready {
            let (reason, hint) = ("the script says no".into(), "write another".into());
            return Err(BackendError::Unavailable { backend: self.script.name, reason, hint });
        }
        Ok(())
    }

    fn offer(&self) -> &Offer {
        &self.offer
    }

    fn provides(&self, network: &Network) -> bool {
        *network == Network::None
    }

    fn runtime(&self, language: Language) -> Result<RuntimeInfo, BackendError> {
        Ok(RuntimeInfo { label: format!("Scripted {language} 1.0"), location: "nowhere".into() })
    }

    fn start<'a>(
        &'a self,
        _: SandboxSpec,
        execution: ExecutionSpec,
        waiting: PullListener<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn Execution>, BackendError>> {
        Box::pin(async move {
            for layer in &self.script.layers {
                waiting(&pulled(layer));
            }
            sleep(self.script.start_takes).await;
            let compiles = execution.work == Work::Compile;
            let doing = if compiles { "compile" } else { "start" };
            self.log.lock().unwrap().push(format!("{doing} {}", execution.source.name));
            if self.script.fails_to_start {
                let source = io::Error::from_raw_os_error(1);
                return Err(BackendError::Setup { step: "mount the root".into(), hint: "no".into(), source });
            }
            let mut script = self.script.clone();
            if compiles {
                let made = CollectedFile { path: "main".into(), content: b"a program".to_vec() };
                (script.acts, script.ending) = script.compiler.clone();
                script.files = vec![made];
            }
            let execution = Playing {
                left: script.acts.clone().into(),
                script,
                asleep_until: None,
                said: Vec::new(),
                killed: false,
                log: self.log.clone(),
            };
            Ok(Box::new(execution) as Box<dyn Execution>)
        })
    }

    fn explain(&self, _: &SandboxSpec, execution: &ExecutionSpec) -> Result<String, BackendError> {
        Ok(format!("play {}\n", execution.source.name))
    }
}

/// The event for a pulled layer.
pub(crate) fn pulled(layer: &str) -> PullEvent {
    let (image, layer) = ("image:1".to_owned(), Some(layer.to_owned()));
    PullEvent { image, layer, status: "Pull complete".to_owned(), progress: None }
}

struct Playing {
    script: Script,
    left: VecDeque<Act>,
    asleep_until: Option<Instant>,
    said: Vec<u8>,
    killed: bool,
    log: Arc<Mutex<Vec<String>>>,
}

impl Execution for Playing {
    fn start(&self) -> Start {
        Start::Cold
    }

    fn runtime(&self) -> &str {
        "Scripted 1.0"
    }

    fn next_event(&mut self) -> BoxFuture<'_, Result<Event<'_>, BackendError>> {
        Box::pin(async {
            loop {
                if let Some(until) = self.asleep_until {
                    sleep_until(until).await;
                    self.asleep_until = None;
                }
                match self.left.pop_front() {
                    None => return Ok(Event::Ended),
                    Some(Act::Sleep(time)) => self.asleep_until = Some(Instant::now() + time),
                    Some(Act::Say(stream, bytes)) => {
                        self.said = bytes;
                        return Ok(Event::Output(stream, &self.said));
                    }
                    Some(Act::Flood(bytes)) => {
                        self.left.push_front(Act::Flood(bytes.clone()));
                        self.said = bytes;
                        return Ok(Event::Output(Stream::Stdout, &self.said));
                    }
                }
            }
        })
    }

    fn kill(&mut self) {
        self.log.lock().unwrap().push("kill".into());
        self.asleep_until = None;
        self.left = self.script.after_kill.clone().into();
        self.killed = true;
    }

    fn finish(self: Box<Self>) -> BoxFuture<'static, Result<Finished, BackendError>> {
        self.log.lock().unwrap().push("finish".into());
        let ending = if self.killed { self.script.ending_after_kill } else { self.script.ending };
        let (cpu, files) = (Duration::from_millis(3), self.script.files.clone());
        Box::pin(async move {
            Ok(Finished { ending, cpu, memory_peak: 4096, files, left_out: 0, changes: None, network: None })
        })
    }
}

impl Drop for Playing {
    fn drop(&mut self) {
        self.log.lock().unwrap().push("drop".into());
    }
}
