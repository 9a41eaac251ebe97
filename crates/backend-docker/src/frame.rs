//! The protocol between belljar and PID 1 of a container, over the container's standard streams.
//!
//! Belljar sends what to run, the program's standard input, and the order to stop. PID 1 sends the program's output and
//! how it ended. Whatever comes from inside may have been written by hostile code, so every length is checked against
//! [`LONGEST`] before anything is stored, and a message can affect only its own run.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The longest content of a frame from inside, and of every piece of a stream in either direction.
pub(crate) const LONGEST: usize = 64 << 10;
/// The longest order: all arguments and variables of a request, with some room.
const LONGEST_ORDER: usize = 16 << 20;
/// How much standard input may be in flight.
pub(crate) const STDIN_WINDOW: usize = 64 << 10;
const HEAD: usize = 5;

/// What to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StartProgram {
    /// The words of the program's command.
    pub(crate) command: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: String,
    /// The code's file, if the program is to be parked.
    pub(crate) gate: Option<String>,
}

impl StartProgram {
    /// The same, to be parked.
    pub(crate) fn with_gate(self, source: &str) -> StartProgram {
        StartProgram { gate: Some(source.to_owned()), ..self }
    }
}

/// The files and limits of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Supply {
    /// The files of the disk, the code's own first. Their contents follow, one after the other.
    pub(crate) files: Vec<GivenFile>,
    pub(crate) cpu_ms: Option<u64>,
    pub(crate) collect: Option<Collect>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GivenFile {
    pub(crate) path: String,
    pub(crate) executable: bool,
    pub(crate) length: u64,
}

/// What to collect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Collect {
    /// The directory that is searched.
    pub(crate) from: String,
    pub(crate) patterns: Vec<String>,
    pub(crate) source: String,
    pub(crate) bytes: u64,
    pub(crate) names: u64,
}

/// A runtime to look for, and what to ask it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Question {
    pub(crate) programs: Vec<String>,
    pub(crate) ask: Vec<Vec<String>>,
    pub(crate) env: Vec<(String, String)>,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Found {
    /// The program that answered, if one did.
    pub(crate) program: Option<String>,
    /// Its answer, or the output of the last one that failed.
    pub(crate) text: String,
}

/// What PID 1 sees of its environment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Surroundings {
    pub(crate) uid: u32,
    pub(crate) capabilities: String,
    pub(crate) no_new_privs: bool,
    /// Whether a filter was active at the start; it has loaded its own since.
    pub(crate) filtered: bool,
    /// Whether its own filter is active.
    pub(crate) own_filter: bool,
    pub(crate) root_read_only: bool,
    /// Network interfaces other than the loopback.
    pub(crate) interfaces: Vec<String>,
    pub(crate) disk_bytes: u64,
    /// How many files the disk can have; zero if their number is not limited.
    pub(crate) disk_files: u64,
    /// Whether `/tmp` and `/dev/shm` are on that same disk.
    pub(crate) one_disk: bool,
    pub(crate) memory_limit: Option<u64>,
    pub(crate) pids_limit: Option<u64>,
    pub(crate) cpu_quota: bool,
    /// How many processes it could have at a time when it tried.
    pub(crate) processes: u64,
    /// Whether it could have a terminal when it tried.
    pub(crate) terminals: bool,
    /// The names and values of those settings (`extras.rs`) that its network has.
    pub(crate) settings: Vec<(String, String)>,
}

/// How it ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct End {
    pub(crate) code: Option<u8>,
    pub(crate) signal: Option<u8>,
    pub(crate) cpu_us: u64,
    pub(crate) memory_peak: u64,
    pub(crate) out_of_memory: bool,
    pub(crate) cpu_exhausted: bool,
}

/// A file that is being sent; its content follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeavingFile {
    pub(crate) path: String,
    pub(crate) size: u64,
}

/// To PID 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Told {
    StartProgram(StartProgram),
    Supply(Supply),
    /// A piece of the contents of the files.
    Content(Vec<u8>),
    Stdin(Vec<u8>),
    StdinEnd,
    Kill,
    Question(Question),
    /// Report your environment.
    Look,
}

/// From PID 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    /// The runtime has booted and waits for its code.
    Parked,
    Started,
    /// It failed: why, and the errno.
    Failed(i32, String),
    Ended(End),
    File(LeavingFile),
    Content(Vec<u8>),
    /// Nothing follows.
    Done,
    /// How much standard input has been read.
    Taken(u32),
    Found(Found),
    Seen(Surroundings),
}

impl Told {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Told::StartProgram(order) => with_json(1, order),
            Told::Supply(supply) => with_json(2, supply),
            Told::Content(bytes) => with_bytes(3, bytes),
            Told::Stdin(bytes) => with_bytes(4, bytes),
            Told::StdinEnd => with_bytes(5, &[]),
            Told::Kill => with_bytes(6, &[]),
            Told::Question(question) => with_json(7, question),
            Told::Look => with_bytes(8, &[]),
        }
    }

    fn decode(tag: u8, body: &[u8]) -> io::Result<Told> {
        Ok(match tag {
            1 => Told::StartProgram(from_json(body)?),
            2 => Told::Supply(from_json(body)?),
            3 => Told::Content(body.to_vec()),
            4 => Told::Stdin(body.to_vec()),
            5 => Told::StdinEnd,
            6 => Told::Kill,
            7 => Told::Question(from_json(body)?),
            8 => Told::Look,
            _ => return Err(garbled("an unknown frame")),
        })
    }

    /// The next one, from a blocking stream; `None` at its end.
    pub(crate) fn read(from: &mut impl Read) -> io::Result<Option<Told>> {
        let mut head = [0; HEAD];
        match from.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            other => other?,
        }
        let mut body = vec![0; length(&head, LONGEST_ORDER)?];
        from.read_exact(&mut body)?;
        Told::decode(head[0], &body).map(Some)
    }

    /// Takes the first one off a buffer, if it is complete.
    pub(crate) fn take(buffer: &mut Vec<u8>) -> io::Result<Option<Told>> {
        take(buffer, LONGEST_ORDER)?.map(|(tag, body)| Told::decode(tag, &body)).transpose()
    }
}

impl Said {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Said::Stdout(bytes) => with_bytes(1, bytes),
            Said::Stderr(bytes) => with_bytes(2, bytes),
            Said::Parked => with_bytes(3, &[]),
            Said::Started => with_bytes(4, &[]),
            Said::Failed(errno, text) => with_json(5, &(errno, text)),
            Said::Ended(end) => with_json(7, end),
            Said::File(file) => with_json(8, file),
            Said::Content(bytes) => with_bytes(9, bytes),
            Said::Done => with_bytes(10, &[]),
            Said::Taken(count) => with_bytes(11, &count.to_le_bytes()),
            Said::Found(found) => with_json(12, found),
            Said::Seen(seen) => with_json(13, seen),
        }
    }

    fn decode(tag: u8, body: Vec<u8>) -> io::Result<Said> {
        Ok(match tag {
            1 => Said::Stdout(body),
            2 => Said::Stderr(body),
            3 => Said::Parked,
            4 => Said::Started,
            5 => from_json(&body).map(|(errno, text)| Said::Failed(errno, text))?,
            7 => Said::Ended(from_json(&body)?),
            8 => Said::File(from_json(&body)?),
            9 => Said::Content(body),
            10 => Said::Done,
            11 => Said::Taken(u32::from_le_bytes(body.try_into().map_err(|_| garbled("a count of bytes"))?)),
            12 => Said::Found(from_json(&body)?),
            13 => Said::Seen(from_json(&body)?),
            _ => return Err(garbled("an unknown frame")),
        })
    }

    /// Takes the first one off a buffer, if it is complete.
    pub(crate) fn take(buffer: &mut Vec<u8>) -> io::Result<Option<Said>> {
        take(buffer, LONGEST)?.map(|(tag, body)| Said::decode(tag, body)).transpose()
    }

    pub(crate) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        to.write_all(&self.encode())?;
        to.flush()
    }
}

fn take(buffer: &mut Vec<u8>, longest: usize) -> io::Result<Option<(u8, Vec<u8>)>> {
    let Some(head) = buffer.first_chunk::<HEAD>().copied() else { return Ok(None) };
    let end = HEAD + length(&head, longest)?;
    if buffer.len() < end {
        return Ok(None);
    }
    let body = buffer[HEAD..end].to_vec();
    buffer.drain(..end);
    Ok(Some((head[0], body)))
}

fn length(head: &[u8; HEAD], longest: usize) -> io::Result<usize> {
    let [_, a, b, c, d] = *head;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    if length <= longest { Ok(length) } else { Err(garbled("a frame that is too long")) }
}

fn with_bytes(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    [&[tag][..], &length.to_le_bytes(), body].concat()
}

fn with_json(tag: u8, body: &impl Serialize) -> Vec<u8> {
    // Text, numbers and lists of both can always be written as JSON.
    with_bytes(tag, &serde_json::to_vec(body).unwrap_or_default())
}

fn from_json<T: DeserializeOwned>(body: &[u8]) -> io::Result<T> {
    serde_json::from_slice(body).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn garbled(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_heard() {
        let end = End { signal: Some(9), cpu_us: 7, ..End::default() };
        let all = [
            Said::Stdout(b"\0\xffout".to_vec()),
            Said::Failed(2, "no such file".into()),
            Said::Ended(end),
            Said::Taken(70_000),
            Said::Done,
        ];
        let mut buffer: Vec<u8> = all.iter().flat_map(Said::encode).collect();
        let rest = buffer.split_off(buffer.len() - 3);
        for said in &all[..4] {
            assert_eq!(Said::take(&mut buffer).unwrap().as_ref(), Some(said));
        }
        assert_eq!(Said::take(&mut buffer).unwrap(), None, "it is not all there yet");
        buffer.extend(rest);
        assert_eq!(Said::take(&mut buffer).unwrap(), Some(Said::Done));
    }

    #[test]
    fn a_length_beyond_the_longest_is_refused_before_anything_is_kept() {
        let mut claim = vec![1, 0xff, 0xff, 0xff, 0x7f];
        assert!(Said::take(&mut claim).is_err());
        assert!(Told::read(&mut [1, 0xff, 0xff, 0xff, 0x7f].as_slice()).is_err());
        let mut unknown = with_bytes(77, b"x");
        assert!(Said::take(&mut unknown).is_err());
    }
}
