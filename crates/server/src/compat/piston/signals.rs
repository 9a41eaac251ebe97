//! The names of Linux's signals, as Node.js has them.

const NAMES: [&str; 31] = [
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
];

/// What a signal is called; one of real time has no name there, only a number.
pub(super) fn name(signal: u8) -> String {
    let named = usize::from(signal).checked_sub(1).and_then(|at| NAMES.get(at));
    named.map_or_else(|| format!("SIG{signal}"), ToString::to_string)
}

/// Whether there is a signal of that name.
pub(super) fn exists(name: &str) -> bool {
    NAMES.contains(&name)
}

/// Whether the sender wants the program to end.
pub(super) fn ends(name: &str) -> bool {
    ["SIGKILL", "SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP", "SIGABRT"].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_their_numbers() {
        let told = [1, 9, 11, 15, 31, 40, 0].map(name);
        assert_eq!(told, ["SIGHUP", "SIGKILL", "SIGSEGV", "SIGTERM", "SIGSYS", "SIG40", "SIG0"]);
    }

    #[test]
    fn only_some_of_them_mean_the_end() {
        assert!(ends("SIGTERM") && ends("SIGKILL") && ends("SIGINT"));
        assert!(!ends("SIGSTOP") && !ends("SIGUSR1") && !ends("SIGNONE"));
        assert!(exists("SIGSTOP") && !exists("sigterm") && !exists("9"));
    }
}
