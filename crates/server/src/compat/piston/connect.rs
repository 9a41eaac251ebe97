//! `GET /api/v2/connect`: a job over a WebSocket, with its output as it comes and its input as the client writes it.
//!
//! ```text
//! client  init ──▶ runtime, stage, data…, exit, (stage, data…, exit) ──▶ closed with 4999
//!         data, signal ──▶ to the program
//! ```

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::response::{IntoResponse, Response};
use belljar_core::backend::Stream;
use belljar_core::outcome::Stage;
use belljar_wire::{Code, Local, Problem};
use serde::{Deserialize, Serialize};

use super::execute::{Ending, ending, prepare};
use super::job::{Asked, Job};
use super::runtimes::name_of;
use super::{PistonRefusal, signals};
use crate::caller::Caller;
use crate::compat::shallow::Shallow;
use crate::compat::stdin::{self, Writer};
use crate::http::App;
use crate::http::text::Text;
use crate::runs::{End, Run, RunEvent, Runs};

/// The most bytes of one message.
const MAX_MESSAGE: usize = 1 << 20;
/// What a session may cost at a time: a message that is being read, input that waits for the program, and buffers.
const COST: usize = MAX_MESSAGE + stdin::MAX_WAITING + (512 << 10);
/// How long a client may take to say what it wants.
const INIT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a client may take to see that it was closed.
const CLOSING: Duration = Duration::from_secs(1);

/// `GET /api/v2/connect`.
pub(super) async fn connect(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(refused) => {
            return PistonRefusal {
                status: refused.status(),
                message: refused.body_text(),
                retry_after: None,
            }
            .into_response();
        }
    };
    let app = app.of(&caller);
    let Ok(place) = app.sockets.clone().try_acquire_owned() else { return no_place().into_response() };
    let share = match app.memory.share(COST) {
        Ok(share) => share,
        Err(problem) => return PistonRefusal::from(problem).into_response(),
    };
    upgrade.max_message_size(MAX_MESSAGE).max_frame_size(MAX_MESSAGE).on_upgrade(move |socket| async move {
        let patience = app.config.body_timeout;
        let mut client = Client { socket, patience };
        let why = match client.session(&app, &caller).await {
            Ok(()) => Closing::Completed,
            Err(why) => why,
        };
        client.close(why).await;
        drop((place, share));
    })
}

fn no_place() -> PistonRefusal {
    let message = "there are as many WebSockets as this server has places for";
    let problem = Problem::new(Code::Busy, message, "try again in a second");
    PistonRefusal::from(Problem { retry_after: Some(Duration::from_secs(1)), ..problem })
}

/// What a client says. Fields of an `init` are read by their own means.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Said {
    r#type: Shallow,
    stream: Shallow,
    data: Shallow,
    signal: Shallow,
}

/// What is said to a client.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Told<'a> {
    Runtime {
        language: &'a str,
        version: &'a str,
    },
    Stage {
        stage: StageName,
    },
    Data {
        stream: StreamName,
        data: String,
    },
    Exit {
        stage: StageName,
        #[serde(flatten)]
        ending: Ending,
    },
    Error {
        message: &'a str,
    },
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
enum StageName {
    Compile,
    Run,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
enum StreamName {
    Stdout,
    Stderr,
}

/// Why a session ends.
#[derive(Debug)]
enum Closing {
    Completed,
    AlreadyInitialized,
    InitTimeout,
    Notified(String),
    NotYetInitialized,
    OnlyStdin,
    InvalidSignal,
    /// The client is gone, or takes nothing: there is nobody to tell.
    Gone,
}

/// A job that runs.
struct Running<'a> {
    run: Run,
    runs: &'a Runs,
    caller: &'a Caller,
    /// Whether its language has a compiler.
    compiled: bool,
}

/// A client, and what it costs to wait for it.
struct Client {
    socket: WebSocket,
    patience: Duration,
}

impl Client {
    /// From the first message to the end of the job. Leaving it early cancels the job.
    async fn session(&mut self, app: &App, caller: &Caller) -> Result<(), Closing> {
        let asked = tokio::time::timeout(INIT_TIMEOUT, self.init()).await;
        let asked = asked.unwrap_or(Err(Closing::InitTimeout))?;
        let (runtime, job) = prepare(app, caller, asked).await?;
        let (stdin, reader) = stdin::pipe();
        let Job { request, local } = job;
        let local = Local { stdin: Some(Box::new(reader)), ..local };
        let run = app.runs.start_with(caller, request, local).await.map_err(PistonRefusal::from)?;
        run.decided_within(app.config.approval_wait).await.map_err(PistonRefusal::from)?;
        let version = runtime.version.to_string();
        self.tell(&Told::Runtime { language: name_of(runtime.language), version: &version }).await?;
        let job = Running { run, runs: &app.runs, caller, compiled: runtime.language.is_compiled() };
        self.attend(job, &stdin).await
    }

    async fn init(&mut self) -> Result<Asked, Closing> {
        loop {
            let text = self.hear().await?;
            match Said::read(&text)?.kind() {
                "init" => return read(&text),
                "data" | "signal" => return Err(Closing::NotYetInitialized),
                _ => {}
            }
        }
    }

    /// Passes on what the program says to the client, and what the client says to the program.
    async fn attend(&mut self, mut job: Running<'_>, stdin: &Writer) -> Result<(), Closing> {
        let mut voice = Voice::default();
        loop {
            tokio::select! {
                event = job.run.next() => match event {
                    RunEvent::Pulling(_) | RunEvent::Network(_) => {}
                    RunEvent::Started(started) => {
                        // A program that was there already counts as one that was compiled at once.
                        if job.compiled && started.stage() == Stage::Run {
                            self.begin(Stage::Compile, &mut voice).await?;
                        }
                        self.begin(started.stage(), &mut voice).await?;
                    }
                    RunEvent::NextStage => self.begin(Stage::Run, &mut voice).await?,
                    RunEvent::Output(stream, bytes) => {
                        let data = voice.text(stream).push(&bytes);
                        self.say(stream, data).await?;
                    }
                    RunEvent::Ended(end) => return self.conclude(end, voice).await,
                },
                said = self.hear() => obey(&Said::read(&said?)?, &job, stdin)?,
            }
        }
    }

    async fn begin(&mut self, stage: Stage, voice: &mut Voice) -> Result<(), Closing> {
        if voice.stage.is_some() {
            for stream in [Stream::Stdout, Stream::Stderr] {
                let rest = voice.text(stream).finish();
                self.say(stream, rest).await?;
            }
            self.tell(&Told::Exit { stage: StageName::Compile, ending: Ending::SUCCESS }).await?;
        }
        voice.stage = Some(stage.into());
        self.tell(&Told::Stage { stage: stage.into() }).await
    }

    /// What the engine did not tell live, and how it ended.
    async fn conclude(&mut self, end: End, mut voice: Voice) -> Result<(), Closing> {
        let finished = end.map_err(PistonRefusal::from)?;
        let report = &finished.report;
        for (stream, captured) in [(Stream::Stdout, &report.stdout), (Stream::Stderr, &report.stderr)] {
            let text = voice.text(stream);
            let rest = text.push(&captured.after_head()) + &text.finish();
            self.say(stream, rest).await?;
        }
        self.tell(&Told::Exit { stage: report.stage.into(), ending: ending(report.outcome) }).await
    }

    async fn say(&mut self, stream: Stream, data: String) -> Result<(), Closing> {
        if data.is_empty() {
            return Ok(());
        }
        let stream = match stream {
            Stream::Stdout => StreamName::Stdout,
            Stream::Stderr => StreamName::Stderr,
        };
        self.tell(&Told::Data { stream, data }).await
    }

    async fn tell(&mut self, told: &Told<'_>) -> Result<(), Closing> {
        let json = serde_json::to_string(told).map_err(|_| Closing::Gone)?;
        self.send(Message::text(json)).await
    }

    async fn send(&mut self, message: Message) -> Result<(), Closing> {
        match tokio::time::timeout(self.patience, self.socket.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Closing::Gone),
        }
    }

    /// The next thing that the client says. May be dropped before it is done; nothing is lost by that.
    async fn hear(&mut self) -> Result<String, Closing> {
        loop {
            match self.socket.recv().await {
                Some(Ok(Message::Text(text))) => return Ok(text.as_str().to_owned()),
                Some(Ok(Message::Binary(bytes))) => return Ok(String::from_utf8_lossy(&bytes).into_owned()),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Close(_)) | Err(_)) | None => return Err(Closing::Gone),
            }
        }
    }

    /// Says why, and waits a moment for the client to have heard it.
    async fn close(mut self, why: Closing) {
        if let Closing::Notified(message) = &why
            && self.tell(&Told::Error { message }).await.is_err()
        {
            return;
        }
        let Some((code, reason)) = why.code() else { return };
        let frame = CloseFrame { code, reason: reason.into() };
        if self.send(Message::Close(Some(frame))).await.is_ok() {
            let heard = async { while self.socket.recv().await.is_some_and(|said| said.is_ok()) {} };
            let _ = tokio::time::timeout(CLOSING, heard).await;
        }
    }
}

/// What a session has said so far.
#[derive(Debug, Default)]
struct Voice {
    stage: Option<StageName>,
    stdout: Text,
    stderr: Text,
}

impl Voice {
    fn text(&mut self, stream: Stream) -> &mut Text {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }
}

impl Said {
    fn read(text: &str) -> Result<Said, Closing> {
        read(text)
    }

    fn kind(&self) -> &str {
        self.r#type.text().unwrap_or_default()
    }
}

fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Closing> {
    belljar_wire::cost(text.as_bytes()).map_err(PistonRefusal::from)?;
    serde_json::from_str(text)
        .map_err(|fault| Closing::Notified(format!("the message cannot be read: {fault}")))
}

/// Whether a message can be read, and one that wants a job says which.
pub(super) fn understands(text: &str) -> bool {
    let Ok(said) = Said::read(text) else { return false };
    said.kind() != "init" || read::<Asked>(text).is_ok_and(|asked| asked.draft().is_ok())
}

/// Does what the client says to a job that runs.
fn obey(said: &Said, job: &Running<'_>, stdin: &Writer) -> Result<(), Closing> {
    match said.kind() {
        "init" => Err(Closing::AlreadyInitialized),
        "data" if said.stream.text() != Some("stdin") => Err(Closing::OnlyStdin),
        "data" => write(said, stdin),
        "signal" => signal(said.signal.text().unwrap_or_default(), job),
        _ => Ok(()),
    }
}

fn write(said: &Said, stdin: &Writer) -> Result<(), Closing> {
    let Some(data) = said.data.text() else {
        return Err(Closing::Notified("data is required as a string".to_owned()));
    };
    let full = |stdin::Full| Closing::Notified("the program does not read what is written to it".to_owned());
    stdin.write(data.as_bytes().to_vec()).map_err(full)
}

/// A box is ended as a whole; no single signal gets in.
fn signal(name: &str, job: &Running<'_>) -> Result<(), Closing> {
    if !signals::exists(name) {
        return Err(Closing::InvalidSignal);
    }
    if !signals::ends(name) {
        let message = format!("{name} cannot be delivered here: only a signal that ends the job can");
        return Err(Closing::Notified(message));
    }
    // It fails only if the run has ended by itself.
    let _ = job.runs.cancel(job.caller, job.run.id.as_str());
    Ok(())
}

impl Closing {
    fn code(&self) -> Option<(u16, &'static str)> {
        Some(match self {
            Closing::AlreadyInitialized => (4000, "Already Initialized"),
            Closing::InitTimeout => (4001, "Initialization Timeout"),
            Closing::Notified(_) => (4002, "Notified Error"),
            Closing::NotYetInitialized => (4003, "Not yet initialized"),
            Closing::OnlyStdin => (4004, "Can only write to stdin"),
            Closing::InvalidSignal => (4005, "Invalid signal"),
            Closing::Completed => (4999, "Job Completed"),
            Closing::Gone => return None,
        })
    }
}

impl From<PistonRefusal> for Closing {
    fn from(refusal: PistonRefusal) -> Closing {
        Closing::Notified(refusal.message)
    }
}

impl From<Stage> for StageName {
    fn from(stage: Stage) -> StageName {
        match stage {
            Stage::Compile => StageName::Compile,
            Stage::Run => StageName::Run,
        }
    }
}
