//! The project's targets for speed and memory, which `--check` checks.

use std::fmt;

use serde::Serialize;

use super::Comparison;
use super::contender::{BARE, BELLJAR, DOCKER, NSJAIL};
use super::memory::Supervisor;

/// A target that could be checked here.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Promise {
    pub(super) promise: String,
    pub(super) measured: String,
    pub(super) kept: bool,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.kept { "kept  " } else { "BROKEN" };
        write!(f, "{verdict}  {}: {}", self.promise, self.measured)
    }
}

/// What a box may add to the median of the shortest program.
const MOST_OVER_BARE_MS: f64 = 4.0;
/// What a box may cost in multiples of the bare interpreter, where that takes long enough for a ratio to mean
/// something.
const MOST_TIMES_BARE: &[(&str, f64)] = &[("python", 1.3), ("javascript", 1.1)];
/// How many times longer `docker run` must take for the shortest program.
const LEAST_DOCKER_TIMES: f64 = 40.0;
const MOST_MEMORY: u64 = 20_000_000;

/// Checks every target for which there are figures. One of them is that belljar itself works here.
pub(super) fn weigh(comparisons: &[Comparison], supervisor: Option<&Supervisor>) -> Vec<Promise> {
    let speed = comparisons.iter().flat_map(weigh_speed);
    speed.chain(supervisor.map(weigh_memory)).collect()
}

fn weigh_speed(comparison: &Comparison) -> Vec<Promise> {
    let language = comparison.language;
    let promise = |promise: String, measured: String, kept| Promise { promise, measured, kept };
    if let Some(absent) = comparison.not_measured.iter().find(|absent| absent.name == BELLJAR) {
        return vec![promise(format!("{language}: belljar runs here"), absent.why.clone(), false)];
    }
    let (Some(belljar), median) = (comparison.median(BELLJAR), |name| comparison.median(name)) else {
        return vec![];
    };
    let mut promises = Vec::new();
    if let Some(bare) = median(BARE).filter(|_| language == "bash") {
        let text = format!("bash: belljar adds at most {MOST_OVER_BARE_MS} ms");
        let over = belljar - bare;
        promises.push(promise(text, format!("{over:.2} ms"), over <= MOST_OVER_BARE_MS));
    }
    let most_times = MOST_TIMES_BARE.iter().find(|(of, _)| *of == language);
    if let (Some(bare), Some((_, most))) = (median(BARE), most_times) {
        let text = format!("{language}: belljar takes at most {most} times as long as bare");
        let times = belljar / bare;
        promises.push(promise(text, format!("{times:.2} times"), times <= *most));
    }
    if let Some(nsjail) = median(NSJAIL) {
        let text = format!("{language}: belljar takes no longer than nsjail");
        promises.push(promise(text, format!("{belljar:.2} ms and {nsjail:.2} ms"), belljar <= nsjail));
    }
    if let Some(docker) = median(DOCKER).filter(|_| language == "bash") {
        let text = format!("bash: docker takes at least {LEAST_DOCKER_TIMES} times as long as belljar");
        let times = docker / belljar;
        promises.push(promise(text, format!("{times:.1} times"), times >= LEAST_DOCKER_TIMES));
    }
    promises
}

fn weigh_memory(supervisor: &Supervisor) -> Promise {
    Promise {
        promise: format!("belljar's own processes stay below {} MB", MOST_MEMORY / 1_000_000),
        measured: supervisor.to_string(),
        kept: supervisor.peak_bytes < MOST_MEMORY,
    }
}

#[cfg(test)]
mod tests {
    use super::super::contender::Absent;
    use super::super::{Comparison, Measured};
    use super::*;

    fn comparison(language: &'static str, medians: &[(&'static str, f64)]) -> Comparison {
        let measured = |(name, median): &(&'static str, f64)| Measured::new(name, vec![*median], None);
        Comparison {
            language,
            code: "",
            program: None,
            results: medians.iter().map(measured).collect(),
            not_measured: vec![],
        }
    }

    fn verdicts(language: &'static str, medians: &[(&'static str, f64)]) -> Vec<bool> {
        weigh(&[comparison(language, medians)], None).iter().map(|promise| promise.kept).collect()
    }

    #[test]
    fn a_box_may_add_four_milliseconds_to_bash() {
        assert_eq!(verdicts("bash", &[(BARE, 1.0), (BELLJAR, 5.0)]), [true]);
        assert_eq!(verdicts("bash", &[(BARE, 1.0), (BELLJAR, 5.1)]), [false]);
    }

    #[test]
    fn slower_interpreters_are_held_to_a_ratio() {
        assert_eq!(verdicts("python", &[(BARE, 10.0), (BELLJAR, 12.9)]), [true]);
        assert_eq!(verdicts("python", &[(BARE, 10.0), (BELLJAR, 13.1)]), [false]);
        assert_eq!(verdicts("javascript", &[(BARE, 40.0), (BELLJAR, 43.9)]), [true]);
        assert_eq!(verdicts("javascript", &[(BARE, 40.0), (BELLJAR, 44.1)]), [false]);
    }

    #[test]
    fn peers_count_where_they_were_measured() {
        let peers = |nsjail, docker| {
            verdicts("bash", &[(BARE, 1.0), (BELLJAR, 5.0), (NSJAIL, nsjail), (DOCKER, docker)])
        };
        assert_eq!(peers(5.0, 200.0), [true, true, true]);
        assert_eq!(peers(4.9, 199.0), [true, false, false]);
    }

    #[test]
    fn a_belljar_that_does_not_run_breaks_the_promise() {
        let mut broken = comparison("bash", &[(BARE, 1.0)]);
        broken.not_measured.push(Absent { name: BELLJAR, why: "exit status: 125".into() });
        let promises = weigh(&[broken], None);
        assert_eq!(promises[0].to_string(), "BROKEN  bash: belljar runs here: exit status: 125");
    }

    #[test]
    fn nothing_is_promised_about_what_was_not_asked_for() {
        assert!(verdicts("bash", &[(BARE, 1.0)]).is_empty());
    }

    #[test]
    fn the_supervisor_stays_below_twenty_megabytes() {
        let kept = |peak_bytes| weigh_memory(&Supervisor { peak_bytes, processes: vec![] }).kept;
        assert!(kept(19_999_999));
        assert!(!kept(20_000_000));
    }
}
