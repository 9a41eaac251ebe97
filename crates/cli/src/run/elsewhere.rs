//! `belljar run --url`: the same on a server. What the server does not allow, it says itself.

use std::io::Read;
use std::path::PathBuf;

use belljar_client::{Client, ClientError, Event, Events};
use belljar_core::Field;
use belljar_core::backend::{PullEvent, Stream};
use belljar_core::outcome::{Changes, CollectedFile, Stage};
use belljar_engine::{Observer, Unobserved};
use belljar_wire::{
    Code, ImagePull, Input, InputFile, Local, MAX_REQUEST, Problem, RunRequest, RunResult, to_json,
};

use super::{Delivery, bring_back, note_network, undeliverable, written};
use crate::args::{RunArgs, Verbosity};
use crate::cancel::Signals;
use crate::configuration::{Configuration, FILE_NAME, FolderFile};
use crate::output::PassThrough;
use crate::problem::{self, say};
use crate::progress::PullProgress;
use crate::remote::{Remote, told_of_run};
use crate::settings::{Environment, Settings};

/// Runs what the command line asks for on the server at this URL, and returns the exit status.
pub(super) fn attempt(
    args: RunArgs,
    url: &str,
    verbosity: Verbosity,
    environment: Environment<'_>,
) -> Result<u8, Problem> {
    // Options and variables are the caller's wishes. The configuration is this host's; the server has its own.
    let nothing = || Ok(Configuration { path: PathBuf::from(FILE_NAME), text: None });
    let settings = Settings::gather_with(&args.choices, &nothing, &FolderFile::Absent, environment)?;
    let delivery = Delivery::of(&args);
    let (request, local, _) = written(args, settings)?;
    let request = in_json(request, local)?;
    let remote = Remote::new(url, environment)?;
    let mut heard = match delivery {
        Delivery::Json { .. } => Listener::new(None, verbosity),
        Delivery::PassThrough { .. } | Delivery::Plan { .. } => {
            Listener::new(Some(PassThrough::to_our_own()), verbosity)
        }
    };
    let (result, signal) = heard.follow(&remote.client, &request)?;
    let status = signal.map_or(result.exit_code, |signal| 128_u8.saturating_add(signal));
    let files = collected(&result)?;
    match delivery {
        Delivery::Json { destination, .. } => {
            if let Some(destination) = destination {
                bring_back(files.as_deref(), &destination, verbosity)?;
            }
            say(&to_json(&result));
        }
        Delivery::PassThrough { destination } => {
            heard.finish(&result)?;
            bring_back(files.as_deref(), &destination, verbosity)?;
        }
        Delivery::Plan { .. } => heard.finish(&result)?,
    }
    narrate_end(&result, verbosity);
    Ok(status)
}

/// Everything that the request has at hand, as the server takes it: code and standard input are text, files need not be.
fn in_json(mut request: RunRequest, local: Local) -> Result<RunRequest, Problem> {
    let no_text = |what: &str, field| {
        let message = format!("{what} is not valid UTF-8, and a server takes text");
        Problem::new(Code::InvalidRequest, message, "pass it as a file with --file").at(field)
    };
    if let Some(code) = local.code {
        if code.in_workspace {
            let message = "a file beneath --workspace cannot be run where it is on a server";
            let hint = "leave --workspace out, or pass the code with -c or on standard input";
            return Err(Problem::new(Code::InvalidRequest, message, hint).at(Field::Workspace));
        }
        request.code = String::from_utf8(code.bytes).map_err(|_| no_text("the code", Field::Code))?;
    }
    if let Some(stdin) = local.stdin {
        let mut bytes = Vec::new();
        let read = stdin.take(MAX_REQUEST as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|cause| {
            let message = format!("cannot read the input of the program: {cause}");
            Problem::new(Code::InvalidRequest, message, "pass it with --stdin FILE").at(Field::Stdin)
        })?;
        let text = String::from_utf8(bytes).map_err(|_| no_text("the input of the program", Field::Stdin))?;
        request.stdin = Some(Input::One(text));
    }
    request.files = local.files.into_iter().map(InputFile::from).collect();
    Ok(request)
}

/// What is done with what the server says.
struct Listener {
    /// Where output goes, unless the result has it.
    passed: Option<PassThrough>,
    /// How much of each stream was passed on since the program, or its compiler, began.
    told: (usize, usize),
    verbosity: Verbosity,
}

impl Listener {
    fn new(passed: Option<PassThrough>, verbosity: Verbosity) -> Listener {
        Listener { passed, told: (0, 0), verbosity }
    }

    /// The result, and the signal that has cancelled the run, if one has.
    fn follow(&mut self, client: &Client, request: &RunRequest) -> Result<(RunResult, Option<u8>), Problem> {
        let cannot = |cause: std::io::Error| {
            let message = format!("cannot set up the event loop: {cause}");
            Problem::new(Code::Internal, message, "check the limit on open files (ulimit -n)")
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)?;
        runtime.block_on(async {
            let signals = Signals::listen().map_err(cannot)?;
            // Until there is a run, a signal ends this process at once, and the server notices.
            let impatient = signals.impatient();
            impatient.now();
            let mut events = client.stream(request).await.map_err(|error| told_of_run(&error))?;
            impatient.later();
            let result = self.listen(client, &mut events, signals).await;
            impatient.now();
            result
        })
    }

    async fn listen(
        &mut self,
        client: &Client,
        events: &mut Events,
        signals: Signals,
    ) -> Result<(RunResult, Option<u8>), Problem> {
        let (mut told, mut stopped) = (std::pin::pin!(signals.first()), None);
        let mut nothing = Unobserved;
        let mut bars = PullProgress::new(self.verbosity, &mut nothing);
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                signal = told.as_mut(), if stopped.is_none() => {
                    // The result follows, with what the program has written by now.
                    stopped = Some(signal.unwrap_or(2));
                    cancel(client, events).await?;
                    continue;
                }
            };
            match event.map_err(|error| told_of_run(&error))? {
                Some(Event::Pull(pull)) => bars.pulling(&of_pull(pull)),
                Some(Event::End(result)) => return Ok((*result, stopped)),
                Some(Event::Error(problem)) => return Err(problem),
                Some(event) => {
                    if let Event::Start(_) = event {
                        bars.clear();
                    }
                    if self.hear(client, event).is_break() {
                        // Nobody reads the output any more, as when it goes to `head`.
                        cancel(client, events).await?;
                    }
                }
                None => return Err(told_of_run(&ended_early(client))),
            }
        }
    }

    fn hear(&mut self, client: &Client, event: Event) -> std::ops::ControlFlow<()> {
        match event {
            Event::AwaitingApproval(state) => {
                let id = state.approval_id.unwrap_or_default();
                let how = format!("`belljar approvals approve {id} --url {}`", client.address());
                problem::warn(&format!("the run waits for approval: {how}"), self.verbosity);
            }
            Event::Start(started) => {
                self.enter(started.stage());
                if self.verbosity == Verbosity::Verbose {
                    let image = started.image.map(|image| format!(", image {image}")).unwrap_or_default();
                    let (backend, runtime, start) = (started.backend, started.runtime, started.start);
                    problem::note(&format!("{backend} backend, {runtime}{image}, {start} start"));
                }
            }
            Event::Stage(_) => self.enter(Stage::Run),
            Event::Stdout(text) => {
                self.told.0 += text.len();
                return self.pass(Stream::Stdout, &text);
            }
            Event::Stderr(text) => {
                self.told.1 += text.len();
                return self.pass(Stream::Stderr, &text);
            }
            Event::Network(activity) => {
                if self.verbosity == Verbosity::Verbose {
                    note_network(&activity.into());
                }
            }
            Event::Pull(_) | Event::End(_) | Event::Error(_) | Event::Other(_) => {}
        }
        std::ops::ControlFlow::Continue(())
    }

    fn enter(&mut self, stage: Stage) {
        self.told = (0, 0);
        if let Some(passed) = &mut self.passed {
            passed.enter(stage);
        }
    }

    fn pass(&mut self, stream: Stream, text: &str) -> std::ops::ControlFlow<()> {
        match &mut self.passed {
            Some(passed) => passed.output(stream, text.as_bytes()),
            None => std::ops::ControlFlow::Continue(()),
        }
    }

    /// Writes what only the result has: the end of long output, and what was said when the run was over.
    fn finish(self, result: &RunResult) -> Result<(), Problem> {
        let Some(passed) = self.passed else { return Ok(()) };
        let rest = |text: &str, told: usize| text.get(told..).unwrap_or_default().to_owned();
        let (stdout, stderr) = (rest(&result.stdout, self.told.0), rest(&result.stderr, self.told.1));
        let changes = result.changes.clone().map(|changes| Changes {
            added: changes.added,
            changed: changes.changed,
            removed: changes.removed,
            patch: changes.patch,
            truncated: changes.truncated,
        });
        let finished = passed.finish_with(stdout.as_bytes(), stderr.as_bytes(), changes.as_ref());
        finished.map_err(|cause| undeliverable("its output", &cause))
    }
}

/// Tells the run to end. It may have ended meanwhile.
async fn cancel(client: &Client, events: &Events) -> Result<(), Problem> {
    let Some(id) = events.run_id() else { return Ok(()) };
    match client.cancel(id).await {
        Ok(_) => Ok(()),
        Err(error) if [Code::Conflict, Code::NotFound].contains(&error.code()) => Ok(()),
        Err(error) => Err(told_of_run(&error)),
    }
}

fn ended_early(client: &Client) -> ClientError {
    let source = "the events ended without a result".into();
    ClientError::Interrupted { address: client.address().clone(), source }
}

fn of_pull(pull: ImagePull) -> PullEvent {
    let ImagePull { image, layer, status, current, total } = pull;
    PullEvent { image, layer, status, progress: current.zip(total) }
}

fn collected(result: &RunResult) -> Result<Option<Vec<CollectedFile>>, Problem> {
    let Some(files) = &result.files else { return Ok(None) };
    let whole =
        |file: &belljar_wire::File| Some(CollectedFile { path: file.path.clone(), content: file.content()? });
    files.iter().map(whole).collect::<Option<Vec<_>>>().map(Some).ok_or_else(|| {
        let message = "the program ran, but the server sent a file that is not base64";
        Problem::new(Code::Internal, message, "see the server's log")
    })
}

fn narrate_end(result: &RunResult, verbosity: Verbosity) {
    if verbosity == Verbosity::Verbose {
        let (status, usage) = (result.status.replace('_', " "), result.usage);
        let memory = usage.memory_peak_bytes as f64 / f64::from(1 << 20);
        let (code, wall, cpu) = (result.exit_code, usage.wall_ms, usage.cpu_ms);
        problem::note(&format!(
            "{status}, exit code {code}, after {wall:.1} ms ({cpu:.1} ms of CPU time, peak memory {memory:.1} MiB)"
        ));
    }
}
