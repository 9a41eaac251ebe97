//! K: privilege and the kernel's surface. The probe calls every system call there is.

use std::process::Command;

use belljar_conformance::{
    Cell, Observation, Scratch, User, observations, outside, outside_as_nobody, outside_as_root,
    probe_program, promise,
};
use belljar_jail::seccomp::{Verdict, verdict};

/// What a line of the probe says about one system call.
struct Called {
    number: u32,
    args: [u64; 6],
    seen: Observation,
}

fn called(seen: Observation) -> Called {
    let words: Vec<&str> = seen.op.split(':').collect();
    let args: Vec<u64> = words[2].split(',').map(|word| word.parse().unwrap()).collect();
    Called { number: words[1].parse().unwrap(), args: args.try_into().unwrap(), seen }
}

/// The same ending: returned with the same error, or was killed or blocked in the same way.
fn alike(inside: &Observation, outside: &Observation) -> bool {
    inside.errno == outside.errno && inside.text == outside.text
}

/// What a call that the policy lets through says inside although it says something else to nobody outside.
fn for_a_reason_of_its_own(number: u32) -> Option<i32> {
    match i64::from(number) {
        libc::SYS_mlock => Some(libc::EPERM), // RLIMIT_MEMLOCK is 0
        libc::SYS_landlock_restrict_self => Some(libc::EINVAL), // it needs no_new_privs, which outside is not set
        _ => None,
    }
}

/// `uretprobe` and `uprobe` are how the kernel itself returns from probed code, and no use to anybody else. Recent
/// kernels answer them before they ask any filter, so that filters do not break probed programs (seen on 6.18;
/// why: https://github.com/systemd/systemd/issues/34615).
fn goes_past_seccomp(number: u32) -> bool {
    cfg!(target_arch = "x86_64") && matches!(number, 335 | 336)
}

/// The first of the calls that an engine may not know yet. Numbers from here on were given after 2018, by the year: what
/// was there before, every filter of an engine knows.
const YOUNG: u32 = 424;
/// Where the numbers of the x32 ABI begin.
const X32: u32 = 0x4000_0000;

fn compare_with_policy(cell: &Cell, first: u32, last: u32) {
    let attempt = format!("syscalls {first} {last}");
    let inside = cell.limit("timeout", "60s").probes(&[&attempt]);
    let outside = outside_as_nobody(&attempt);
    assert_eq!(inside.len(), (last - first + 1) as usize);
    assert_eq!(outside.len(), inside.len());
    // An engine's own filter stands before ours: it refuses what is newer than itself, and kills for numbers of another ABI.
    let fenced = cell.has_an_image();
    let mut wrong = Vec::new();
    for (inside, outside) in inside.into_iter().zip(&outside) {
        let Called { number, args, seen } = called(inside);
        let as_policy = match verdict(number, &args) {
            Verdict::Allow | Verdict::Ask => {
                let unknown = fenced && number >= YOUNG && seen.errno == libc::ENOSYS;
                unknown || alike(&seen, outside) || for_a_reason_of_its_own(number) == Some(seen.errno)
            }
            Verdict::Deny(_) if goes_past_seccomp(number) => alike(&seen, outside),
            Verdict::Deny(_) if fenced && number >= X32 && seen.text == "signal:31" => true,
            Verdict::Deny(errno) => seen.text == "returned" && seen.errno == errno,
            Verdict::Ignore => seen.text == "returned" && seen.errno == 0,
            Verdict::Kill => seen.text == "signal:31",
        };
        if !as_policy {
            wrong.push(format!(
                "{number}: policy {:?}, inside {seen:?}, outside {outside:?}",
                verdict(number, &args)
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// K5 and all of section 5.4
fn every_system_call_is_answered_as_the_policy_says(cell: &Cell) {
    compare_with_policy(cell, 0, 1023);
}

promise!(every_system_call_is_answered_as_the_policy_says; needs syscalls, privileges);

/// K9
fn numbers_of_the_x32_abi_do_not_exist(cell: &Cell) {
    compare_with_policy(cell, X32, X32 + 600);
    for seen in cell.probes(&[&format!("call {}", X32 + 39), &format!("call {}", X32 + 101)]) {
        assert!(seen.errno == libc::ENOSYS || (cell.has_an_image() && seen.text == "signal:31"), "{seen:?}");
    }
}

promise!(numbers_of_the_x32_abi_do_not_exist; needs syscalls, privileges);

/// K9
fn the_door_of_32_bit_programs_is_shut(cell: &Cell) {
    if outside("int80")[0].text != "exited:0" {
        return cell.skip("this kernel has no 32-bit emulation");
    }
    assert_eq!(cell.probe("int80").text, "signal:31");
}

promise!(the_door_of_32_bit_programs_is_shut; needs syscalls, privileges);

/// Calls with their arguments: what root may outside must be refused inside.
fn refused(cell: &Cell, calls: &[(i64, &str)], errnos: &[i32]) {
    let words: Vec<String> = calls.iter().map(|(number, args)| format!("call {number} {args}")).collect();
    let attempts: Vec<&str> = words.iter().map(String::as_str).collect();
    for (call, seen) in calls.iter().zip(cell.probes(&attempts)) {
        assert_eq!(seen.text, "returned", "refused, not killed: {call:?} {seen:?}");
        assert!(errnos.contains(&seen.errno), "{call:?}: {seen:?}");
    }
}

/// K1, N6
fn no_namespace_can_be_made(cell: &Cell) {
    let user = format!("call {} {}", libc::SYS_unshare, libc::CLONE_NEWUSER);
    assert_eq!(outside_as_nobody(&user)[0].errno, 0, "the control: outside even nobody can");
    let kinds = [
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWNS,
        libc::CLONE_NEWNET,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWCGROUP,
        0x80,
    ];
    let mut calls: Vec<(i64, String)> = Vec::new();
    for kind in kinds {
        calls.push((libc::SYS_unshare, kind.to_string()));
        calls.push((libc::SYS_setns, format!("0 {kind}")));
    }
    for kind in [libc::CLONE_NEWUSER, libc::CLONE_NEWUSER | libc::CLONE_NEWNET, libc::CLONE_NEWNS] {
        // The high half of a register must not hide a flag.
        for high in [0u64, 1 << 32] {
            let flags = high | u64::try_from(kind | libc::SIGCHLD).unwrap();
            calls.push((libc::SYS_clone, format!("{flags} 0 0 0 0")));
        }
    }
    let calls: Vec<_> = calls.iter().map(|(number, args)| (*number, args.as_str())).collect();
    for cell in cell.in_each_network() {
        refused(&cell, &calls, &[libc::EPERM]);
        refused(&cell, &[(libc::SYS_clone3, "0 0")], &[libc::ENOSYS]);
    }
}

promise!(no_namespace_can_be_made; needs syscalls, privileges);

/// K2, F3
fn nothing_can_be_mounted_and_the_root_cannot_be_changed(cell: &Cell) {
    let chroot = format!("call {} 0", libc::SYS_chroot);
    assert_eq!(outside(&chroot)[0].errno, libc::EFAULT, "the control: outside the kernel reads the path");
    let calls = [
        (libc::SYS_mount, "0 0 0 0 0"),
        (libc::SYS_umount2, "0 0"),
        (libc::SYS_pivot_root, "0 0"),
        (libc::SYS_chroot, "0"),
        (libc::SYS_fsopen, "0 0"),
        (libc::SYS_fsmount, "0 0 0"),
        (libc::SYS_fsconfig, "0 0 0 0 0"),
        (libc::SYS_fspick, "0 0 0"),
        (libc::SYS_move_mount, "0 0 0 0 0"),
        (libc::SYS_open_tree, "0 0 0"),
        (libc::SYS_mount_setattr, "0 0 0 0 0"),
    ];
    refused(cell, &calls, &[libc::EPERM]);
}

promise!(nothing_can_be_mounted_and_the_root_cannot_be_changed; needs syscalls, privileges);

/// K3, K4
fn other_processes_cannot_be_entered_or_traced(cell: &Cell) {
    let trace_me = format!("call {} 0 0 0 0", libc::SYS_ptrace);
    assert_eq!(outside(&trace_me)[0].errno, 0, "the control");
    let calls = [
        (libc::SYS_ptrace, "0 0 0 0"),
        (libc::SYS_ptrace, "16 1 0 0"),
        (libc::SYS_process_vm_readv, "1 0 0 0 0 0"),
        (libc::SYS_process_vm_writev, "1 0 0 0 0 0"),
        (libc::SYS_kcmp, "1 1 0 0 0"),
        (libc::SYS_pidfd_getfd, "0 0 0"),
        (libc::SYS_process_madvise, "0 0 0 0 0"),
        (libc::SYS_setns, "0 0"),
    ];
    refused(cell, &calls, &[libc::EPERM]);
}

promise!(other_processes_cannot_be_entered_or_traced; needs syscalls, privileges);

/// K5
fn the_kernels_back_rooms_are_refused_with_an_error(cell: &Cell) {
    let bpf = format!("call {} 0 0 0", libc::SYS_bpf);
    assert_ne!(outside(&bpf)[0].errno, libc::EPERM, "the control: outside root gets further");
    let calls = [
        (libc::SYS_bpf, "0 0 0"),
        (libc::SYS_perf_event_open, "0 0 0 0 0"),
        (libc::SYS_kexec_load, "0 0 0 0"),
        (libc::SYS_init_module, "0 0 0"),
        (libc::SYS_finit_module, "0 0 0"),
        (libc::SYS_delete_module, "0 0"),
        (libc::SYS_reboot, "0 0 0 0"),
        (libc::SYS_swapon, "0 0"),
        (libc::SYS_swapoff, "0"),
        (libc::SYS_acct, "0"),
        (libc::SYS_quotactl, "0 0 0 0"),
        (libc::SYS_fanotify_init, "0 0"),
        (libc::SYS_move_pages, "0 0 0 0 0 0"),
        (libc::SYS_migrate_pages, "0 0 0 0"),
        (libc::SYS_mbind, "0 0 0 0 0 0"),
    ];
    refused(cell, &calls, &[libc::EPERM, libc::ENOSYS]);
    #[cfg(target_arch = "x86_64")]
    refused(
        cell,
        &[(libc::SYS_iopl, "3"), (libc::SYS_ioperm, "0 1 1"), (libc::SYS_modify_ldt, "0 0 0")],
        &[libc::EPERM, libc::ENOSYS],
    );
    let probed = [
        (libc::SYS_userfaultfd, "0"),
        (libc::SYS_io_uring_setup, "1 0"),
        (libc::SYS_io_uring_enter, "0 0 0 0 0 0"),
        (libc::SYS_io_uring_register, "0 0 0 0"),
    ];
    refused(cell, &probed, &[libc::ENOSYS]);
}

promise!(the_kernels_back_rooms_are_refused_with_an_error; needs syscalls, privileges);

/// K7
fn files_cannot_be_opened_by_handle(cell: &Cell) {
    refused(
        cell,
        &[(libc::SYS_open_by_handle_at, "0 0 0"), (libc::SYS_name_to_handle_at, "0 0 0 0 0")],
        &[libc::EPERM, libc::ENOSYS],
    );
}

promise!(files_cannot_be_opened_by_handle; needs syscalls, privileges);

/// K8
fn the_personality_stays(cell: &Cell) {
    let no_random = format!("call {} 0x0040000", libc::SYS_personality);
    assert_eq!(outside_as_nobody(&no_random)[0].errno, 0, "the control");
    refused(
        cell,
        &[
            (libc::SYS_personality, "0x0040000"),
            (libc::SYS_personality, "0x0400000"),
            (libc::SYS_personality, "0x0020000"),
        ],
        &[libc::EPERM],
    );
    assert_eq!(
        cell.probe(&format!("call {} 0xffffffff", libc::SYS_personality)).errno,
        0,
        "asking is allowed"
    );
}

promise!(the_personality_stays; needs syscalls, privileges);

/// The effective uid that nobody gets from a set-uid copy of the probe on the bare host.
fn made_set_uid_outside() -> i64 {
    let scratch = Scratch::new();
    let line = format!(
        "cp {} {dir}/suid && chmod 4755 {dir}/suid && \
            setpriv --reuid 65534 --regid 65534 --clear-groups {dir}/suid privileges",
        probe_program().display(),
        dir = scratch.path().display()
    );
    let told = Command::new("sh").args(["-c", &line]).output().unwrap();
    observations(&String::from_utf8_lossy(&told.stdout))[0].ret
}

/// K10, L9
fn a_set_uid_program_gives_nothing(cell: &Cell) {
    let ran = cell.with_probe().run(
        "cp probe suid && chmod 4755 suid && ./suid privileges; ./probe privileges; \
        find / -xdev -perm -4000 -type f 2>/dev/null | head -3 >&2",
    );
    let seen = observations(ran.ok());
    assert_eq!(seen.len(), 2);
    assert!(seen.iter().all(|one| one.ret != 0), "no root: {seen:?}");
    if cell.user() == User::Root {
        assert_eq!(made_set_uid_outside(), 0, "the control: outside it makes nobody root");
    }
    let mounts = cell.run("cat /proc/self/mountinfo").ok().to_owned();
    for line in mounts.lines() {
        let options = line.split(' ').nth(5).unwrap_or_default();
        // What an engine mounts read-only holds what is in the image, against which there is no_new_privs alone.
        let is_the_images = cell.has_an_image() && options.split(',').any(|option| option == "ro");
        assert!(is_the_images || options.contains("nosuid"), "every mount is nosuid: {line}");
    }
}

promise!(a_set_uid_program_gives_nothing; needs syscalls, privileges);

/// K11, K12
fn no_capability_no_new_privileges_and_a_filter(cell: &Cell) {
    let status = cell.probe("status");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(u64::from_str_radix(status.field(set), 16), Ok(0), "{set}");
    }
    assert_eq!((status.field("NoNewPrivs"), status.field("Seccomp")), ("1", "2"));
    let groups = status.field("Groups").trim();
    let own = status.field("Gid").split_whitespace().next();
    assert!(groups.is_empty() || Some(groups) == own, "no group of the caller's: {groups}");
    for id in ["Uid", "Gid"] {
        let ids: Vec<&str> = status.field(id).split_whitespace().collect();
        assert!(ids.iter().all(|one| *one == ids[0] && *one != "0"), "{id}: {ids:?}");
    }
    if let Some(control) = outside_as_root("status") {
        assert_ne!(u64::from_str_radix(control.field("CapEff"), 16), Ok(0), "the control: root has some");
    }
}

promise!(no_capability_no_new_privileges_and_a_filter; needs syscalls, privileges);

/// K10
fn capabilities_cannot_be_had_from_files(cell: &Cell) {
    if let Some(control) = outside_as_root("attribute here security.capability") {
        assert_eq!(control.errno, 0, "the control: root may");
    }
    cell.probe("attribute here security.capability").fails_with(&[libc::EPERM, libc::EOPNOTSUPP]);
}

promise!(capabilities_cannot_be_had_from_files; needs syscalls, privileges);

/// K13
fn no_device_can_be_made(cell: &Cell) {
    let path = "0"; // The mode is looked at before the path.
    let call = |mode: u32| (libc::SYS_mknodat, format!("-100 {path} {mode} 0x103"));
    for kind in [libc::S_IFCHR, libc::S_IFBLK] {
        let (number, args) = call(kind | 0o666);
        refused(cell, &[(number, &args)], &[libc::EPERM]);
    }
    let (number, args) = call(libc::S_IFIFO | 0o666);
    assert_eq!(
        cell.probe(&format!("call {number} {args}")).errno,
        libc::EFAULT,
        "the control: a pipe is let through"
    );
    assert_ne!(cell.run("mknod null c 1 3").exit_code, 0);
}

promise!(no_device_can_be_made; needs syscalls, privileges);

/// K13: a device node smuggled in with the workspace
fn a_device_in_the_workspace_does_not_open(cell: &Cell) {
    let scratch = Scratch::new();
    let node = scratch.path().join("zero");
    let made = Command::new("mknod").arg(&node).args(["c", "1", "5"]).status().unwrap();
    assert!(made.success());
    std::fs::set_permissions(&node, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    assert!(std::fs::File::open(&node).is_ok(), "the control: outside it opens");
    let cell = cell.option("--workspace", scratch.path().to_str().unwrap());
    cell.probe("read zero").fails_with(&[libc::EACCES, libc::EPERM]);
}

promise!(a_device_in_the_workspace_does_not_open, root; needs syscalls, privileges; cold: "a workspace is mounted while the box is made");

/// K14: also CVE-2019-10063
fn nothing_can_be_typed_into_a_terminal(cell: &Cell) {
    for request in [0x5412u64, 0x541c, 0x5423] {
        for high in [0u64, 1 << 32, 0xffff_ffff << 32] {
            refused(cell, &[(libc::SYS_ioctl, &format!("0 {} 0", request | high))], &[libc::EPERM]);
        }
    }
    let harmless = cell.probe(&format!("call {} 0 0x5413 0", libc::SYS_ioctl)); // TIOCGWINSZ
    assert_ne!(harmless.errno, libc::EPERM, "the control: other requests are let through");
}

promise!(nothing_can_be_typed_into_a_terminal; needs syscalls, privileges);

/// K14: a terminal of the box's own
fn a_terminal_of_the_box_takes_no_typed_input_either(cell: &Cell) {
    let code = r"
import fcntl, os, pty, termios
terminal, end = pty.openpty()
os.write(terminal, b'line\n')
print(os.read(end, 10))
for request in termios.TIOCSTI, termios.TIOCLINUX, termios.TIOCSETD:
    try:
        fcntl.ioctl(end, request, b'\0\0\0\0')
        print('done')
    except PermissionError:
        print('refused')
";
    let ran = cell.language("python").run(code);
    assert_eq!(ran.ok(), "b'line\\n'\nrefused\nrefused\nrefused\n");
}

promise!(a_terminal_of_the_box_takes_no_typed_input_either; needs syscalls, privileges);

/// K15
fn a_process_cannot_loosen_what_protects_it(cell: &Cell) {
    for option in [4u64, 28, 35, 0x5961_6d61] {
        // DUMPABLE, SECUREBITS, MM, PTRACER
        refused(cell, &[(libc::SYS_prctl, &format!("{option} 1 0 0 0"))], &[libc::EPERM]);
    }
    assert_eq!(cell.probe(&format!("call {} 3 0 0 0 0", libc::SYS_prctl)).errno, 0, "asking is allowed");
}

promise!(a_process_cannot_loosen_what_protects_it; needs syscalls, privileges);

/// K16
fn another_filter_cannot_loosen_the_first(cell: &Cell) {
    // A filter that allows everything, on top: what was refused stays refused.
    let code = "import ctypes, struct\n\
        libc = ctypes.CDLL(None, use_errno=True)\n\
        insn = struct.pack('HBBI', 6, 0, 0, 0x7fff0000)\n\
        buf = ctypes.create_string_buffer(insn)\n\
        class P(ctypes.Structure): _fields_ = [('n', ctypes.c_ushort), ('f', ctypes.c_void_p)]\n\
        p = P(1, ctypes.addressof(buf))\n\
        print('seccomp', libc.prctl(22, 2, ctypes.byref(p)))\n\
        print('unshare', libc.unshare(0x10000000), ctypes.get_errno())\n";
    let ran = cell.language("python").run(code);
    assert!(ran.ok().ends_with("unshare -1 1\n"), "{ran:?}");
}

promise!(another_filter_cannot_loosen_the_first; needs syscalls, privileges);

/// K17
fn the_families_behind_page_cache_bugs_are_closed(cell: &Cell) {
    let alg = format!("call {} 38 5 0", libc::SYS_socket);
    cell.probe(&alg).fails_with(&[libc::EAFNOSUPPORT]);
    // Dirty Pipe's shape: splice from a read-only file into a pipe, then write into the pipe.
    let scratch = Scratch::new();
    let file = scratch.file("victim", "original original original");
    let cell = cell.language("python").option("--workspace", scratch.path().to_str().unwrap());
    let code = r"
import os
r, w = os.pipe()
os.write(w, b'x' * 65536); os.read(r, 65536)
fd = os.open('victim', os.O_RDONLY)
os.splice(fd, w, 1, offset_src=0) if hasattr(os, 'splice') else None
os.write(w, b'OVERWRITTEN')
print(open('victim').read())";
    assert_eq!(cell.run(code).ok(), "original original original\n");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "original original original");
}

promise!(the_families_behind_page_cache_bugs_are_closed; needs syscalls, privileges);

/// K18, K19
fn clock_and_host_name_stay(cell: &Cell) {
    let calls = [
        (libc::SYS_settimeofday, "0 0"),
        (libc::SYS_clock_settime, "0 0"),
        (libc::SYS_adjtimex, "0"),
        (libc::SYS_clock_adjtime, "0 0"),
        (libc::SYS_sethostname, "0 0"),
        (libc::SYS_setdomainname, "0 0"),
    ];
    refused(cell, &calls, &[libc::EPERM]);
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_ne!(name.trim(), "belljar", "the control");
    assert_eq!(cell.run("uname -n").ok(), "belljar\n");
}

promise!(clock_and_host_name_stay; needs syscalls, privileges);

/// K22: filters that a listener keeps alive, that write to the host's log, or that use up its memory for filters
fn the_code_loads_no_filters_of_its_own(cell: &Cell) {
    let by_filter = |flags: u32| format!("call {} 1 {flags} 0", libc::SYS_seccomp);
    assert_eq!(outside(&by_filter(0))[0].errno, libc::EFAULT, "the control: outside the program is read");
    let flags = [0, 1, 2, 4, 8, 16];
    let mut attempts: Vec<String> = flags.iter().map(|flags| by_filter(*flags)).collect();
    attempts.push(format!("call {} 0 0 0", libc::SYS_seccomp));
    attempts.push(format!("call {} {} 2 0", libc::SYS_prctl, libc::PR_SET_SECCOMP));
    attempts.push(format!("call {} {} 1 0", libc::SYS_prctl, libc::PR_SET_SECCOMP));
    for seen in cell.probes(&attempts.iter().map(String::as_str).collect::<Vec<_>>()) {
        assert_eq!(seen.errno, libc::EINVAL, "as on a kernel without filters: {seen:?}");
    }
}

promise!(the_code_loads_no_filters_of_its_own; needs syscalls, privileges);

/// K23: limits and priorities of PID 1, which may have the code's uid
fn pid_1_is_out_of_reach_of_the_code(cell: &Cell) {
    // With a null pointer, or a policy that there is not: what is let through changes nothing.
    let calls = |pid: u32| {
        [
            format!("call {} {pid} {} 0 0", libc::SYS_prlimit64, libc::RLIMIT_NOFILE),
            format!("call {} {pid} 99 0", libc::SYS_sched_setscheduler),
            format!("call {} {pid} 0", libc::SYS_sched_setparam),
            format!("call {} {pid} 0 0", libc::SYS_sched_setattr),
            format!("call {} {pid} 0 0", libc::SYS_sched_setaffinity),
            format!("call {} 0 {pid} 19", libc::SYS_setpriority),
            format!("call {} 1 {pid} 0x6000", libc::SYS_ioprio_set),
        ]
    };
    let attempt = |calls: &[String]| cell.probes(&calls.iter().map(String::as_str).collect::<Vec<_>>());
    for seen in attempt(&calls(1)) {
        assert_eq!(seen.errno, libc::EPERM, "{seen:?}");
    }
    for seen in attempt(&calls(0)) {
        assert_ne!(seen.errno, libc::EPERM, "the control: on oneself: {seen:?}");
    }
    let several = [
        format!("call {} 1 0 19", libc::SYS_setpriority),
        format!("call {} 2 0 19", libc::SYS_setpriority),
        format!("call {} 2 0 0x6000", libc::SYS_ioprio_set),
        format!("call {} 3 0 0x6000", libc::SYS_ioprio_set),
    ];
    for seen in attempt(&several) {
        assert_eq!(seen.errno, libc::EPERM, "a group or a user may include PID 1: {seen:?}");
    }
    assert_eq!(cell.run("ulimit -n 100 && ulimit -n").ok(), "100\n", "the control: on oneself");
}

promise!(pid_1_is_out_of_reach_of_the_code; needs syscalls, privileges);
