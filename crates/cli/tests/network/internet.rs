//! The internet: hosts at a few addresses, and the name server of all of them.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::world::ip;

/// The host that most rules allow, and two others: one of the same kind, and one in a private network.
pub(crate) const GOOD: &str = "93.184.216.34";
pub(crate) const OTHER: &str = "93.184.216.35";
pub(crate) const DENIED: &str = "93.184.216.36";
pub(crate) const PRIVATE: &str = "10.9.0.5";
/// A host with a real TLS server (`clients.rs`).
pub(crate) const SECURE: &str = "93.184.216.40";
pub(crate) const SIX: &str = "2606:2800::34";

/// Names and their addresses. A second one is the answer to every later question.
const NAMES: &[(&str, &[&str])] = &[
    ("good.test", &[GOOD]),
    ("same.test", &[GOOD]),
    ("other.test", &[OTHER]),
    ("api.test", &["93.184.216.37"]),
    ("same-api.test", &["93.184.216.37"]),
    ("wrong.test", &["93.184.216.38"]),
    ("self.test", &["93.184.216.39"]),
    ("unset.test", &["93.184.216.39"]),
    ("denied.test", &[GOOD]),
    ("a.wild.test", &[GOOD]),
    ("wild.test", &[GOOD]),
    ("private.test", &[PRIVATE]),
    ("loop.test", &["127.0.0.1"]),
    ("metadata.test", &["169.254.169.254"]),
    ("host.test", &[crate::world::HOST]),
    ("rebind.test", &[GOOD, "127.0.0.1"]),
    ("secure.test", &[SECURE]),
    ("twin.test", &[SECURE]),
    ("six.test", &[SIX]),
    ("mapped.test", &["::ffff:127.0.0.1"]),
];

/// Serves until the host has gone.
pub(crate) fn serve() -> ExitCode {
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    ip("link set lo up");
    for address in [GOOD, OTHER, DENIED, SECURE, PRIVATE] {
        ip(&format!("addr add {address}/24 dev up1"));
    }
    ip(&format!("-6 addr add {SIX}/64 dev up1 nodad"));
    ip("link set up1 up");
    ip("route add default via 93.184.216.1");
    for address in [GOOD, OTHER, DENIED, PRIVATE, SIX] {
        let address: IpAddr = address.parse().unwrap();
        for port in [80, 8080, 443] {
            listen(address, port, answer_requests);
        }
        // As soon as something has arrived, all of it is sent back.
        listen(address, 7, |stream| drop(std::io::copy(&mut &stream, &mut &stream)));
        listen(address, 9, reset);
        listen(address, 10, |mut stream| drop(stream.read_to_end(&mut Vec::new())));
        listen(address, 11, count);
        listen(address, 12, end_first);
        listen(address, 13, |mut stream| drop(write!(stream, "{}", READ.load(Ordering::SeqCst))));
        listen(address, 15, |mut stream| drop(write!(stream, "{}", ASKED.load(Ordering::SeqCst))));
        let counting = TcpListener::bind((address, 14)).unwrap();
        std::thread::spawn(move || number(&counting));
        for port in [5000, 443] {
            let socket = UdpSocket::bind((address, port)).unwrap();
            std::thread::spawn(move || echo_datagrams(&socket));
        }
    }
    #[cfg(feature = "secrets")]
    let _servers = {
        for address in [crate::api::API, crate::api::WRONG, crate::api::SELF] {
            ip(&format!("addr add {address}/24 dev up1"));
        }
        listen(crate::api::API.parse().unwrap(), 80, answer_requests);
        crate::api::serve()
    };
    let names = UdpSocket::bind((GOOD, 53)).unwrap();
    std::thread::spawn(move || answer_questions(&names));
    println!("serving");
    let _ = std::io::stdin().read_line(&mut String::new());
    ExitCode::SUCCESS
}

fn listen(address: IpAddr, port: u16, serve: fn(TcpStream)) {
    let listener = TcpListener::bind(SocketAddr::new(address, port)).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
}

/// Answers every request with what was asked of whom. What is no request, such as TLS, is answered as well.
fn answer_requests(mut stream: TcpStream) {
    let own = stream.local_addr().unwrap().ip();
    let mut held = Vec::new();
    let mut buffer = [0; 65536];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        held.extend_from_slice(&buffer[..length]);
        if held[0] == 22 {
            let _ = stream.write_all(b"handshake seen");
            return;
        }
        while let Some(end) = held.windows(4).position(|end| end == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&held[..end]).into_owned();
            held.drain(..end + 4);
            if answer_request(&mut stream, own, &head).is_err() {
                return;
            }
        }
    }
}

fn answer_request(stream: &mut TcpStream, own: IpAddr, head: &str) -> std::io::Result<()> {
    let path = head.split(' ').nth(1).unwrap_or_default();
    let host = head.lines().find_map(|line| line.strip_prefix("Host: ").or(line.strip_prefix("host: ")));
    let host = host.unwrap_or("-");
    if let Some(to) = path.strip_prefix("/redirect/") {
        return write!(stream, "HTTP/1.1 302 Found\r\nLocation: http://{to}/\r\nContent-Length: 0\r\n\r\n");
    }
    if let Some(bytes) = path.strip_prefix("/bytes/") {
        let mut left: usize = bytes.parse().unwrap_or_default();
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {left}\r\n\r\n")?;
        let piece = vec![b'x'; 65536];
        while left > 0 {
            let length = left.min(piece.len());
            stream.write_all(&piece[..length])?;
            left -= length;
        }
        return Ok(());
    }
    let body = format!("{own} {host} {path}\n");
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn reset(stream: TcpStream) {
    let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
}

/// Tells each connection how many there were before it.
fn number(listener: &TcpListener) {
    for (number, stream) in listener.incoming().enumerate() {
        let _ = stream.and_then(|mut stream| write!(stream, "{number}"));
    }
}

/// Reads to the end, then says how much that was.
fn count(mut stream: TcpStream) {
    let read = std::io::copy(&mut stream, &mut std::io::sink()).unwrap_or_default();
    let _ = write!(stream, "{read}");
}

/// How much the last connection brought that [`end_first`] served.
static READ: AtomicU64 = AtomicU64::new(0);

/// Sends nothing, says so, and reads so slowly that everything on the way is full when the other end closes.
fn end_first(mut stream: TcpStream) {
    let _ = stream.shutdown(Shutdown::Write);
    let (mut read, mut buffer) = (0, vec![0; 32 << 10]);
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        read += length as u64;
        std::thread::sleep(Duration::from_millis(5));
    }
    READ.store(read, Ordering::SeqCst);
}

pub(crate) fn echo_datagrams(socket: &UdpSocket) {
    let mut buffer = [0; 65536];
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        let _ = socket.send_to(&buffer[..length], from);
    }
}

/// How many questions the name server got.
static ASKED: AtomicU64 = AtomicU64::new(0);

fn answer_questions(socket: &UdpSocket) {
    let asked: Vec<AtomicUsize> = NAMES.iter().map(|_| AtomicUsize::new(0)).collect();
    let mut buffer = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        let question = &buffer[..length];
        ASKED.fetch_add(1, Ordering::SeqCst);
        let _ = socket.send_to(&answer_question(question, &asked), from);
    }
}

fn answer_question(question: &[u8], asked: &[AtomicUsize]) -> Vec<u8> {
    let (mut name, mut at) = (Vec::new(), 12);
    while question[at] != 0 {
        let end = at + 1 + usize::from(question[at]);
        name.push(String::from_utf8_lossy(&question[at + 1..end]).into_owned());
        at = end;
    }
    let (name, kind) = (name.join("."), question[at + 2]);
    let section = &question[12..at + 5];
    let known = NAMES.iter().position(|(known, _)| *known == name);
    let address = known.map(|known| {
        let addresses = NAMES[known].1;
        // Each kind is asked for once by every program.
        let time = if kind == 1 { asked[known].fetch_add(1, Ordering::Relaxed) } else { 0 };
        addresses[time.min(addresses.len() - 1)].parse::<IpAddr>().unwrap()
    });
    let data = match address {
        Some(IpAddr::V4(address)) if kind == 1 => address.octets().to_vec(),
        Some(IpAddr::V6(address)) if kind == 28 => address.octets().to_vec(),
        _ => Vec::new(),
    };
    let (code, count) = (if known.is_some() { 0 } else { 3 }, u8::from(!data.is_empty()));
    let mut answer = [&question[..2], &[0x81, 0x80 | code, 0, 1, 0, count, 0, 0, 0, 0], section].concat();
    if count > 0 {
        answer.extend([0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 5, 0, u8::try_from(data.len()).unwrap()]);
        answer.extend(data);
    }
    answer
}
