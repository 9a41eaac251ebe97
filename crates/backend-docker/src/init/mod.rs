//! PID 1 of every container: this same binary, which starts the program, forwards its input and output, reaps, counts,
//! and at the end kills what is left and hands out files. The engine's own `init` does a part of that; exact wait
//! statuses and files that outlive the program need the rest.
//!
//! It has the user of the code and no rights that the code does not have. Nothing outside trusts it: it speaks for the
//! code, and the engine enforces the limits. It is protected from the code nevertheless, so that the reported endings
//! are true: signals from its own namespace do not reach it, its memory cannot be read, and it runs under the same
//! system call filter.

mod confine;
mod counters;
mod gate;
pub(crate) mod ground;
mod question;
mod tree;

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Stdin, Stdout, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;

use belljar_core::request::Glob;

use crate::frame::{
    Collect, GivenFile, LONGEST, LeavingFile, Said, StartProgram, Supply, Surroundings, Told,
};
use crate::inside::SANDBOX;
use belljar_jail::seccomp::Listener;
use ground::OWN;
use tree::Tree;

/// The path of this binary in a container.
pub(crate) const PROGRAM: &str = "/.belljar/init";
/// The word that makes it the first process of a network instead of a program's.
pub(crate) const GATE: &str = "gate";
/// The step that fails when there is no room for the files of a run.
pub(crate) const WRITING_FILES: &str = "write the run's files";
/// The name of the code's file until it replaces the pipe.
const ARRIVING: &str = ".arriving";

/// Whether this process was started as PID 1 of a container, or by it.
#[must_use]
pub fn is_init(arg0: Option<&std::ffi::OsStr>) -> bool {
    arg0.is_some_and(|name| name == PROGRAM)
}

/// Runs as PID 1 of a container until its program has ended.
#[must_use]
pub fn init() -> ExitCode {
    if !rustix::process::getpid().is_init() {
        return confine::started_by_the_first();
    }
    if std::env::args_os().nth(1).is_some_and(|word| word == GATE) {
        return gate::keep();
    }
    let mut line = Line { from: io::stdin(), to: io::stdout() };
    match ground::lay().and_then(|(seen, listener)| serve(&mut line, &seen, listener)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If nothing reads this any more, the container is ended anyway.
            let _ = line.say(&Said::Failed(error.raw_os_error().unwrap_or_default(), error.to_string()));
            ExitCode::FAILURE
        }
    }
}

/// The connection to belljar.
struct Line {
    from: Stdin,
    to: Stdout,
}

impl Line {
    fn say(&mut self, said: &Said) -> io::Result<()> {
        said.write(&mut self.to.lock())
    }

    fn hear(&mut self) -> io::Result<Option<Told>> {
        Told::read(&mut Unbuffered(&self.from))
    }
}

/// The standard library must not read ahead, because `poll` would not see that input.
struct Unbuffered<'a>(&'a Stdin);

impl Read for Unbuffered<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::retry_on_intr(|| rustix::io::read(self.0, &mut *buffer))?)
    }
}

fn serve(line: &mut Line, seen: &Surroundings, listener: Option<Listener>) -> io::Result<()> {
    loop {
        match line.hear()? {
            Some(Told::StartProgram(order)) => return conduct(line, &order, listener),
            Some(Told::Question(question)) => {
                let found = question::while_allowing(listener.as_ref(), || question::answer(&question));
                line.say(&Said::Found(found))?;
            }
            Some(Told::Look) => {
                line.say(&Said::Seen(ground::look_closer(seen.clone())))?;
            }
            None => return Ok(()),
            Some(Told::Supply(_) | Told::Content(_) | Told::Stdin(_) | Told::StdinEnd | Told::Kill) => {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
    }
}

/// One program, from its order to its last file.
fn conduct(line: &mut Line, order: &StartProgram, listener: Option<Listener>) -> io::Result<()> {
    let mut tree = Tree::new(order, listener)?;
    if let Some(source) = &order.gate {
        let Some(()) = step(line, "boot the runtime", |_| tree.park(source))? else { return Ok(()) };
        line.say(&Said::Parked)?;
    }
    let Some(supply) = supplied(line)? else { return Ok(()) };
    let code = step(line, WRITING_FILES, |line| take_files(line, order, &supply))?;
    let Some(code) = code else { return Ok(()) };
    let started = step(line, "start the program", |_| tree.start(&code, supply.cpu_ms))?;
    let Some(()) = started else { return Ok(()) };
    line.say(&Said::Started)?;
    let Some(end) = tree.follow(line)? else { return Ok(()) };
    line.say(&Said::Ended(end))?;
    if let Some(collect) = &supply.collect {
        hand_out(line, collect)?;
    }
    line.say(&Said::Done)?;
    // Belljar ends the container, so that output in flight is not cut off.
    while line.hear()?.is_some() {}
    Ok(())
}

/// Performs a step, or reports why it failed.
fn step<T>(
    line: &mut Line,
    what: &str,
    act: impl FnOnce(&mut Line) -> io::Result<T>,
) -> io::Result<Option<T>> {
    match act(line) {
        Ok(done) => Ok(Some(done)),
        Err(error) => {
            line.say(&Said::Failed(error.raw_os_error().unwrap_or_default(), what.to_owned()))?;
            Ok(None)
        }
    }
}

fn supplied(line: &mut Line) -> io::Result<Option<Supply>> {
    match line.hear()? {
        Some(Told::Supply(supply)) => Ok(Some(supply)),
        None => Ok(None),
        Some(_) => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Writes the files of the run as they arrive. Returns the code, if it also goes through a pipe.
fn take_files(line: &mut Line, order: &StartProgram, supply: &Supply) -> io::Result<Vec<u8>> {
    let mut contents = Contents { line, piece: Vec::new() };
    let mut code = Vec::new();
    for (index, file) in supply.files.iter().enumerate() {
        let gate = order.gate.as_deref().filter(|_| index == 0);
        let copy = gate.map(|_| &mut code);
        write_file(&mut contents, file, gate.is_some(), copy)?;
    }
    Ok(code)
}

fn write_file(
    contents: &mut Contents<'_>,
    given: &GivenFile,
    arriving: bool,
    mut copy: Option<&mut Vec<u8>>,
) -> io::Result<()> {
    let place = Path::new(SANDBOX).join(&given.path);
    let path = if arriving { Path::new(SANDBOX).join(ARRIVING) } else { place.clone() };
    if let Some(parent) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    }
    let mode = if given.executable { 0o755 } else { 0o644 };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path)?;
    let mut left = given.length;
    while left > 0 {
        let piece = contents.next(left)?;
        file.write_all(&piece)?;
        left -= piece.len() as u64;
        if let Some(copy) = copy.as_deref_mut() {
            copy.extend_from_slice(&piece);
        }
    }
    if arriving { std::fs::rename(path, place) } else { Ok(()) }
}

/// The contents of the files, which arrive in pieces that do not match the files' ends.
struct Contents<'a> {
    line: &'a mut Line,
    piece: Vec<u8>,
}

impl Contents<'_> {
    fn next(&mut self, most: u64) -> io::Result<Vec<u8>> {
        if self.piece.is_empty() {
            self.piece = match self.line.hear()? {
                Some(Told::Content(piece)) if !piece.is_empty() => piece,
                _ => return Err(io::ErrorKind::UnexpectedEof.into()),
            };
        }
        let end = self.piece.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        let rest = self.piece.split_off(end);
        Ok(std::mem::replace(&mut self.piece, rest))
    }
}

/// All processes are dead, so nothing changes. One file at a time: there may be no room for more.
fn hand_out(line: &mut Line, asked: &Collect) -> io::Result<()> {
    let patterns = Glob::parse_all(&asked.patterns).map_err(io::Error::other)?;
    let wanted = belljar_host::collect::Wanted {
        patterns: &patterns,
        source: &asked.source,
        hidden: Some(OWN),
        bytes: asked.bytes,
        names: asked.names,
    };
    let dir = File::open(&asked.from)?.into();
    let mut outcome = Ok(());
    belljar_host::collect::visit(&dir, &wanted, |path, file, size| {
        if outcome.is_ok() {
            outcome = hand_over(line, LeavingFile { path, size }, file);
        }
    });
    outcome
}

fn hand_over(line: &mut Line, leaving: LeavingFile, mut content: impl Read) -> io::Result<()> {
    let mut left = usize::try_from(leaving.size).unwrap_or(usize::MAX);
    line.say(&Said::File(leaving))?;
    let mut piece = vec![0; LONGEST];
    while left > 0 {
        let room = left.min(LONGEST);
        let count = content.read(&mut piece[..room])?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.say(&Said::Content(piece[..count].to_vec()))?;
        left -= count;
    }
    Ok(())
}
