//! `belljar doctor`: what this host can guarantee, what it cannot, why, and what would help.

use std::process::ExitCode;

use belljar_core::guarantee::Guarantee;
use belljar_core::request::{BackendChoice, parse_waivers};
use belljar_wire::{BackendStatus, Backends, GuaranteeStatus, Problem, to_json};

use crate::args::HostArgs;
use crate::compose;
use crate::output::inert;
use crate::problem::{self, say};
use crate::settings::{Environment, Settings};
use crate::table::{aligned, columns};

/// The exit status when a run would be refused.
const CANNOT_RUN: u8 = 1;

pub(crate) fn run(args: &HostArgs, environment: Environment<'_>) -> ExitCode {
    match examine(args, environment) {
        Ok(backends) => {
            say(&if args.json { to_json(&backends) } else { described(&backends) });
            if backends.default.is_some() { ExitCode::SUCCESS } else { ExitCode::from(CANNOT_RUN) }
        }
        Err(problem) => {
            problem::report(&problem, args.json);
            ExitCode::from(problem::COMMAND_FAILED)
        }
    }
}

/// The backend that the environment and the configuration choose.
pub(crate) fn backend_choice(settings: &Settings) -> Result<BackendChoice, Problem> {
    Ok(settings.backend.as_deref().map_or(Ok(BackendChoice::Auto), BackendChoice::parse)?)
}

fn examine(args: &HostArgs, environment: Environment<'_>) -> Result<Backends, Problem> {
    let mut settings = Settings::gather(&args.choices(), args.config.as_deref(), environment)?;
    settings.host.docker.anew = true;
    let choice = backend_choice(&settings)?;
    let waived: Vec<Guarantee> = parse_waivers(&settings.waive)?;
    let engine = compose::engine(settings.host, None);
    Ok(Backends::of(&engine, choice, &waived))
}

fn described(backends: &Backends) -> String {
    let mut text = overview(&backends.backends) + "\n";
    for backend in &backends.backends {
        text += &format!("backend {}: {}\n", backend.name, heading(backend));
        for (label, line) in [("why", &backend.reason), ("fix", &backend.hint)] {
            if let Some(line) = line {
                text += &format!("  {label}: {line}\n");
            }
        }
        text += "\n";
        if backend.ready {
            text += &details(&backend.guarantees);
            text += &remedies(&backend.guarantees);
            text += "\n";
        }
    }
    match (&backends.default, &backends.problem) {
        (Some(default), _) => text += &format!("Runs go to the {default} backend.\n"),
        (None, Some(problem)) => {
            text += &format!("Runs are refused: {}\nhint: {}\n", problem.error.message, problem.error.hint);
        }
        (None, None) => text += "Runs are refused.\n",
    }
    text
}

/// What each backend keeps, side by side.
fn overview(backends: &[BackendStatus]) -> String {
    let names = backends.iter().map(|backend| backend.name.to_owned());
    let heading = std::iter::once("GUARANTEE".to_owned()).chain(names).collect();
    let row = |guarantee: Guarantee| {
        let cells = backends.iter().map(|backend| kept(backend, guarantee).to_owned());
        std::iter::once(guarantee.name().to_owned()).chain(cells).collect()
    };
    columns(&std::iter::once(heading).chain(Guarantee::ALL.map(row)).collect::<Vec<_>>())
}

fn kept(backend: &BackendStatus, guarantee: Guarantee) -> &'static str {
    let found = backend.guarantees.iter().find(|status| status.name == guarantee.name());
    match found {
        Some(status) if backend.ready => {
            if status.kept {
                "yes"
            } else {
                "NO"
            }
        }
        _ => "-",
    }
}

/// How each guarantee is kept, or why not; in one line where there is one reason for all.
fn details(guarantees: &[GuaranteeStatus]) -> String {
    let reason = |guarantee: &GuaranteeStatus| guarantee.why.clone().filter(|_| !guarantee.kept);
    match guarantees.first().and_then(reason) {
        Some(why) if guarantees.iter().all(|guarantee| reason(guarantee).as_ref() == Some(&why)) => {
            format!("keeps nothing: {}\n", inert(&why))
        }
        _ => aligned(["GUARANTEE", "KEPT", "HOW, OR WHY NOT"], guarantees.iter().map(row)),
    }
}

fn heading(backend: &BackendStatus) -> &'static str {
    match (backend.ready, backend.only_by_name) {
        (false, _) => "not available",
        (true, false) => "ready",
        (true, true) => "ready, but only if you name it: this is no sandbox",
    }
}

fn row(guarantee: &GuaranteeStatus) -> [String; 3] {
    let kept = if guarantee.kept { "yes" } else { "NO" };
    let reason = guarantee.how.as_ref().or(guarantee.why.as_ref()).cloned().unwrap_or_default();
    [guarantee.name.to_owned(), kept.to_owned(), reason]
}

/// Each remedy once, with the guarantees that it would help.
fn remedies(guarantees: &[GuaranteeStatus]) -> String {
    let mut remedies: Vec<(&str, Vec<&str>)> = Vec::new();
    for guarantee in guarantees {
        let Some(fix) = guarantee.fix.as_deref() else { continue };
        match remedies.iter_mut().find(|(known, _)| *known == fix) {
            Some((_, names)) => names.push(guarantee.name),
            None => remedies.push((fix, vec![guarantee.name])),
        }
    }
    let lines: Vec<_> =
        remedies.iter().map(|(fix, names)| format!("\nTo keep {}:\n  {fix}\n", names.join(", "))).collect();
    lines.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeps(name: &'static str, how: &str) -> GuaranteeStatus {
        GuaranteeStatus { name, kept: true, how: Some(how.into()), why: None, fix: None }
    }

    fn unmet(name: &'static str) -> GuaranteeStatus {
        let (why, fix) = ("no cgroup is delegated".to_owned(), "systemctl --user start x".to_owned());
        GuaranteeStatus { name, kept: false, how: None, why: Some(why), fix: Some(fix) }
    }

    #[test]
    fn every_guarantee_is_kept_and_how_or_not_and_why_with_one_remedy() {
        let native = BackendStatus {
            name: "native",
            ready: true,
            only_by_name: false,
            reason: None,
            hint: None,
            guarantees: vec![keeps("filesystem", "pivot_root"), unmet("memory"), unmet("pids")],
        };
        let hint = "systemctl --user start x; or do without: --waive memory --waive pids";
        let problem = Problem::new(belljar_wire::Code::GuaranteeUnmet, "cannot keep 'memory', 'pids'", hint);
        let backends = Backends { default: None, problem: Some(problem), backends: vec![native] };
        insta::assert_snapshot!(described(&backends), @r"
        GUARANTEE   native
        filesystem  yes
        network     -
        memory      NO
        pids        NO
        cpu         -
        disk        -
        syscalls    -
        privileges  -

        backend native: ready

        GUARANTEE   KEPT  HOW, OR WHY NOT
        filesystem  yes   pivot_root
        memory      NO    no cgroup is delegated
        pids        NO    no cgroup is delegated

        To keep memory, pids:
          systemctl --user start x

        Runs are refused: cannot keep 'memory', 'pids'
        hint: systemctl --user start x; or do without: --waive memory --waive pids
        ");
    }

    #[test]
    fn a_backend_that_cannot_run_says_why_and_what_would_help() {
        let native = BackendStatus {
            name: "native",
            ready: false,
            only_by_name: false,
            reason: Some("user namespaces are forbidden".into()),
            hint: Some("sysctl -w user.max_user_namespaces=10000".into()),
            guarantees: vec![unmet("filesystem")],
        };
        let docker = BackendStatus {
            name: "docker",
            ready: true,
            only_by_name: false,
            reason: None,
            hint: None,
            guarantees: vec![keeps("filesystem", "a mount namespace")],
        };
        let none = BackendStatus {
            name: "none",
            ready: true,
            only_by_name: true,
            reason: None,
            hint: None,
            guarantees: vec![unmet("filesystem")],
        };
        let all = vec![native, docker, none];
        let backends = Backends { default: Some("docker"), problem: None, backends: all };
        insta::assert_snapshot!(described(&backends), @r"
        GUARANTEE   native  docker  none
        filesystem  -       yes     NO
        network     -       -       -
        memory      -       -       -
        pids        -       -       -
        cpu         -       -       -
        disk        -       -       -
        syscalls    -       -       -
        privileges  -       -       -

        backend native: not available
          why: user namespaces are forbidden
          fix: sysctl -w user.max_user_namespaces=10000

        backend docker: ready

        GUARANTEE   KEPT  HOW, OR WHY NOT
        filesystem  yes   a mount namespace

        backend none: ready, but only if you name it: this is no sandbox

        keeps nothing: no cgroup is delegated

        To keep filesystem:
          systemctl --user start x

        Runs go to the docker backend.
        ");
    }
}
