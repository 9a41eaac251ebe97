//! The targets on a stable toolchain, without a fuzzer: every seed as it is, cut short, and with each byte changed.

use std::fs;
use std::path::Path;

use belljar_fuzz::{plan, request};
use belljar_jail::codec;
use belljar_jail::plan::Plan;
use belljar_wire::RunRequest;

/// Values that mean something to the decoders: tags, small lengths, large lengths, JSON's punctuation.
const TELLING: &[u8] = b"\x00\x01\x02\x10\x7f\x80\xff\"\\{}[],:.-e0/";

fn disturb(seed: &[u8], target: impl Fn(&[u8])) {
    target(seed);
    for length in 0..seed.len() {
        target(&seed[..length]);
    }
    for at in 0..seed.len() {
        for &byte in TELLING {
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
