//! `belljar doctor`: what isolation this host can guarantee, and how to fix what it cannot.

use std::process::ExitCode;

use belljar_core::guarantee::Guarantee;
use belljar_core::request::{BackendChoice, parse_waivers};
use belljar_wire::{BackendStatus, Backends, GuaranteeStatus, Problem, to_json};
use clap::Args;

use crate::args::{HostArgs, Verbosity};
use crate::compose;
use crate::output::inert;
use crate::problem::{self, say};
use crate::settings::{Environment, Settings};
use crate::table::{aligned, columns};

/// The exit status if a run would be refused.
const CANNOT_RUN: u8 = 1;

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Show every backend, not only the one that would be used
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    host: HostArgs,
}

pub(crate) fn run(args: &DoctorArgs, verbosity: Verbosity, environment: Environment<'_>) -> ExitCode {
    let json = args.host.json;
    match examine(&args.host, environment) {
        Ok((mut backends, choice)) => {
            let everything = args.all || verbosity == Verbosity::Verbose;
            if json {
                say(&to_json(&backends));
            } else {
                put_first(&mut backends, choice);
                say(&if everything { in_full(&backends) } else { in_short(&backends) });
            }
            if backends.default.is_some() { ExitCode::SUCCESS } else { ExitCode::from(CANNOT_RUN) }
        }
        Err(problem) => {
            problem::report(&problem, json);
            ExitCode::from(problem::COMMAND_FAILED)
        }
    }
}

/// The backend that options, environment and configuration choose.
pub(crate) fn backend_choice(settings: &Settings) -> Result<BackendChoice, Problem> {
    Ok(settings.backend.as_deref().map_or(Ok(BackendChoice::Auto), BackendChoice::parse)?)
}

/// What this host has, and which backend was chosen.
fn examine(args: &HostArgs, environment: Environment<'_>) -> Result<(Backends, BackendChoice), Problem> {
    let mut settings = Settings::gather(&args.choices(), args.config.as_deref(), environment)?;
    settings.host.docker.anew = true;
    let choice = backend_choice(&settings)?;
    let waived: Vec<Guarantee> = parse_waivers(&settings.waive)?;
    let engine = compose::engine(settings.host, None);
    Ok((Backends::of(&engine, choice, &waived), choice))
}

/// Moves the backend that was chosen, or that `auto` chooses, to the front.
fn put_first(backends: &mut Backends, choice: BackendChoice) {
    let first = match choice {
        BackendChoice::Named(name) => Some(name.name().into()),
        BackendChoice::Auto => backends.default.clone(),
    };
    backends.backends.sort_by_key(|backend| Some(&backend.name) != first.as_ref());
}

/// The backend that would be used, and one line about the others.
fn in_short(backends: &Backends) -> String {
    let Some((first, others)) = backends.backends.split_first() else { return verdict(backends) };
    let others: Vec<_> =
        others.iter().map(|backend| format!("{} ({})", backend.name, state(backend))).collect();
    let others = format!("Other backends: {}\nDetails: belljar doctor --all\n", others.join(", "));
    verdict(backends) + "\n" + &section(first) + "\n" + &others
}

/// Every backend, with a table that compares them.
fn in_full(backends: &Backends) -> String {
    let sections: Vec<_> = backends.backends.iter().map(section).collect();
    verdict(backends) + "\n" + &overview(&backends.backends) + "\n" + &sections.join("\n")
}

/// Whether code can run here.
fn verdict(backends: &Backends) -> String {
    match (&backends.default, &backends.problem) {
        (Some(default), _) => format!("Runs use the {default} backend.\n"),
        (None, Some(problem)) => {
            let error = &problem.error;
            format!("Runs are refused: {}\nhint: {}\n", inert(&error.message), inert(&error.hint))
        }
        (None, None) => "Runs are refused.\n".to_owned(),
    }
}

fn section(backend: &BackendStatus) -> String {
    let mut text = format!("{}: {}\n", backend.name, state(backend));
    for (label, line) in [("why", &backend.reason), ("fix", &backend.hint)] {
        // The table below says why a guarantee is not kept, and how to change that.
        if let Some(line) = line.as_ref().filter(|_| !backend.available) {
            text += &format!("  {label}: {}\n", inert(line));
        }
    }
    if backend.only_by_name {
        text += &format!("  used only with --backend {}\n", backend.name);
    }
    if backend.available {
        text += "\n";
        text += &details(&backend.guarantees);
        if !backend.only_by_name {
            text += &remedies(&backend.guarantees);
        }
    }
    text
}

/// What each backend guarantees, side by side.
fn overview(backends: &[BackendStatus]) -> String {
    let names = backends.iter().map(|backend| backend.name.to_string());
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
        Some(status) if backend.available => {
            if status.kept {
                "yes"
            } else {
                "NO"
            }
        }
        _ => "-",
    }
}

/// How each guarantee is kept, or why not; without a table if there is one reason for all.
fn details(guarantees: &[GuaranteeStatus]) -> String {
    let reason = |guarantee: &GuaranteeStatus| guarantee.why.clone().filter(|_| !guarantee.kept);
    match guarantees.first().and_then(reason) {
        Some(why) if guarantees.iter().all(|guarantee| reason(guarantee).as_ref() == Some(&why)) => {
            let names: Vec<_> = guarantees.iter().map(|guarantee| &*guarantee.name).collect();
            format!("Not guaranteed: {}\n  why: {}\n", names.join(", "), inert(&why))
        }
        _ => aligned(["GUARANTEE", "KEPT", "HOW OR WHY NOT"], guarantees.iter().map(row)),
    }
}

fn state(backend: &BackendStatus) -> &'static str {
    let keeps_anything = backend.guarantees.iter().any(|guarantee| guarantee.kept);
    if !backend.available {
        "not available"
    } else if !keeps_anything && backend.only_by_name {
        "not a sandbox"
    } else if !backend.ready {
        "refuses runs"
    } else {
        "ready"
    }
}

fn row(guarantee: &GuaranteeStatus) -> [String; 3] {
    let kept = if guarantee.kept { "yes" } else { "NO" };
    let reason = guarantee.how.as_ref().or(guarantee.why.as_ref()).cloned().unwrap_or_default();
    [guarantee.name.to_string(), kept.to_owned(), reason]
}

/// Each fix once, with the guarantees that need it.
fn remedies(guarantees: &[GuaranteeStatus]) -> String {
    let mut remedies: Vec<(&str, Vec<&str>)> = Vec::new();
    for guarantee in guarantees {
        let Some(fix) = guarantee.fix.as_deref() else { continue };
        match remedies.iter_mut().find(|(known, _)| *known == fix) {
            Some((_, names)) => names.push(&guarantee.name),
            None => remedies.push((fix, vec![&*guarantee.name])),
        }
    }
    let lines: Vec<_> = remedies
        .iter()
        .map(|(fix, names)| format!("\nTo guarantee {}:\n  {fix}\n", names.join(", ")))
        .collect();
    lines.concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_core::request::BackendName;

    fn keeps(name: &'static str, how: &str) -> GuaranteeStatus {
        GuaranteeStatus { name: name.into(), kept: true, how: Some(how.into()), why: None, fix: None }
    }

    fn unmet(name: &'static str) -> GuaranteeStatus {
        let (why, fix) = ("no cgroup is delegated".to_owned(), "systemctl --user start x".to_owned());
        GuaranteeStatus { name: name.into(), kept: false, how: None, why: Some(why), fix: Some(fix) }
    }

    #[test]
    fn every_guarantee_is_kept_and_how_or_not_and_why_with_one_remedy() {
        let native = BackendStatus {
            name: "native".into(),
            ready: false,
            available: true,
            only_by_name: false,
            reason: None,
            hint: None,
            guarantees: vec![keeps("filesystem", "pivot_root"), unmet("memory"), unmet("pids")],
        };
        let hint = "systemctl --user start x; or do without: --waive memory --waive pids";
        let problem = Problem::new(belljar_wire::Code::GuaranteeUnmet, "cannot keep 'memory', 'pids'", hint);
        let backends = Backends { default: None, problem: Some(problem), backends: vec![native] };
        insta::assert_snapshot!(in_full(&backends), @"
        Runs are refused: cannot keep 'memory', 'pids'
        hint: systemctl --user start x; or do without: --waive memory --waive pids

        GUARANTEE   native
        filesystem  yes
        network     -
        memory      NO
        pids        NO
        cpu         -
        disk        -
        syscalls    -
        privileges  -

        native: refuses runs

        GUARANTEE   KEPT  HOW OR WHY NOT
        filesystem  yes   pivot_root
        memory      NO    no cgroup is delegated
        pids        NO    no cgroup is delegated

        To guarantee memory, pids:
          systemctl --user start x
        ");
    }

    #[test]
    fn a_backend_that_cannot_run_says_why_and_what_would_help() {
        let native = BackendStatus {
            name: "native".into(),
            ready: false,
            available: false,
            only_by_name: false,
            reason: Some("user namespaces are forbidden".into()),
            hint: Some("sysctl -w user.max_user_namespaces=10000".into()),
            guarantees: vec![unmet("filesystem")],
        };
        let docker = BackendStatus {
            name: "docker".into(),
            ready: true,
            available: true,
            only_by_name: false,
            reason: None,
            hint: None,
            guarantees: vec![keeps("filesystem", "a mount namespace")],
        };
        let none = BackendStatus {
            name: "none".into(),
            ready: true,
            available: true,
            only_by_name: true,
            reason: None,
            hint: None,
            guarantees: vec![unmet("filesystem")],
        };
        let all = vec![native, docker, none];
        let mut backends = Backends { default: Some("docker".into()), problem: None, backends: all };
        insta::assert_snapshot!(in_full(&backends), @"
        Runs use the docker backend.

        GUARANTEE   native  docker  none
        filesystem  -       yes     NO
        network     -       -       -
        memory      -       -       -
        pids        -       -       -
        cpu         -       -       -
        disk        -       -       -
        syscalls    -       -       -
        privileges  -       -       -

        native: not available
          why: user namespaces are forbidden
          fix: sysctl -w user.max_user_namespaces=10000

        docker: ready

        GUARANTEE   KEPT  HOW OR WHY NOT
        filesystem  yes   a mount namespace

        none: not a sandbox
          used only with --backend none

        Not guaranteed: filesystem
          why: no cgroup is delegated
        ");
        put_first(&mut backends, BackendChoice::Named(BackendName::Native));
        assert!(in_short(&backends).contains("\nnative: not available\n  why: user namespaces"));
        put_first(&mut backends, BackendChoice::Auto);
        insta::assert_snapshot!(in_short(&backends), @"
        Runs use the docker backend.

        docker: ready

        GUARANTEE   KEPT  HOW OR WHY NOT
        filesystem  yes   a mount namespace

        Other backends: native (not available), none (not a sandbox)
        Details: belljar doctor --all
        ");
    }
}
