//! Templates: the foundation of a plan, built once for many boxes.
//!
//! A template is a mount namespace whose root is the finished, read-only foundation, with none of the host's mounts. No
//! process lives in it: the caller holds it by a descriptor, so it is gone with the caller, and there is nobody to attack
//! or to kill. A keeper visits it for as long as it takes to clone PID 1. The kernel then copies the mounts for the box's
//! mount namespace and, because that belongs to another user namespace, locks them: not even PID 1 can unmount them or
//! change their flags.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal};

use crate::build::{self, Site, WayIn};
use crate::fault::{Doing, Fault};
use crate::init_handle::InitHandle;
use crate::message::{self, Reply};
use crate::plan::Plan;
use crate::sys::{self, Fork};
use crate::visit::Visit;

/// Its PID namespace is for the empty `/proc`, and dies with the process that builds it.
const NAMESPACES: libc::c_int = libc::CLONE_NEWNS | libc::CLONE_NEWPID;

/// Builds the foundation of a plan, and returns the mount namespace. `not_its_business` are descriptors that the process
/// which builds it must not keep.
pub(crate) fn make(plan: &Plan, not_its_business: &[BorrowedFd<'_>]) -> Result<OwnedFd, Fault> {
    let (ours, theirs) = message::socket_pair().doing(|| "make a socket for the template")?;
    match sys::clone_into(NAMESPACES, None).doing(|| "create the template's namespaces")? {
        (Fork::Child, _) => {
            not_its_business.iter().for_each(|descriptor| sys::let_go(*descriptor));
            drop(ours);
            let _ =
                message::send(&theirs, &build(plan).map_or_else(Fault::into_reply, |()| Reply::Ready), &[]);
            wait_to_be_killed(&theirs)
        }
        (Fork::Parent(pid), pidfd) => {
            drop(theirs);
            let builder = InitHandle::new(pid, pidfd, ours)?;
            match message::receive(builder.socket()).doing(|| "wait for the template")? {
                Some((Reply::Ready, _)) => {}
                Some((Reply::Failed { fault }, _)) => return Err(fault),
                _ => return Err(io::ErrorKind::UnexpectedEof).doing(|| "wait for the template"),
            }
            verify(pid)?;
            let template = open_namespace(pid).doing(|| "open the template's mount namespace")?;
            // Whether a keeper may do this is better known now than when a run waits for it.
            Visit::begin(template.as_fd())?.end()?;
            Ok(template)
        }
    }
}

/// In the process that builds the template.
fn build(plan: &Plan) -> Result<(), Fault> {
    let tied = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    tied.doing(|| "set the template's parent-death signal")?;
    let used = plan.foundation.iter().filter_map(crate::plan::Step::source).max();
    let count = used.map_or(0, |most| usize::from(most) + 1);
    let sources = build::open_sources(&plan.sources[..count.min(plan.sources.len())])?;
    // There are no inputs in a foundation, and nothing that belongs to the code.
    let nothing = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let nothing = nothing.doing(|| "open /dev/null")?;
    let site = Site::new(plan.identity.code, sources, WayIn::default(), nothing.as_fd(), &[]);
    site.build_template(plan.foundation.iter())
}

/// If the keeper is gone, its end of the socket is closed.
fn wait_to_be_killed(keeper: &OwnedFd) -> ! {
    let mut byte = [0];
    while let Ok(1) | Err(rustix::io::Errno::INTR) = rustix::io::read(keeper, &mut byte) {}
    sys::exit_now(0)
}

/// Reads the flags of every mount back. All but the empty `/proc` must be read-only, none may honour set-uid bits, and
/// each must refuse device nodes or programs: a device is shown without the right to execute.
fn verify(pid: Pid) -> Result<(), Fault> {
    let table = std::fs::read_to_string(format!("/proc/{}/mountinfo", pid.as_raw_nonzero()));
    let table = table.doing(|| "read the mounts of the template")?;
    match table.lines().find(|line| !is_locked_down(line)) {
        Some(line) => {
            Err(io::ErrorKind::PermissionDenied).doing(|| format!("verify the template's mount {line}"))
        }
        None if table.is_empty() => Err(io::ErrorKind::NotFound).doing(|| "find the mounts of the template"),
        None => Ok(()),
    }
}

/// One line of proc_pid_mountinfo(5): the sixth field is the mount's own options, and the type follows a hyphen.
fn is_locked_down(line: &str) -> bool {
    let mut fields = line.split(' ').skip(5);
    let options: Vec<&str> = fields.next().unwrap_or_default().split(',').collect();
    let kind = fields.skip_while(|field| *field != "-").nth(1);
    let has = |option| options.contains(&option);
    // Optional fields stand between the two: a mount with peers would follow the host's.
    let alone = line.split(' ').nth(6) == Some("-");
    alone && has("nosuid") && (has("nodev") || has("noexec")) && (has("ro") || kind == Some("proc"))
}

fn open_namespace(pid: Pid) -> io::Result<OwnedFd> {
    let path = format!("/proc/{}/ns/mnt", pid.as_raw_nonzero());
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::is_locked_down;

    #[test]
    fn every_mount_must_be_read_only_and_without_set_uid_and_devices() {
        let line = |options: &str, kind: &str| format!("9 8 0:7 / /x {options} - {kind} {kind} rw");
        for (options, kind, wanted) in [
            ("ro,nosuid,nodev,relatime", "ext4", true),
            ("ro,nosuid,noexec", "devtmpfs", true),
            ("rw,nosuid,nodev,noexec", "proc", true),
            ("rw,nosuid,nodev,noexec", "tmpfs", false),
            ("ro,nodev", "ext4", false),
            ("ro,nosuid", "ext4", false),
            ("rw,nodev,noexec", "proc", false),
        ] {
            assert_eq!(is_locked_down(&line(options, kind)), wanted, "{options} {kind}");
        }
        assert!(is_locked_down("9 8 0:7 / /x ro,nosuid,nodev - ext4 /dev/x rw"), "the control");
        assert!(!is_locked_down("9 8 0:7 / /x ro,nosuid,nodev shared:1 - ext4 /dev/x rw"));
        assert!(!is_locked_down("9 8 0:7 / /x ro,nosuid,nodev master:1 - ext4 /dev/x rw"));
        assert!(!is_locked_down(""));
    }
}
