//! R33 to R35: memory of the kernel's that a program can make it hold. SECURITY.md has a row for each kind.
//!
//! What is charged to the box ends at its memory limit. What is not charged must be refused, or bounded in another way.
//! Each attempt is for four times the limit at most; the control shows, with little, that the attempt works outside.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use belljar_conformance::{Cell, Observation, RunResult, User, installed, observations, outside, promise};

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
        ("headers", libc::ENOPROTOOPT),
        ("file-locks", libc::EINVAL),
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
    if !host_bounds_timestamps_by_namespace() {
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

/// R34: more than a look at the counters every 20 ms would notice in time
fn netlink_sockets_are_handed_out_a_few_at_a_time(cell: &Cell) {
    let crowd = "i=0; while [ $i -lt 40 ]; do HOLD=1 ./probe exhaust netlink 900 & i=$((i+1)); done; wait";
    let before = kernel_mebibytes();
    let cell = cell.with_probe().limit("memory", "32M").limit("timeout", "20s");
    let (ran, most) = while_watching(kernel_mebibytes, || cell.run(crowd));
    assert!(ran.oom_killed && ran.exit_code == 137, "killed over its limit: {ran:?}");
    // Without a bound it is ten times as much. All tests share the counter.
    assert!(most - before < 32 + 2 * BEYOND, "{before} MiB before, {most} MiB at most");
}

promise!(netlink_sockets_are_handed_out_a_few_at_a_time; needs memory);

/// R34: more threads than there are sockets at a time: they wait, and none fails
fn many_threads_can_list_network_interfaces(cell: &Cell) {
    let code = r"
import socket, threading
seen = []
def look():
    for _ in range(5): seen.append(socket.if_nameindex())
threads = [threading.Thread(target=look) for _ in range(90)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(seen), all('lo' in dict((name, number) for number, name in one) for one in seen))";
    let cell = cell.language("python").limit("pids", "120").limit("timeout", "60s");
    assert_eq!(cell.run(code).ok(), "450 True\n");
}

promise!(many_threads_can_list_network_interfaces; cold: "it takes more threads than a parked box may have");

/// R34
fn record_locks_are_counted(cell: &Cell) {
    let control = &outside("exhaust locks 20000")[0];
    assert_eq!((control.ret, control.errno), (20_000, 0), "the control: outside they are had");
    let few = cell.probe("exhaust locks 2000");
    assert_eq!((few.ret, few.errno), (2000, 0), "the control: an honest program has them");
    // 400 MB of them.
    let crowd = "i=0; while [ $i -lt 10 ]; do HOLD=1 ./probe exhaust locks 200000 & i=$((i+1)); done; wait";
    let before = kernel_mebibytes();
    let cell = cell.with_probe().limit("memory", "64M").limit("timeout", "60s");
    let (ran, most) = while_watching(kernel_mebibytes, || cell.run(crowd));
    assert!(ran.oom_killed && ran.exit_code == 137, "killed over its limit: {ran:?}");
    assert!(most - before < LIMIT + 2 * BEYOND, "{before} MiB before, {most} MiB at most");
}

promise!(record_locks_are_counted; needs memory);

/// R34: of a process without its first thread, and of a program that nobody may read, which an ordinary user cannot look at
fn locks_that_hide_are_counted(cell: &Cell) {
    let control = &outside("exhaust orphan-locks 20000")[0];
    assert_eq!((control.ret, control.errno), (20_000, 0), "the control: outside they are had");
    let cell = cell.with_probe().limit("memory", "64M").limit("timeout", "60s");
    let few = cell.run("cp probe hidden && chmod 111 hidden && ./probe exhaust orphan-locks 2000 && ./hidden exhaust locks 2000");
    let had: Vec<_> = observations(few.ok()).iter().map(|one| (one.ret, one.errno)).collect();
    assert_eq!(had, [(2000, 0); 2], "the control: an honest program has them");
    let mut attempts = vec!["HOLD=1 ./probe exhaust orphan-locks 150000"];
    // SECURITY.md says that an ordinary user does not count these natively.
    if cell.has_an_image() || cell.user() == User::Root {
        attempts.push("cp probe hidden; chmod 111 hidden; HOLD=1 ./hidden exhaust locks 150000");
    }
    for attempt in attempts {
        let ran = cell.run(attempt);
        assert!(ran.oom_killed && ran.exit_code == 137, "{attempt}: killed over its limit: {ran:?}");
    }
}

promise!(locks_that_hide_are_counted; needs memory);

/// R34: the control of what counts them: databases lock files for a moment, many thousand times
fn locks_that_are_released_do_not_count(cell: &Cell) {
    let code = r"
import fcntl, os
file = open('file', 'w')
for place in range(30_000):
    fcntl.lockf(file, fcntl.LOCK_EX, 1, place)
    fcntl.lockf(file, fcntl.LOCK_UN, 1, place)
    if place % 10 == 0: fcntl.flock(file, fcntl.LOCK_EX); fcntl.flock(file, fcntl.LOCK_UN)
child = os.fork()
fcntl.lockf(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if child == 0 else 0))
print('locked', flush=True)";
    let cell = cell.language("python").limit("timeout", "60s");
    let ran = cell.run(code);
    assert!(ran.exit_code == 0 && ran.stdout.starts_with("locked\n"), "{ran:?}");
}

promise!(locks_that_are_released_do_not_count);

/// R35
fn ports_can_be_shared_so_many_times(cell: &Cell) {
    let control = &outside("exhaust ports 500")[0];
    assert_eq!((control.ret, control.errno), (500, 0), "the control: outside they are had");
    let few = cell.probe("exhaust ports 500");
    assert_eq!((few.ret, few.errno), (500, 0), "the control: an honest program has them");
    let crowd = "i=0; while [ $i -lt 20 ]; do ./probe exhaust ports 900 & i=$((i+1)); done; wait";
    let ran = cell.with_probe().limit("timeout", "60s").run(crowd);
    let seen = observations(ran.ok());
    assert_eq!(seen.iter().map(|one| one.ret).sum::<i64>(), 4096, "{seen:?}");
    assert!(seen.iter().all(|one| one.ret == 900 || one.errno == libc::ENOMEM), "{seen:?}");
}

promise!(ports_can_be_shared_so_many_times; needs syscalls);

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
    let (ran, most) =
        while_watching(tcp_mebibytes, || try_to_hold(cell, &format!("unaccepted {FOUR_TIMES}")).0);
    assert!(ran.oom_killed && ran.exit_code == 137, "killed over its limit: {ran:?}");
    // All tests share the counter.
    assert!(most - before < LIMIT + BEYOND, "{before} MiB before, {most} MiB at most");
}

promise!(connections_that_nobody_accepts_are_counted; needs memory);

/// Also returns the most that a counter of the host has shown meanwhile.
fn while_watching<T>(counter: fn() -> i64, work: impl FnOnce() -> T) -> (T, i64) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut most = 0;
            while !done.load(Ordering::Relaxed) {
                most = most.max(counter());
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

/// What the kernel holds for its own objects and cannot give back, on the whole host, in MiB.
fn kernel_mebibytes() -> i64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("SUnreclaim:")).expect("the kernel says so");
    line.trim().trim_end_matches(" kB").parse::<i64>().unwrap() >> 10
}

/// Whether a network namespace has its own setting: a new one shows only what is its own.
fn host_bounds_timestamps_by_namespace() -> bool {
    let setting = "/proc/sys/net/core/tstamp_allow_data";
    let shown = std::process::Command::new("unshare").args(["--net", "cat", setting]).output();
    shown.is_ok_and(|shown| shown.status.success())
}
