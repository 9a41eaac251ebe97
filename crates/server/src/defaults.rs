//! What a request gets where it does not say. The operator's choices, but never more than the caller may have: a limit
//! is cut to the caller's ceiling, and what the caller may not ask for is not asked for in its name.

use belljar_core::allowance::{Allowance, Ceilings};
use belljar_core::guarantee::Guarantee;
use belljar_core::limits::{BoxLimits, Bytes};
use belljar_core::request::{BackendChoice, Network, parse_waivers};
use belljar_wire::{Limits, Local, Problem, RunRequest};

/// The operator's choices, for whatever a request leaves out.
#[derive(Debug, Clone, Default, PartialEq)]
#[allow(missing_docs, reason = "the fields are those of a request")]
pub struct Defaults {
    pub backend: Option<String>,
    pub network: Option<String>,
    pub image: Option<String>,
    pub waive: Vec<String>,
    pub limits: Limits,
}

impl Defaults {
    /// Makes sure that a request which says nothing is one that can be understood. Otherwise every caller would be blamed
    /// for what none of them has written.
    ///
    /// # Errors
    /// What is wrong, such as a limit out of its range.
    pub fn check(&self) -> Result<(), Problem> {
        Ok(self.fill(saying_nothing()).parse(Local::default()).map(drop)?)
    }

    /// What the box of a caller is limited to that does not say.
    ///
    /// # Errors
    /// As [`check`](Defaults::check).
    pub fn box_limits(&self, caller: &Allowance) -> Result<BoxLimits, Problem> {
        let request = self.within(caller).fill(saying_nothing());
        Ok(request.parse_within(&caller.ceilings, Local::default())?.sandbox.limits)
    }

    /// As much of them as a caller may have.
    pub(crate) fn within(&self, allowance: &Allowance) -> Defaults {
        let may_waive = |word: &String| {
            let waiver = parse_waivers(std::slice::from_ref(word));
            waiver.is_ok_and(|waived| waived.iter().all(|guarantee| allowance.waivers.contains(guarantee)))
        };
        Defaults {
            backend: self.backend.clone().filter(|text| may_name(allowance, text)),
            network: self.network.clone().filter(|text| may_reach(allowance, text)),
            image: self.image.clone(),
            waive: self.waive.iter().filter(|word| may_waive(word)).cloned().collect(),
            limits: cut(self.limits, &allowance.ceilings),
        }
    }

    /// The request, with these where it has none of its own.
    pub(crate) fn fill(&self, mut request: RunRequest) -> RunRequest {
        request.backend = request.backend.or_else(|| self.backend.clone());
        request.network = request.network.or_else(|| self.network.clone());
        request.image = request.image.or_else(|| self.image.clone());
        if request.waive.is_empty() {
            request.waive.clone_from(&self.waive);
        }
        request.limits = filled(request.limits, self.limits);
        request
    }

    /// The backend that is meant; a text that is none was refused when it was read.
    pub(crate) fn backend(&self) -> BackendChoice {
        let chosen = self.backend.as_deref().and_then(|text| BackendChoice::parse(text).ok());
        chosen.unwrap_or(BackendChoice::Auto)
    }

    /// The guarantees that are done without; a word that is none was refused when it was read.
    pub(crate) fn waived(&self) -> Vec<Guarantee> {
        parse_waivers(&self.waive).unwrap_or_default()
    }
}

fn saying_nothing() -> RunRequest {
    RunRequest { language: "sh".into(), code: "true".into(), ..RunRequest::default() }
}

fn may_name(allowance: &Allowance, backend: &str) -> bool {
    match BackendChoice::parse(backend) {
        Ok(BackendChoice::Named(name)) => allowance.backends.contains(&name),
        Ok(BackendChoice::Auto) => true,
        Err(_) => false,
    }
}

fn may_reach(allowance: &Allowance, network: &str) -> bool {
    Network::parse(network).is_ok_and(|network| allowance.networks.contains(&network))
}

fn filled(own: Limits, defaults: Limits) -> Limits {
    Limits {
        timeout_ms: own.timeout_ms.or(defaults.timeout_ms),
        compile_timeout_ms: own.compile_timeout_ms.or(defaults.compile_timeout_ms),
        compile_memory_bytes: own.compile_memory_bytes.or(defaults.compile_memory_bytes),
        cpu_ms: own.cpu_ms.or(defaults.cpu_ms),
        memory_bytes: own.memory_bytes.or(defaults.memory_bytes),
        cpus: own.cpus.or(defaults.cpus),
        pids: own.pids.or(defaults.pids),
        disk_bytes: own.disk_bytes.or(defaults.disk_bytes),
        output_bytes: own.output_bytes.or(defaults.output_bytes),
    }
}

fn cut(limits: Limits, ceilings: &Ceilings) -> Limits {
    let millis = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let rate = ceilings.cpus.map(|cpus| f64::from(cpus.milli()) / 1000.0);
    Limits {
        timeout_ms: at_most(limits.timeout_ms, ceilings.timeout.map(millis)),
        compile_timeout_ms: at_most(limits.compile_timeout_ms, ceilings.of_compile_timeout().map(millis)),
        compile_memory_bytes: at_most(
            limits.compile_memory_bytes,
            ceilings.of_compile_memory().map(Bytes::get),
        ),
        cpu_ms: at_most(limits.cpu_ms, ceilings.cpu_time.map(millis)),
        memory_bytes: at_most(limits.memory_bytes, ceilings.memory.map(Bytes::get)),
        cpus: limits.cpus.map(|cpus| rate.map_or(cpus, |ceiling| cpus.min(ceiling))),
        pids: at_most(limits.pids, ceilings.pids.map(u64::from)),
        disk_bytes: at_most(limits.disk_bytes, ceilings.disk.map(Bytes::get)),
        output_bytes: at_most(limits.output_bytes, ceilings.output.map(Bytes::get)),
    }
}

fn at_most(limit: Option<u64>, ceiling: Option<u64>) -> Option<u64> {
    limit.map(|limit| ceiling.map_or(limit, |ceiling| limit.min(ceiling)))
}

#[cfg(test)]
mod tests {
    use belljar_core::allowance::{Networks, Permitted};
    use belljar_core::limits::Cpus;

    use super::*;

    fn defaults() -> Defaults {
        Defaults {
            backend: Some("process".into()),
            network: Some("full".into()),
            image: Some("alpine".into()),
            waive: vec!["disk".into(), "memory".into()],
            limits: Limits { timeout_ms: Some(20_000), cpus: Some(2.0), pids: Some(7), ..Limits::default() },
        }
    }

    #[test]
    fn what_a_request_says_stands() {
        let limits = Limits { timeout_ms: Some(500), ..Limits::default() };
        let own = RunRequest {
            backend: Some("native".into()),
            network: Some("none".into()),
            image: Some("own".into()),
            waive: vec!["cpu".into()],
            limits,
            ..RunRequest::default()
        };
        let filled = defaults().fill(own.clone());
        let limits = Limits { timeout_ms: Some(500), cpus: Some(2.0), pids: Some(7), ..Limits::default() };
        assert_eq!(filled, RunRequest { limits, ..own });
    }

    #[test]
    fn what_a_request_leaves_out_is_filled_in() {
        let Defaults { backend, network, image, waive, limits } = defaults();
        let filled = defaults().fill(RunRequest::default());
        assert_eq!(filled, RunRequest { backend, network, image, waive, limits, ..RunRequest::default() });
    }

    #[test]
    fn a_caller_gets_no_more_than_it_may_have() {
        let mut allowance = Allowance::boxed();
        allowance.networks = Networks::None;
        allowance.waivers = Permitted::Only(vec![Guarantee::Disk]);
        allowance.ceilings.timeout = Some(std::time::Duration::from_secs(5));
        allowance.ceilings.cpus = Some(Cpus::parse(0.5).unwrap());
        let limits = Limits { timeout_ms: Some(5000), cpus: Some(0.5), pids: Some(7), ..Limits::default() };
        let expected = Defaults {
            image: Some("alpine".into()),
            waive: vec!["disk".into()],
            limits,
            ..Defaults::default()
        };
        assert_eq!(defaults().within(&allowance), expected);
        assert_eq!(defaults().within(&Allowance::everything()), defaults());
    }

    #[test]
    fn a_default_that_no_request_could_have_is_refused_before_there_is_one() {
        assert!(defaults().check().is_ok());
        let limits = Limits { memory_bytes: Some(1), ..Limits::default() };
        let problem = Defaults { limits, ..Defaults::default() }.check().unwrap_err();
        assert_eq!(problem.error.field.as_deref(), Some("limits.memory_bytes"));
    }
}
