//! N: the network and other channels.

use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use belljar_conformance::{Cell, Observation, outside, outside_as_root, promise, secret};
use rustix::process::Signal;

/// Below the range of ephemeral ports: other tests hold thousands of those.
const FIXED_PORT: u16 = 27_123;

const UNREACHABLE: &[i32] = &[
    libc::ENETUNREACH,
    libc::EHOSTUNREACH,
    libc::ECONNREFUSED,
    libc::EACCES,
    libc::EPERM,
    libc::EAFNOSUPPORT,
    libc::EADDRNOTAVAIL,
    libc::EINVAL, // a link-local address without an interface
];

/// What each of these attempts came to, all from one box.
fn probe_all(cell: &Cell, attempts: &[String]) -> Vec<Observation> {
    let seen = cell.probes(&attempts.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(seen.len(), attempts.len(), "one attempt, one line: {seen:?}");
    seen
}

/// N1
fn the_network_cannot_be_reached(cell: &Cell) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    receiver.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let datagrams = receiver.local_addr().unwrap().port();
    assert_eq!(outside(&format!("connect 127.0.0.1 {port}"))[0].errno, 0, "the control");
    assert_eq!(outside(&format!("udp 127.0.0.1 {datagrams}"))[0].errno, 0, "the control");
    assert_eq!(receiver.recv(&mut [0; 8]).unwrap(), 1, "the control");
    let mut attempts = Vec::new();
    for host in [
        "127.0.0.1",
        "10.0.0.1",
        "172.17.0.1",
        "192.168.0.1",
        "169.254.169.254",
        "198.51.100.1",
        "::1",
        "fd00::1",
        "fe80::1",
        "2001:db8::1",
    ] {
        attempts.push(format!("connect {host} {port}"));
    }
    for cell in cell.in_each_network() {
        for seen in probe_all(&cell, &attempts) {
            seen.fails_with(UNREACHABLE);
        }
        let hosts = ["127.0.0.1", "198.51.100.53", "169.254.169.254"];
        let _ = probe_all(&cell, &hosts.map(|host| format!("udp {host} {datagrams}")));
        assert!(receiver.recv(&mut [0; 8]).is_err(), "no datagram came out");
    }
}

promise!(the_network_cannot_be_reached; needs network);

/// N1
fn no_interface_but_a_loopback_of_its_own(cell: &Cell) {
    let seen = cell.probe("read /proc/self/net/dev");
    let names: Vec<_> = seen
        .text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name.trim().to_owned())
        .collect();
    assert!(names.is_empty() || names == ["lo"], "{names:?}");
    let ran = cell
        .language("python")
        .run("import socket\ntry: print(socket.getaddrinfo('example.org', 80))\nexcept OSError: print('no')");
    assert_eq!(ran.ok(), "no\n");
}

promise!(no_interface_but_a_loopback_of_its_own; needs network);

/// N1
fn a_program_may_talk_to_itself(cell: &Cell) {
    let code = r"
import socket, threading
s = socket.create_server(('127.0.0.1', 0))
threading.Thread(target=lambda: s.accept()[0].sendall(b'hi')).start()
print(socket.create_connection(s.getsockname()).recv(2))";
    assert_eq!(cell.language("python").run(code).ok(), "b'hi'\n");
}

promise!(a_program_may_talk_to_itself);

/// N2
fn abstract_sockets_of_the_host_do_not_answer(cell: &Cell) {
    let name = secret();
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    assert_eq!(outside(&format!("unix @{name}"))[0].errno, 0, "the control");
    for cell in cell.in_each_network() {
        cell.probe(&format!("unix @{name}")).fails_with(&[libc::ECONNREFUSED, libc::EPERM, libc::EACCES]);
    }
}

promise!(abstract_sockets_of_the_host_do_not_answer; needs network);

/// N4, N5, N6
fn only_plain_families_and_types_of_socket_are_had(cell: &Cell) {
    let socket = |family: i32, kind: i32, protocol: i32| {
        format!("call {} {family} {kind} {protocol}", libc::SYS_socket)
    };
    let families = [
        libc::AF_VSOCK,
        libc::AF_ALG,
        libc::AF_PACKET,
        libc::AF_KEY,
        libc::AF_XDP,
        libc::AF_TIPC,
        libc::AF_RDS,
        libc::AF_BLUETOOTH,
        libc::AF_CAN,
        42, /* QIPCRTR */
        libc::AF_X25,
        libc::AF_APPLETALK,
        libc::AF_IPX,
        libc::AF_PPPOX,
        libc::AF_IB,
    ];
    if let Some(control) = outside_as_root(&socket(libc::AF_PACKET, libc::SOCK_RAW, 0)) {
        assert_eq!(control.errno, 0, "the control: root has a raw socket");
    }
    let kinds = [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_RAW, libc::SOCK_SEQPACKET];
    let mut odd: Vec<_> =
        families.iter().flat_map(|family| kinds.map(|kind| socket(*family, kind, 0))).collect();
    // SOCK_DIAG, XFRM, AUDIT, NETFILTER
    odd.extend([4, 6, 9, 12].map(|protocol| socket(libc::AF_NETLINK, libc::SOCK_RAW, protocol)));
    let raw = [(libc::SOCK_RAW, 1), (libc::SOCK_RAW, 255), (libc::SOCK_DGRAM, 1)];
    let raw = raw.map(|(kind, protocol)| socket(libc::AF_INET, kind, protocol));
    let plain = [
        socket(libc::AF_UNIX, libc::SOCK_STREAM, 0),
        socket(libc::AF_INET, libc::SOCK_STREAM, 0),
        socket(libc::AF_INET6, libc::SOCK_DGRAM, 0),
    ];
    for cell in cell.in_each_network() {
        for seen in probe_all(&cell, &odd) {
            seen.fails_with(&[libc::EAFNOSUPPORT]);
        }
        for seen in probe_all(&cell, &raw) {
            assert_ne!(seen.errno, 0, "no raw socket and no ping: {seen:?}");
        }
        let had = probe_all(&cell, &plain);
        assert!(had.iter().all(|seen| seen.errno == 0), "the control: plain ones are had: {had:?}");
    }
}

promise!(only_plain_families_and_types_of_socket_are_had; needs syscalls);

/// N7
fn two_boxes_do_not_meet(cell: &Cell) {
    let name = secret();
    let port = FIXED_PORT;
    let patient = cell.with_probe().limit("timeout", "200s");
    let mut first = patient.start_plain(&format!("./probe meet @{name} {port} 200"));
    first.wait_for("\"op\":\"meet\"");
    for cell in cell.in_each_network() {
        let second = cell.with_probe().run(&format!(
            "./probe unix @{name}; ./probe connect 127.0.0.1 {port}; ./probe meet @{name} {port} 0"
        ));
        let seen = belljar_conformance::observations(second.ok());
        seen[0].fails_with(&[libc::ECONNREFUSED, libc::EPERM, libc::EACCES]);
        seen[1].fails_with(&[libc::ECONNREFUSED, libc::ENETUNREACH, libc::EACCES]);
        assert_eq!(seen[2].errno, 0, "the same name and port are free: {seen:?}");
        assert!(first.is_running(), "it listened all the time");
    }
    first.signal(Signal::TERM);
    let control = patient.run(&format!(
        "./probe meet @{name} {port} 200 > met & until grep -q meet met; do sleep 0.05; done; \
         cat met; ./probe unix @{name}; ./probe connect 127.0.0.1 {port}"
    ));
    let control = belljar_conformance::observations(control.ok());
    assert_eq!(control.len(), 3, "{control:?}");
    assert!(control.iter().all(|one| one.errno == 0), "the control: within one box they meet: {control:?}");
    assert!(first.finish().stdout_text().contains("\"errno\":0"), "the first did listen");
}

promise!(two_boxes_do_not_meet; needs network);

/// N8
fn a_listening_socket_ends_with_its_run(cell: &Cell) {
    // Where the network is the host's, this test meets itself as another user, in this process or in another.
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let own =
        u16::try_from(std::process::id() % 1000).unwrap() * 4 + NEXT.fetch_add(1, Ordering::Relaxed) % 4;
    let port = FIXED_PORT + 1 + own;
    for cell in cell.in_each_network() {
        let ran = cell.with_probe().run(&format!("./probe meet @{} {port} 0", secret()));
        assert!(ran.ok().contains("\"errno\":0"), "the control: it listened");
        assert!(TcpListener::bind(("127.0.0.1", port)).is_ok(), "the port is free on the host");
    }
}

promise!(a_listening_socket_ends_with_its_run);
