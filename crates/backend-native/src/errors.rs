//! What is said when a box could not be made.

use std::fs;
use std::io;
use std::path::Path;

use belljar_core::Field;
use belljar_core::backend::BackendError;
use belljar_jail::{About, Fault};
use rustix::io::Errno;

const DOCTOR: &str = "`belljar doctor` shows what this host can do";

/// A step in this process that failed.
pub(crate) fn setup(step: &'static str) -> impl Fn(io::Error) -> BackendError {
    move |source| BackendError::Setup { step: step.to_owned(), hint: DOCTOR.into(), source }
}

/// PID 1 died before the box was ready.
pub(crate) fn died() -> BackendError {
    setup("build the box: PID 1 died")(io::ErrorKind::BrokenPipe.into())
}

/// A step in the keeper or in PID 1 that failed.
pub(crate) fn failure(fault: Fault) -> BackendError {
    if fault.about == About::Files && fault.errno == Errno::NOSPC.raw_os_error() {
        return BackendError::Unusable {
            field: Field::Files,
            message: "the run's files do not fit into --disk".into(),
            hint: "raise the limit with --disk".into(),
        };
    }
    BackendError::Setup { hint: hint(&fault), source: fault.error(), step: fault.doing }
}

/// What would help, judging by this host's settings.
pub(crate) fn hint(fault: &Fault) -> String {
    let setting = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let is = |path: &str, value: &str| setting(path).as_deref() == Some(value);
    let about_namespaces = fault.about == About::Namespaces;
    if fault.about == About::Network {
        return "the kernel needs virtual Ethernet devices: `modprobe veth`; or leave the network out".into();
    }
    if fault.about == About::Workspace {
        return "the workspace must be an ordinary directory, on a filesystem that can be under an overlay"
            .into();
    }
    if is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1")
        && !rustix::process::geteuid().is_root()
    {
        return "AppArmor forbids user namespaces for ordinary users: \
                `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`, or run as root"
            .into();
    }
    if about_namespaces && is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        return "user namespaces are switched off: `sysctl -w kernel.unprivileged_userns_clone=1`".into();
    }
    if about_namespaces && is("/proc/sys/user/max_user_namespaces", "0") {
        return "user namespaces are switched off: `sysctl -w user.max_user_namespaces=10000`".into();
    }
    let in_container = Path::new("/.dockerenv").exists() || Path::new("/run/.containerenv").exists();
    let forbidden =
        [Errno::PERM, Errno::ACCESS, Errno::NOSYS].iter().any(|errno| errno.raw_os_error() == fault.errno);
    if forbidden && in_container {
        return "this is a container: start it with `--cap-add SYS_ADMIN --security-opt seccomp=unconfined \
                --security-opt systempaths=unconfined --security-opt apparmor=unconfined`, use the image of \
                deploy/Dockerfile, which needs less, or run belljar on the host"
            .into();
    }
    if about_namespaces {
        return "user namespaces are needed: check `sysctl user.max_user_namespaces` and what runs belljar"
            .into();
    }
    DOCTOR.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(about: About) -> BackendError {
        failure(Fault { about, ..Fault::with_errno("write", Errno::NOSPC.raw_os_error()) })
    }

    #[test]
    fn files_that_do_not_fit_are_told_from_a_full_host() {
        assert!(matches!(full(About::Files), BackendError::Unusable { field: Field::Files, .. }));
        assert!(matches!(full(About::Box), BackendError::Setup { .. }), "the control");
    }

    #[test]
    fn the_hint_follows_from_what_failed_and_not_from_its_words() {
        let about = |about| hint(&Fault { about, ..Fault::with_errno("do it", 0) });
        assert!(about(About::Workspace).contains("workspace"));
        assert!(about(About::Network).contains("veth"));
        assert!(about(About::Namespaces).contains("user namespaces"));
        assert_eq!(hint(&Fault::with_errno("mount the workspace of the namespaces", 0)), about(About::Box));
    }
}
