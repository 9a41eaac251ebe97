//! What must hold for any bytes at all, one function a target. They panic where it does not.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is how a fuzz target reports")]

use std::alloc::System;
use std::path::{Component, Path};
use std::sync::{Mutex, PoisonError};

use belljar_egress::rehearsal::rehearse;
use belljar_jail::codec;
use belljar_jail::message::{Reply, Request};
use belljar_jail::plan::Plan;
use belljar_server::bodies;
use belljar_wire::RunRequest;
use cap::Cap;

#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);
/// What a body may take whatever its length.
const SLACK: usize = 16 << 20;

/// A plan, or a message of the keeper's, reads back as exactly the bytes that it was read from, or is refused.
pub fn plan(bytes: &[u8]) {
    if let Ok(plan) = codec::decode::<Plan>(bytes) {
        assert_eq!(codec::encode(&plan), bytes, "two plans have the same bytes, or one plan has two");
        // What `--explain` prints must not trip over a source that is not there.
        assert!(plan.to_string().contains("confine"));
    }
    if let Ok(request) = codec::decode::<Request>(bytes) {
        assert_eq!(codec::encode(&request), bytes);
    }
    if let Ok(reply) = codec::decode::<Reply>(bytes) {
        assert_eq!(codec::encode(&reply), bytes);
    }
}

/// A request of JSON becomes a request of the domain or is refused; what gets through stays in the box.
pub fn request(bytes: &[u8]) {
    let Ok(request) = RunRequest::from_json(bytes) else { return };
    let again = belljar_wire::to_json(&request);
    assert_eq!(RunRequest::from_json(again.as_bytes()).expect("our own JSON"), request);

    let Ok(parsed) = belljar_core::request::RunRequest::try_from(request) else { return };
    for file in &parsed.execution.files {
        assert!(stays_inside(file.path.as_str()), "{:?}", file.path);
    }
    assert!(!parsed.execution.code.bytes().contains(&0));
    assert!(parsed.sandbox.limits.pids > 0);
    assert!(parsed.sandbox.limits.memory.get() > 0);
    assert!(parsed.sandbox.limits.disk.get() > 0);
    assert!(!parsed.execution.limits.timeout.is_zero());
    for variable in &parsed.sandbox.env {
        assert!(!variable.name().contains(['=', '\0']) && !variable.value().contains('\0'));
    }
    for arg in &parsed.execution.args {
        assert!(!arg.as_str().contains('\0'));
    }
}

fn stays_inside(path: &str) -> bool {
    let plain = |part| matches!(part, Component::Normal(_));
    !path.is_empty() && !path.contains('\0') && Path::new(path).components().all(plain)
}

/// Whatever a box sends to its gateway: nothing is reached that is not allowed, and what is carried are bytes of the box.
pub fn packets(bytes: &[u8]) {
    let rehearsed = rehearse(bytes);
    assert!(rehearsed.carried.len() <= bytes.len(), "more was carried than was sent");
}

/// No body becomes more in memory than four times its length and 16 MiB, whichever interface reads it.
pub fn bodies(bytes: &[u8]) {
    for (_, read) in bodies::ALL {
        within_bounds(read, bytes);
    }
}

/// Has one interface read a body. What asks for more memory gets none, which ends the process.
pub fn within_bounds(read: bodies::Reader, bytes: &[u8]) {
    // The limit is for all threads.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    MEMORY.set_limit(MEMORY.allocated() + 4 * bytes.len() + SLACK).expect("a limit above what is in use");
    let _ = read(bytes);
    MEMORY.set_limit(usize::MAX).expect("no limit");
    drop(alone);
}
