//! R33 to R35: memory of the kernel's that a program can make it hold. SECURITY.md has a row for each kind.
//!
//! What is charged to the box ends at its memory limit. What is not charged must be refused, or bounded in another way.
//! Each attempt is for four times the limit at most; the control shows, with little, that the attempt works outside.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use belljar_conformance::{Cell, Observation, RunResult, installed, observations, outside, promise};

/// The limit in MiB, and what is tried to hold.
const LIMIT: i64 = 64;
const FOUR_TIMES: i64 = 4 * LIMIT;
/// What a box may hold beyond its limit, in MiB.
const BEYOND: i64 = 16;

fn try_to_hold(cell: &Cell, what: &str) -> (RunResult, Option<Observation>) {
    let cell = cell.with_probe().limit("memory", "64M").limit("timeout", "60s");
    let ran = cell.run(&format!("./probe exhaust {what}"));
    let seen = observations(&ran.stdout).into_iter().next();
    (RunResult::clone(&ran), seen)
}

/// R33
fn kernel_memory_that_is_charged_ends_at_the_limit(cell: &Cell) {
    for what in ["pipes", "sockets", "datagrams", "flight", "tables", "watches"] {
        let control = &outside(&format!("exhaust {what} 8"))[0];
        assert!(control.ret >= 7, "the control: outside 8M are had: {control:?}");
        let (ran, seen) = try_to_hold(cell, &format!("{what} {FOUR_TIMES}"));
        // Some run out of descriptors first.
        let ran_out = seen.is_some_and(|seen| seen.ret < LIMIT && seen.errno != 0);
        assert!(ran.oom_killed || ran_out, "{what}: {ran:?}");
        assert!(ran.usage.memory_peak_bytes <= 65 << 20, "{what}: {:?}", ran.usage);
    }
}

promise!(kernel_memory_that_is_charged_ends_at_the_limit; needs memory);

/// R34: error queues, timestamps, corked datagrams, multicast groups
fn kernel_memory_that_is_not_charged_is_not_had(cell: &Cell) {
    let refused = [
        ("corked", libc::ENOPROTOOPT),
        ("groups", libc::ENODEV),
        ("filters", libc::EINVAL),
        // Accepted without effect.
        ("errors", 0),
    ];
    for (what, errno) in refused {
        let control = &outside(&format!("exhaust {what} 5"))[0];
        assert!(control.ret >= 5 && control.errno == 0, "the control: outside 5 are had: {control:?}");
        let seen = cell.probe(&format!("exhaust {what} 5"));
        assert_eq!((seen.ret, seen.errno), (0, errno), "{what}: {seen:?}");
    }
}

promise!(kernel_memory_that_is_not_charged_is_not_had; needs syscalls);

/// R34
fn sent_data_is_not_kept_with_its_time(cell: &Cell) {
    // Otherwise it is not promised: SECURITY.md, "Known weaknesses".
    if cell.has_an_image() || !host_bounds_timestamps_by_namespace() {
        return;
    }
    assert!(outside("exhaust timestamps 3")[0].ret >= 3, "the control: outside root gets the data back");
    let seen = cell.probe("exhaust timestamps 3");
    assert_eq!((seen.ret, seen.errno), (0, 0), "{seen:?}");
}

promise!(sent_data_is_not_kept_with_its_time; needs syscalls);

/// R34: messages that the kernel does not know and sends back
fn netlink_replies_that_nobody_reads_are_counted(cell: &Cell) {
    let control = &outside("exhaust netlink 20")[0];
    assert_eq!((control.ret, control.errno), (20, 0), "the control: outside they are had");
    let cell = cell.with_probe().limit("memory", "32M").limit("timeout", "60s");
    let ran = cell.run("HOLD=1 ./probe exhaust netlink 300");
    assert!(ran.oom_killed && ran.exit_code == 137, "killed over its limit: {ran:?}");
    let few = cell.run("HOLD=1 timeout 1 ./probe exhaust netlink 3");
    // What `timeout` of coreutils and of busybox exit with.
    assert!([124, 143].contains(&few.exit_code), "the control: little is kept: {few:?}");
}

promise!(netlink_replies_that_nobody_reads_are_counted; needs memory);

/// R34: what netlink is there for
fn network_interfaces_can_be_listed(cell: &Cell) {
    let code = "import socket; print([name for _, name in socket.if_nameindex()])";
    assert!(cell.language("python").run(code).ok().contains("'lo'"));
    if installed("node") {
        let code = "console.log(require('os').networkInterfaces().lo[0].address)";
        assert_eq!(cell.language("javascript").run(code).ok(), "127.0.0.1\n");
    }
}

promise!(network_interfaces_can_be_listed);

/// R35: a listener that never accepts, and clients that write and go
fn connections_that_nobody_accepts_are_counted(cell: &Cell) {
    let control = &outside("exhaust unaccepted 16")[0];
    assert!(control.ret >= 16, "the control: outside 16M are had: {control:?}");
    let before = tcp_mebibytes();
    let (ran, most) = while_watching(|| try_to_hold(cell, &format!("unaccepted {FOUR_TIMES}")).0);
    assert!(ran.oom_killed && ran.exit_code == 137, "killed over its limit: {ran:?}");
    // All tests share the counter.
    assert!(most - before < LIMIT + BEYOND, "{before} MiB before, {most} MiB at most");
}

promise!(connections_that_nobody_accepts_are_counted; needs memory);

/// Also returns the most that TCP has held meanwhile, in MiB.
fn while_watching<T>(work: impl FnOnce() -> T) -> (T, i64) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut most = 0;
            while !done.load(Ordering::Relaxed) {
                most = most.max(tcp_mebibytes());
                std::thread::sleep(Duration::from_millis(2));
            }
            most
        });
        let came_to = work();
        done.store(true, Ordering::Relaxed);
        (came_to, watching.join().unwrap())
    })
}

/// R35
fn socket_buffers_are_bounded(cell: &Cell) {
    let control = &outside("exhaust udp 16")[0];
    assert!(control.ret >= 8, "the control: outside they keep it: {control:?}");
    let (ran, seen) = try_to_hold(cell, &format!("udp {FOUR_TIMES}"));
    let kept = seen.map_or(0, |seen| seen.ret);
    assert!(ran.oom_killed || kept <= LIMIT + BEYOND, "{kept} MiB: {ran:?}");
}

promise!(socket_buffers_are_bounded; needs memory);

/// R35: the control of all of these: what an honest program does with sockets
fn honest_sockets_work(cell: &Cell) {
    let code = r"
import asyncio, socket
async def echo(reader, writer):
    writer.write(await reader.read()); await writer.drain(); writer.close()
async def ask(port):
    reader, writer = await asyncio.open_connection('127.0.0.1', port)
    writer.write(b'x' * 100_000); writer.write_eof()
    answer = await reader.read(); writer.close()
    return len(answer) == 100_000
async def main():
    server = await asyncio.start_server(echo, '127.0.0.1', 0)
    port = server.sockets[0].getsockname()[1]
    print(all(await asyncio.gather(*(ask(port) for _ in range(200)))))
asyncio.run(main())
pair = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
pair.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
pair.bind(('127.0.0.1', 0))
pair.sendto(b'hello', pair.getsockname())
print(pair.recv(9), socket.getaddrinfo('127.0.0.1', 80)[0][4][1])";
    assert_eq!(cell.language("python").run(code).ok(), "True\nb'hello' 80\n");
}

promise!(honest_sockets_work);

/// What TCP holds on the whole host, in MiB.
fn tcp_mebibytes() -> i64 {
    let text = std::fs::read_to_string("/proc/net/sockstat").unwrap();
    let line = text.lines().find(|line| line.starts_with("TCP:")).expect("the kernel has TCP");
    let pages: i64 = line.rsplit(' ').next().unwrap().parse().unwrap();
    (pages * 4096) >> 20
}

/// Whether a network namespace has its own setting: a new one shows only what is its own.
fn host_bounds_timestamps_by_namespace() -> bool {
    let setting = "/proc/sys/net/core/tstamp_allow_data";
    let shown = std::process::Command::new("unshare").args(["--net", "cat", setting]).output();
    shown.is_ok_and(|shown| shown.status.success())
}
