//! The targets on a stable toolchain, without a fuzzer: every seed as it is, cut short, and with each byte changed.

use std::fs;
use std::path::Path;

use belljar_egress::rehearsal::rehearse;
use belljar_fuzz::{packets, plan, request, within_bounds};
use belljar_jail::codec;
use belljar_jail::plan::Plan;
use belljar_server::bodies::ALL;
use belljar_wire::RunRequest;

/// Values that mean something to the decoders: tags, small lengths, large lengths, JSON's punctuation.
const TELLING: &[u8] = b"\x00\x01\x02\x10\x7f\x80\xff\"\\{}[],:.-e0/";

fn disturb(seed: &[u8], target: impl Fn(&[u8])) {
    disturb_with(TELLING, seed, target);
}

fn disturb_with(telling: &[u8], seed: &[u8], target: impl Fn(&[u8])) {
    target(seed);
    for length in 0..seed.len() {
        target(&seed[..length]);
    }
    for at in 0..seed.len() {
        for &byte in telling {
            let mut bytes = seed.to_vec();
            bytes[at] = byte;
            target(&bytes);
            bytes.insert(at, byte);
            target(&bytes);
        }
    }
}

#[test]
fn disturbed_plans_are_refused_or_read_back_as_they_are() {
    // Zeros are the smallest plan: no identity but 0, no cgroup, empty lists.
    let smallest = (0..200).map(|length| vec![0; length]).find(|bytes| codec::decode::<Plan>(bytes).is_ok());
    let smallest = smallest.expect("some number of zeros is a plan");
    disturb(&smallest, plan);
    disturb(&[smallest.as_slice(), &smallest].concat(), plan);
}

#[test]
fn disturbed_requests_are_refused_or_stay_inside() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds/request");
    let mut accepted = 0;
    for seed in fs::read_dir(seeds).unwrap() {
        let bytes = fs::read(seed.unwrap().path()).unwrap();
        let parsed = RunRequest::from_json(&bytes).map(belljar_core::request::RunRequest::try_from);
        accepted += usize::from(matches!(parsed, Ok(Ok(_))));
        disturb(&bytes, request);
    }
    assert!(accepted >= 2, "the seeds must reach past the first refusal");
}

#[test]
fn disturbed_packets_reach_nobody() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds/packets");
    let (mut carried, mut answers, mut denied) = (Vec::new(), 0, 0);
    for seed in fs::read_dir(seeds).unwrap() {
        let bytes = fs::read(seed.unwrap().path()).unwrap();
        let rehearsed = rehearse(&bytes);
        carried.extend(rehearsed.carried);
        answers += rehearsed.answers;
        denied += rehearsed.denied;
        // Lengths, flags and numbers.
        disturb_with(&[0, 1, 0x7f, 0xff], &bytes, packets);
    }
    // The seeds must reach the stack, the name server and the refusals.
    assert_eq!(String::from_utf8_lossy(&carried), "sent in two pieces, the second of which begins again at zero");
    assert!(answers > 8 && denied > 3, "{answers} {denied}");
}

/// A body that the interface of this path understands.
fn understood(path: &str) -> &'static str {
    match path {
        "/v1/runs" => r#"{"language":"sh","code":"true","args":["a"],"files":[{"path":"a","content":"b"}]}"#,
        "/mcp" => {
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run_code","arguments":{"language":"sh","code":""}}}"#
        }
        "/api/v2/execute" => r#"{"language":"bash","version":"*","files":[{"content":"true"}],"args":["a"]}"#,
        "/api/v2/connect" => {
            r#"{"type":"init","language":"bash","version":"*","files":[{"content":"true"}]}"#
        }
        "/run_code" => r#"{"language":"bash","code":"true","files":{"a":"YQ=="},"fetch_files":["b"]}"#,
        "/run_jupyter" => r#"{"cells":["1"],"files":{"a":"YQ=="}}"#,
        other => panic!("no body for {other}"),
    }
}

#[test]
fn disturbed_bodies_stay_small() {
    for (path, read) in ALL {
        let body = understood(path);
        assert!(read(body.as_bytes()), "the control: {path}");
        disturb(body.as_bytes(), |bytes| within_bounds(read, bytes));
    }
}

/// Before every string, list and object of every body as many small values as get through, or one large one.
#[test]
fn bodies_of_many_small_values_stay_small() {
    let lists = [r#"{"":0}"#, "\"\"", r#"{"a":{"b":[{}]}}"#].map(|item| {
        let values = item.matches(['"', '[', '{']).count();
        format!("[{}]", vec![item; 32_000 / values].join(","))
    });
    let large = [format!("\"{}\"", "x".repeat(512 << 10)), format!("\"{}\"", "\\n".repeat(256 << 10))];
    for (path, read) in ALL {
        let body = understood(path);
        for (at, _) in body.match_indices(['"', '[', '{']) {
            for value in lists.iter().chain(&large) {
                within_bounds(read, format!("{}{value},{}", &body[..at], &body[at..]).as_bytes());
            }
        }
        for value in lists.iter().chain(&large) {
            within_bounds(read, body.replace("\"true\"", value).as_bytes());
        }
    }
}
