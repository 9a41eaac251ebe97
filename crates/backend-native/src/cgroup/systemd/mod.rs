//! Asks a systemd manager for a scope: a cgroup that systemd promises to leave alone, which is the only way for an
//! ordinary user to get one.
//!
//! One method call is all that is needed, so this implements just that part of the D-Bus protocol (the specification's
//! "Message Protocol" and "Authentication Protocol") instead of bringing a client library and its async runtime. What
//! comes from the other side is bounded and every length is checked: the socket is the user's own, but its path came
//! from the environment.

mod dbus;

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use self::dbus::{Call, Incoming, Marshal, Reply, malformed};

/// The manager of this user, wherever it can be reached.
#[derive(Debug, Clone)]
pub(super) struct Manager {
    sockets: Vec<Socket>,
    uid: u32,
}

/// A socket that may lead to the manager.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Socket {
    /// The manager itself.
    Private(PathBuf),
    /// The user's message bus, where we must say `Hello` first.
    Bus(PathBuf),
}

/// A unit to be made around this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scope {
    /// Ends in `.scope`.
    pub(super) unit: String,
    /// The process that moves into it.
    pub(super) pid: u32,
}

/// Why there is no scope.
#[derive(Debug, thiserror::Error)]
pub(super) enum ScopeError {
    #[error("no systemd user manager answers at any of {tried}")]
    NoManager {
        tried: String,
        #[source]
        source: io::Error,
    },
    #[error("the systemd user manager refused the scope {unit}: {name}: {message}")]
    Refused { unit: String, name: String, message: String },
}

/// How long each answer may take.
const PATIENCE: Duration = Duration::from_secs(1);

impl Manager {
    /// The manager of the user `uid`; `runtime_dir` is the `XDG_RUNTIME_DIR` of that user, if there is one.
    pub(super) fn of_user(uid: u32, runtime_dir: Option<&Path>) -> Manager {
        let mut dirs: Vec<PathBuf> = runtime_dir.map(Path::to_owned).into_iter().collect();
        let usual = PathBuf::from(format!("/run/user/{uid}"));
        if !dirs.contains(&usual) {
            dirs.push(usual);
        }
        let both =
            |dir: PathBuf| [Socket::Private(dir.join("systemd/private")), Socket::Bus(dir.join("bus"))];
        Manager { sockets: dirs.into_iter().flat_map(both).collect(), uid }
    }

    /// Has the scope made. When this returns, the job has been accepted; `/proc/self/cgroup` shows soon afterwards that
    /// the process has moved.
    pub(super) fn start(&self, scope: &Scope) -> Result<(), ScopeError> {
        let mut silence = None;
        for socket in &self.sockets {
            match socket.ask(self.uid, scope) {
                Ok(Reply::Done) => return Ok(()),
                Ok(Reply::Error { name, message }) => {
                    return Err(ScopeError::Refused { unit: scope.unit.clone(), name, message });
                }
                Err(error) => silence = Some(error),
            }
        }
        let tried: Vec<_> = self.sockets.iter().map(|socket| socket.path().display().to_string()).collect();
        let source = silence.unwrap_or_else(|| io::ErrorKind::NotFound.into());
        Err(ScopeError::NoManager { tried: tried.join(", "), source })
    }
}

impl Socket {
    fn path(&self) -> &Path {
        match self {
            Socket::Private(path) | Socket::Bus(path) => path,
        }
    }

    fn ask(&self, uid: u32, scope: &Scope) -> io::Result<Reply> {
        let mut stream = UnixStream::connect(self.path())?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        authenticate(&mut stream, uid)?;
        if let Socket::Bus(_) = self {
            let reply = call(&mut stream, HELLO, &hello())?;
            let Reply::Done = reply else { return Ok(reply) };
        }
        call(&mut stream, START, &start_transient_unit(scope))
    }
}

/// The serial numbers of our two calls.
const HELLO: u32 = 1;
const START: u32 = 2;

/// `EXTERNAL`: the kernel tells the other side who we are; we only name the uid, as its digits in hexadecimal.
fn authenticate(stream: &mut UnixStream, uid: u32) -> io::Result<()> {
    let uid: String = uid.to_string().bytes().map(|digit| format!("{digit:02x}")).collect();
    stream.write_all(format!("\0AUTH EXTERNAL {uid}\r\n").as_bytes())?;
    let answer = read_line(stream)?;
    if !answer.starts_with(b"OK ") {
        let answer = String::from_utf8_lossy(&answer).trim().escape_debug().to_string();
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("authentication answered '{answer}'"),
        ));
    }
    stream.write_all(b"BEGIN\r\n")
}

/// One line, read byte by byte because what follows it belongs to the next protocol.
fn read_line(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    const LONGEST: usize = 1024;
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        line.extend(byte);
        if line.len() > LONGEST {
            return Err(malformed("a line that is too long"));
        }
    }
    Ok(line)
}

fn call(stream: &mut UnixStream, serial: u32, message: &[u8]) -> io::Result<Reply> {
    /// Signals of the manager may come before the answer; a manager that sends nothing else must not block us for ever.
    const MOST_MESSAGES: usize = 64;
    stream.write_all(message)?;
    for _ in 0..MOST_MESSAGES {
        if let Some(reply) = Incoming::read(stream)?.reply_to(serial)? {
            return Ok(reply);
        }
    }
    Err(malformed("too many messages without an answer"))
}

fn hello() -> Vec<u8> {
    let call = Call {
        path: "/org/freedesktop/DBus",
        interface: "org.freedesktop.DBus",
        member: "Hello",
        destination: "org.freedesktop.DBus",
        signature: "",
    };
    call.message(HELLO, &Marshal::default())
}

/// `StartTransientUnit(name, mode, properties, auxiliary units)`, org.freedesktop.systemd1(5).
fn start_transient_unit(scope: &Scope) -> Vec<u8> {
    let mut body = Marshal::default();
    body.string(&scope.unit);
    body.string("fail");
    body.array(8, |properties| {
        properties.property("PIDs", "au", |value| value.array(4, |pids| pids.u32(scope.pid)));
        properties.property("Delegate", "b", |value| value.u32(1));
        // The unit disappears with its processes, even after a failure: nothing is left for `reset-failed`.
        properties.property("CollectMode", "s", |value| value.string("inactive-or-failed"));
        let description = format!("Belljar boxes of process {}", scope.pid);
        properties.property("Description", "s", |value| value.string(&description));
    });
    body.array(8, |_no_auxiliary_units| {});
    let call = Call {
        path: "/org/freedesktop/systemd1",
        interface: "org.freedesktop.systemd1.Manager",
        member: "StartTransientUnit",
        destination: "org.freedesktop.systemd1",
        signature: "ssa(sv)a(sa(sv))",
    };
    call.message(START, &body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::thread::JoinHandle;

    // Reference bytes from another implementation of the protocol: jeepney 0.9's `new_method_call(..)`,
    // `new_method_return(..)` and `new_error(..)`, each with `.serialise(serial)`.
    const REFERENCE_START: &str = "6c010001d000000002000000b600000001016f00190000002f6f72672f667265656465736b746f702f73797374656d64310000000000000002017300200000006f72672e667265656465736b746f702e73797374656d64312e4d616e616765720000000000000000030173001200000053746172745472616e7369656e74556e697400000000000006017300180000006f72672e667265656465736b746f702e73797374656d643100000000000000000801670010737361287376296128736128737629290000001600000062656c6c6a61722d343234322d3737372e73636f70650000040000006661696c0000000096000000000000000400000050494473000261750000000004000000921000000800000044656c65676174650001620001000000000000000b000000436f6c6c6563744d6f6465000173000012000000696e6163746976652d6f722d6661696c65640000000000000b0000004465736372697074696f6e00017300001d00000042656c6c6a617220626f786573206f662070726f6365737320343234320000000000000000000000";
    const REFERENCE_HELLO: &str = "6c01000100000000010000006d00000001016f00150000002f6f72672f667265656465736b746f702f4442757300000002017300140000006f72672e667265656465736b746f702e4442757300000000030173000500000048656c6c6f00000006017300140000006f72672e667265656465736b746f702e4442757300000000";
    const REFERENCE_RETURN: &str = "6c02000125000000090000000f000000050175000200000008016700016f0000200000002f6f72672f667265656465736b746f702f73797374656d64312f6a6f622f313700";
    const REFERENCE_ERROR: &str = "6c030001300000000a0000003f00000004017300230000006f72672e667265656465736b746f702e73797374656d64312e556e69744578697374730000000000050175000200000008016700017300002b000000556e69742062656c6c6a61722d343234322d3737372e73636f706520616c7265616479206578697374732e00";

    fn scope() -> Scope {
        Scope { unit: "belljar-4242-777.scope".into(), pid: 4242 }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn bytes(hex: &str) -> Vec<u8> {
        hex.as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    #[test]
    fn the_calls_are_byte_for_byte_those_of_another_implementation() {
        assert_eq!(hex(&start_transient_unit(&scope())), REFERENCE_START);
        assert_eq!(hex(&hello()), REFERENCE_HELLO);
    }

    #[test]
    fn answers_of_another_implementation_are_understood() {
        let incoming = |hex: &str| Incoming::read(&mut bytes(hex).as_slice()).unwrap();
        assert_eq!(incoming(REFERENCE_RETURN).reply_to(2).unwrap(), Some(Reply::Done));
        assert_eq!(incoming(REFERENCE_RETURN).reply_to(1).unwrap(), None);
        assert_eq!(
            incoming(REFERENCE_ERROR).reply_to(2).unwrap(),
            Some(Reply::Error {
                name: "org.freedesktop.systemd1.UnitExists".into(),
                message: "Unit belljar-4242-777.scope already exists.".into(),
            })
        );
    }

    #[test]
    fn a_message_that_is_cut_short_or_lies_about_its_lengths_is_an_error_and_not_a_crash() {
        let whole = bytes(REFERENCE_ERROR);
        for end in 0..whole.len() {
            assert!(Incoming::read(&mut &whole[..end]).is_err(), "{end}");
        }
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = whole.clone();
                changed[at] = value;
                // Whatever the result, parsing ends.
                let _ = Incoming::read(&mut changed.as_slice()).and_then(|message| message.reply_to(2));
            }
        }
    }

    /// A manager that knows exactly one conversation, and checks every byte of it.
    fn manager(dir: &Path, socket: &str, exchange: Vec<(Vec<u8>, Vec<u8>)>) -> JoinHandle<()> {
        let path = dir.join(socket);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let listener = UnixListener::bind(path).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for (expected, answer) in exchange {
                let mut heard = vec![0; expected.len()];
                stream.read_exact(&mut heard).unwrap();
                assert_eq!(String::from_utf8_lossy(&heard), String::from_utf8_lossy(&expected));
                stream.write_all(&answer).unwrap();
            }
            assert_eq!(stream.read(&mut [0]).unwrap(), 0, "more was said than the protocol has");
        })
    }

    fn sasl() -> (Vec<u8>, Vec<u8>) {
        // 1000, digit by digit.
        (b"\0AUTH EXTERNAL 31303030\r\n".to_vec(), b"OK 1234deadbeef\r\n".to_vec())
    }

    fn start(answer: &str) -> (Vec<u8>, Vec<u8>) {
        ([b"BEGIN\r\n".as_slice(), &bytes(REFERENCE_START)].concat(), bytes(answer))
    }

    fn directory(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("belljar-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// The manager of the test and no other, whichever user runs it.
    fn at(dir: &Path) -> Manager {
        let mut manager = Manager::of_user(1000, Some(dir));
        manager.sockets.retain(|socket| socket.path().starts_with(dir));
        manager
    }

    #[test]
    fn the_directory_of_the_session_comes_before_the_usual_one_and_the_manager_before_the_bus() {
        let paths = |dir: Option<&str>| {
            let manager = Manager::of_user(1000, dir.map(Path::new));
            manager.sockets.iter().map(|socket| socket.path().display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(paths(None), ["/run/user/1000/systemd/private", "/run/user/1000/bus"]);
        assert_eq!(paths(Some("/run/user/1000")), paths(None));
        assert_eq!(
            paths(Some("/x")),
            ["/x/systemd/private", "/x/bus", "/run/user/1000/systemd/private", "/run/user/1000/bus"]
        );
    }

    #[test]
    fn the_private_socket_is_asked_without_an_introduction() {
        let dir = directory("private");
        let thread = manager(&dir, "systemd/private", vec![sasl(), start(REFERENCE_RETURN)]);
        at(&dir).start(&scope()).unwrap();
        thread.join().unwrap();
        std::fs::remove_dir_all(dir).unwrap();
    }

    /// Where the answer says which call it is for.
    const REPLY_SERIAL_AT: usize = 20;

    fn bus_exchange(answers: Vec<u8>) -> Vec<(Vec<u8>, Vec<u8>)> {
        let hello = [b"BEGIN\r\n".as_slice(), &bytes(REFERENCE_HELLO)].concat();
        let mut welcome = bytes(REFERENCE_RETURN);
        welcome[REPLY_SERIAL_AT] = 1;
        vec![sasl(), (hello, welcome), (bytes(REFERENCE_START), answers)]
    }

    #[test]
    fn on_the_bus_we_say_hello_first_and_pass_over_what_is_not_our_answer() {
        let dir = directory("bus");
        // An answer to another call comes before ours.
        let mut answers = [bytes(REFERENCE_RETURN), bytes(REFERENCE_RETURN)].concat();
        answers[REPLY_SERIAL_AT] = 99;
        let exchange = bus_exchange(answers);
        let thread = manager(&dir, "bus", exchange);
        at(&dir).start(&scope()).unwrap();
        thread.join().unwrap();
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_refusal_carries_the_managers_words() {
        let dir = directory("refusal");
        let thread = manager(&dir, "systemd/private", vec![sasl(), start(REFERENCE_ERROR)]);
        let error = at(&dir).start(&scope()).unwrap_err();
        assert!(
            error.to_string().contains("UnitExists: Unit belljar-4242-777.scope already exists."),
            "{error}"
        );
        thread.join().unwrap();
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_rejected_authentication_leads_to_the_bus_and_an_absent_manager_is_an_error() {
        let dir = directory("rejected");
        let rejected = (sasl().0, b"REJECTED EXTERNAL\r\n".to_vec());
        let private = manager(&dir, "systemd/private", vec![rejected]);
        let bus = manager(&dir, "bus", bus_exchange(bytes(REFERENCE_RETURN)));
        at(&dir).start(&scope()).unwrap();
        private.join().unwrap();
        bus.join().unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        let error = at(&dir).start(&scope()).unwrap_err();
        assert!(matches!(error, ScopeError::NoManager { .. }), "{error}");
    }
}
