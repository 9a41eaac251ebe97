//! One program in one container, from its start to the last byte, the counters and the files.

use std::io;
use std::time::Duration;

use belljar_core::Field;
use belljar_core::backend::{BackendError, BoxFuture, Ending, Event, Execution, Finished, Stream};
use belljar_core::outcome::{CollectedFile, Start};
use belljar_core::request::Stdin;
use tokio::time::{Instant, sleep_until, timeout};

use crate::api::{ApiError, within};
use crate::container::{Container, ContainerState};
use crate::errors;
use crate::frame::{End, LeavingFile, Said, Told};
use crate::init::WRITING_FILES;
use crate::init_channel::InitChannel;

/// How long PID 1 of a container may take to report that the program runs.
pub(crate) const BUILD_LIMIT: Duration = Duration::from_secs(60);
/// How long it may take to report that killed processes are dead, before the engine is asked.
const KILL_PATIENCE: Duration = Duration::from_secs(2);
/// How long the engine may take to kill a container.
const ENGINE_PATIENCE: Duration = Duration::from_secs(4);
/// How long it may take to say how a container ended. It may learn the reason late.
const STATE_PATIENCE: Duration = Duration::from_secs(15);
/// How long after it was to be killed a program can still report that it has exited by itself.
const LATEST_EXIT: Duration = Duration::from_secs(1);
/// How long collecting the files may take.
const COLLECTING: Duration = Duration::from_secs(60);
const SIGKILL: u8 = 9;
/// The exit code that an engine reports for a killed container.
const KILLED: i64 = 137;
const READ_STATE: &str = "find out how the container ended";

/// What is known about a run when it begins.
#[derive(Clone)]
pub(crate) struct Terms {
    pub(crate) runtime: String,
    pub(crate) image: String,
    pub(crate) collects: bool,
    /// The limit, which is the peak of whatever it has killed.
    pub(crate) memory: u64,
    /// Whether the runtime has its own kernel, which the memory limit kills as a whole, including PID 1.
    pub(crate) own_kernel: bool,
    /// The most bytes of collected files.
    pub(crate) collected: u64,
    pub(crate) max_files: u64,
}

impl Terms {
    /// The end of a container that was killed together with its PID 1, if the reason is known: the memory limit; or it
    /// has its own kernel, for which the engine may never learn that it was the memory limit.
    fn killed(&self, state: &ContainerState) -> Option<End> {
        let as_a_whole = self.own_kernel && state.exit_code == KILLED;
        let memory_peak = if state.oom_killed { self.memory } else { 0 };
        let end =
            End { signal: Some(SIGKILL), out_of_memory: state.oom_killed, memory_peak, ..End::default() };
        (state.oom_killed || as_a_whole).then_some(end)
    }
}

/// Why nobody knows how the program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// The connection to the daemon broke.
    Gone,
    /// The daemon does not answer.
    Silent,
    /// The daemon answers that the container was killed, and not by us.
    Stopped,
}

impl Loss {
    /// What to tell the caller.
    fn message(self) -> &'static str {
        match self {
            Loss::Gone => "The Docker daemon went away while the program ran; its output may be incomplete",
            Loss::Silent => "The Docker daemon does not answer; the program is killed as soon as it does",
            Loss::Stopped => "The container was killed from outside, as when the Docker daemon is stopped",
        }
    }
}

/// A program that runs in a container.
pub(crate) struct DockerExecution {
    container: Container,
    channel: InitChannel,
    terms: Terms,
    start: Start,
    /// If there is a pool: why no container of it was used.
    cold_reason: Option<&'static str>,
    output: Vec<u8>,
    ended: Option<End>,
    /// Set if the caller does not get the end.
    lost: Option<Loss>,
    /// When it was to be killed.
    killed: Option<Instant>,
    killed_hard: bool,
}

impl DockerExecution {
    /// Waits until the program runs.
    pub(crate) async fn begin(
        container: Container,
        mut channel: InitChannel,
        terms: Terms,
        start: Start,
    ) -> Result<DockerExecution, BackendError> {
        let mut ended = None;
        match timeout(BUILD_LIMIT, channel.hear()).await {
            Ok(Ok(Some(Said::Started))) => {}
            Ok(Ok(Some(Said::Failed(errno, doing)))) => return Err(failure(errno, &doing)),
            // The limit was too low to start anything: that is how it ended.
            Ok(Ok(None)) => ended = Some(no_room(&container, &terms, channel.last_words()).await?),
            Ok(Ok(Some(other))) => return Err(out_of_turn(&other)),
            Ok(Err(error)) => return Err(lost(error)),
            Err(_) => {
                return Err(errors::setup("start the program: it took too long")(
                    io::ErrorKind::TimedOut.into(),
                ));
            }
        }
        Ok(DockerExecution {
            container,
            channel,
            terms,
            start,
            cold_reason: None,
            output: Vec::new(),
            ended,
            lost: None,
            killed: None,
            killed_hard: false,
        })
    }

    /// This run could not take a container of the pool, for this reason.
    pub(crate) fn because(self, cold_reason: Option<&'static str>) -> DockerExecution {
        DockerExecution { cold_reason, ..self }
    }

    /// Feeds the program's standard input as it is read.
    pub(crate) fn feed(&self, stdin: Stdin) -> io::Result<()> {
        self.channel.feed(stdin)
    }

    async fn happens(&mut self) -> Result<News, BackendError> {
        if self.ended.is_some() {
            return Ok(News::Ended);
        }
        loop {
            let patience = self.killed.filter(|_| !self.killed_hard).map(|at| at + KILL_PATIENCE);
            let heard = tokio::select! {
                heard = self.channel.hear() => heard,
                () = until(patience) => {
                    self.killed_hard = true;
                    if let Err(error) = within(ENGINE_PATIENCE, self.container.kill()).await
                        && !error.is_an_answer()
                    {
                        return Ok(self.lose(Loss::Silent));
                    }
                    continue;
                }
            };
            match heard {
                Ok(Some(Said::Stdout(bytes))) => return Ok(self.wrote(Stream::Stdout, bytes)),
                Ok(Some(Said::Stderr(bytes))) => return Ok(self.wrote(Stream::Stderr, bytes)),
                Ok(Some(Said::Ended(end))) => {
                    self.ended = Some(self.in_time(end));
                    return Ok(News::Ended);
                }
                Ok(None) => return self.post_mortem().await,
                Ok(Some(Said::Failed(errno, doing))) => return Err(failure(errno, &doing)),
                Ok(Some(other)) => return Err(out_of_turn(&other)),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(lost(error)),
                Err(_) => return Ok(self.lose(Loss::Gone)),
            }
        }
    }

    /// The caller does not get the end of the run, but keeps what there was by now.
    fn lose(&mut self, why: Loss) -> News {
        self.lost = Some(why);
        self.ended = Some(killed_end());
        News::Ended
    }

    /// A program may exit by itself while it is being killed. If that is reported later than a kill takes, the engine
    /// was not there in between, and the time limit has ended the run.
    fn in_time(&self, end: End) -> End {
        let late = self.killed.is_some_and(|at| at.elapsed() > LATEST_EXIT);
        if late && end.signal.is_none() { End { signal: Some(SIGKILL), code: None, ..end } } else { end }
    }

    fn wrote(&mut self, stream: Stream, bytes: Vec<u8>) -> News {
        self.output = bytes;
        News::Output(stream)
    }

    /// PID 1 died without a report: the memory limit or we have killed it, or the engine is gone.
    async fn post_mortem(&mut self) -> Result<News, BackendError> {
        let killed_by_us = self.killed.is_some();
        let state = match within(STATE_PATIENCE, settled_state(&self.container, killed_by_us)).await {
            Err(error) if !error.is_an_answer() => return Ok(self.lose(Loss::Gone)),
            other => other.map_err(errors::api(READ_STATE))?,
        };
        match self.terms.killed(&state) {
            None if killed_by_us => self.ended = Some(killed_end()),
            None if state.exit_code == KILLED => return Ok(self.lose(Loss::Stopped)),
            Some(end) => self.ended = Some(end),
            None => {
                return Err(errors::unavailable(
                    format!(
                        "the container was stopped from outside ({} {})",
                        state.exit_code,
                        self.channel.last_words()
                    ),
                    "check whether the daemon was stopped, and read its log: systemctl status docker".into(),
                ));
            }
        }
        Ok(News::Ended)
    }

    async fn close(mut self) -> Result<Finished, BackendError> {
        if let Some(why) = self.lost {
            match why {
                Loss::Gone | Loss::Silent => self.container.abandon(),
                Loss::Stopped => self.container.remove_or_abandon(ENGINE_PATIENCE).await,
            }
            let (ending, cpu, files) = (Ending::Lost(why.message()), Duration::ZERO, Vec::new());
            return Ok(Finished {
                ending,
                cpu,
                memory_peak: 0,
                files,
                left_out: 0,
                changes: None,
                network: None,
            });
        }
        let end = self.ended.unwrap_or(killed_end());
        let files = match self.terms.collects {
            true => timeout(COLLECTING, self.take_files()).await.map_err(|_| {
                errors::setup("collect the files: it took too long")(io::ErrorKind::TimedOut.into())
            })??,
            false => Vec::new(),
        };
        let DockerExecution { container, channel, start, terms, .. } = self;
        match start {
            // A run that did not wait for its container to be made need not wait for its removal either.
            Start::Warm => drop(container),
            Start::Cold | Start::Zygote => {
                let gone = container.part(channel, terms.own_kernel).await;
                gone.map_err(errors::api("remove the container"))?;
            }
        }
        let cpu = Duration::from_micros(end.cpu_us);
        Ok(Finished {
            ending: ending(&end),
            cpu,
            memory_peak: end.memory_peak,
            files,
            left_out: 0,
            changes: None,
            network: None,
        })
    }

    /// The files were named and written by hostile code: their number and size are limited.
    async fn take_files(&mut self) -> Result<Vec<CollectedFile>, BackendError> {
        let mut intake = Intake::new(self.terms.collected, self.terms.max_files);
        loop {
            match self.channel.hear().await.map_err(lost)? {
                Some(Said::File(file)) => intake.begin(file),
                Some(Said::Content(bytes)) => intake.add(&bytes),
                Some(Said::Done) | None => return Ok(intake.finish()),
                Some(other) => return Err(out_of_turn(&other)),
            }
            .map_err(|why| errors::setup("collect files")(io::Error::other(why)))?;
        }
    }
}

impl Execution for DockerExecution {
    fn start(&self) -> Start {
        self.start
    }

    fn cold_reason(&self) -> Option<&str> {
        self.cold_reason
    }

    fn runtime(&self) -> &str {
        &self.terms.runtime
    }

    fn image(&self) -> Option<&str> {
        Some(&self.terms.image)
    }

    fn next_event(&mut self) -> BoxFuture<'_, Result<Event<'_>, BackendError>> {
        Box::pin(async {
            Ok(match self.happens().await? {
                News::Output(stream) => Event::Output(stream, &self.output),
                News::Ended => Event::Ended,
            })
        })
    }

    fn kill(&mut self) {
        self.channel.tell(&Told::Kill);
        self.killed.get_or_insert_with(Instant::now);
    }

    fn finish(self: Box<Self>) -> BoxFuture<'static, Result<Finished, BackendError>> {
        Box::pin(self.close())
    }
}

enum News {
    Output(Stream),
    Ended,
}

/// Files that are being received.
struct Intake {
    files: Vec<CollectedFile>,
    /// How much of the last one is missing.
    missing: u64,
    room: u64,
    names: u64,
}

impl Intake {
    fn new(room: u64, names: u64) -> Intake {
        Intake { files: Vec::new(), missing: 0, room, names }
    }

    fn begin(&mut self, file: LeavingFile) -> Result<(), &'static str> {
        let has_room = file.size <= self.room && self.names > 0;
        if self.missing > 0 || !has_room {
            return Err("there are more or larger files than the box can hold");
        }
        self.room -= file.size;
        self.names -= 1;
        self.missing = file.size;
        self.files.push(CollectedFile { path: file.path, content: Vec::new() });
        Ok(())
    }

    fn add(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        let left = self.missing.checked_sub(bytes.len() as u64);
        let (Some(left), Some(file)) = (left, self.files.last_mut()) else {
            return Err("a file is longer than its announced size");
        };
        self.missing = left;
        file.content.extend_from_slice(bytes);
        Ok(())
    }

    /// The last one may have been cut off.
    fn finish(mut self) -> Vec<CollectedFile> {
        if self.missing > 0 {
            self.files.pop();
        }
        self.files
    }
}

fn ending(end: &End) -> Ending {
    match (end.out_of_memory, end.cpu_exhausted, end.signal) {
        (true, _, _) => Ending::OutOfMemory,
        (_, true, _) => Ending::CpuTimeExhausted,
        (_, _, Some(signal)) => Ending::Signaled(signal),
        (_, _, None) => Ending::Exited(end.code.unwrap_or_default()),
    }
}

fn killed_end() -> End {
    End { signal: Some(SIGKILL), ..End::default() }
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// How a container ended whose streams have ended: the engine notices a moment later that it is dead, and may learn the
/// reason only after that.
async fn settled_state(container: &Container, killed_by_us: bool) -> Result<ContainerState, ApiError> {
    let patience = Instant::now() + KILL_PATIENCE;
    loop {
        let state = container.state().await?;
        let unexplained = state.exit_code == KILLED && !state.oom_killed && !killed_by_us;
        if !(state.running || unexplained) {
            return Ok(state);
        }
        if Instant::now() > patience {
            let late = unexplained && said_too_late(container).await;
            return Ok(ContainerState { oom_killed: state.oom_killed || late, ..state });
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whether the engine reported, after it had recorded the end, that memory was the reason.
async fn said_too_late(container: &Container) -> bool {
    matches!(timeout(KILL_PATIENCE, container.ran_out_of_memory()).await, Ok(Ok(true)))
}

/// PID 1 is gone before it reported that the program runs.
async fn no_room(container: &Container, terms: &Terms, last_words: String) -> Result<End, BackendError> {
    let state = settled_state(container, false).await.map_err(errors::api(READ_STATE))?;
    if let Some(end) = terms.killed(&state) {
        return Ok(end);
    }
    let observed = format!("its PID 1 ended with {} {} {last_words}", state.exit_code, state.error);
    Err(errors::setup("start the program in its container")(io::Error::other(observed)))
}

fn failure(errno: i32, doing: &str) -> BackendError {
    if doing == WRITING_FILES && errno == rustix::io::Errno::NOSPC.raw_os_error() {
        return BackendError::Unusable {
            field: Field::Files,
            message: "the run's files do not fit into --disk".into(),
            hint: "raise the limit with --disk".into(),
        };
    }
    let source = if errno == 0 {
        io::Error::other("no reason was given")
    } else {
        io::Error::from_raw_os_error(errno)
    };
    let doing: String = doing.chars().take(200).collect::<String>().escape_debug().to_string();
    BackendError::Setup {
        step: doing,
        hint: "check that the image has what the language needs".into(),
        source,
    }
}

fn lost(error: io::Error) -> BackendError {
    errors::unavailable(
        format!("the connection to the container was lost: {error}"),
        "check that the daemon runs, and read its log: systemctl status docker".into(),
    )
}

fn out_of_turn(said: &Said) -> BackendError {
    let said = format!("{said:?}").chars().take(80).collect::<String>();
    errors::setup("read a message from PID 1 of the container")(io::Error::other(said))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaving(size: u64) -> LeavingFile {
        LeavingFile { path: "a".into(), size }
    }

    #[test]
    fn no_more_is_taken_in_than_the_disk_could_hold() {
        let mut intake = Intake::new(10, 2);
        intake.begin(leaving(6)).unwrap();
        intake.add(b"123").unwrap();
        intake.add(b"456").unwrap();
        assert!(intake.add(b"7").is_err(), "longer than its announced size");
        assert!(intake.begin(leaving(5)).is_err(), "beyond the disk");
        intake.begin(leaving(0)).unwrap();
        assert!(intake.begin(leaving(0)).is_err(), "one name too many");
        assert_eq!(intake.finish().len(), 2);
    }

    #[test]
    fn a_file_that_was_cut_off_is_not_handed_on() {
        let mut intake = Intake::new(10, 2);
        intake.begin(leaving(6)).unwrap();
        intake.add(b"123").unwrap();
        assert!(intake.finish().is_empty());
    }

    #[test]
    fn only_a_separate_kernel_is_killed_without_a_reason() {
        let terms = |own_kernel| Terms {
            runtime: String::new(),
            image: String::new(),
            collects: false,
            memory: 7,
            own_kernel,
            collected: 1,
            max_files: 1,
        };
        let state =
            |oom_killed| ContainerState { oom_killed, exit_code: KILLED, ..ContainerState::default() };
        let known = |own_kernel, oom_killed| {
            terms(own_kernel).killed(&state(oom_killed)).map(|end| (ending(&end), end.memory_peak))
        };
        assert_eq!(known(false, true), Some((Ending::OutOfMemory, 7)));
        assert_eq!(known(true, true), Some((Ending::OutOfMemory, 7)));
        assert_eq!(known(true, false), Some((Ending::Signaled(9), 0)));
        assert_eq!(known(false, false), None);
    }

    #[test]
    fn the_first_reason_that_holds_is_the_ending() {
        let killed = End { signal: Some(9), ..End::default() };
        assert_eq!(ending(&killed), Ending::Signaled(9));
        assert_eq!(ending(&End { out_of_memory: true, ..killed }), Ending::OutOfMemory);
        assert_eq!(ending(&End { cpu_exhausted: true, ..killed }), Ending::CpuTimeExhausted);
        assert_eq!(ending(&End { code: Some(3), ..End::default() }), Ending::Exited(3));
    }
}
