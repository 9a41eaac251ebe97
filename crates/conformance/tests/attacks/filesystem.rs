//! F: the file system. What is not shown cannot be read, what is shown cannot be changed, and what comes back is
//! only what the code itself wrote.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use belljar_conformance::{
    Cell, Scratch, Status, outside, outside_as_nobody, outside_as_root, promise, secret,
};

const ABSENT: &[i32] = &[libc::ENOENT, libc::EACCES, libc::EPERM, libc::ENOTDIR];

/// F1
fn secrets_of_the_host_are_not_there(cell: &Cell) {
    let scratch = Scratch::new();
    let own = scratch.file("secret", "secret");
    let own = own.to_str().unwrap();
    if let Some(control) = outside_as_root("read /etc/shadow") {
        assert_eq!(control.errno, 0, "the control");
    }
    assert_eq!(outside(&format!("read {own}"))[0].text, "secret", "the control");
    let paths = [
        "/etc/shadow",
        "/etc/gshadow",
        "/etc/sudoers",
        "/etc/ssh",
        "/root/.bashrc",
        "/root/.profile",
        "/root/.ssh/id_rsa",
        "/root/.cargo/credentials.toml",
        "/home",
        "/var/run/docker.sock",
        "/run/docker.sock",
        "/var/lib",
        "/var/log",
        "/boot",
        "/etc/machine-id",
        "/root/.aws/credentials",
        own,
    ];
    let attempts: Vec<String> = paths.iter().map(|path| format!("read {path}")).collect();
    for seen in cell.probes(&attempts.iter().map(String::as_str).collect::<Vec<_>>()) {
        // An empty directory in the way of a mount point is no secret.
        assert!(ABSENT.contains(&seen.errno) || seen.errno == libc::EISDIR, "{seen:?}");
    }
    // What is in an image is no secret of the host's, if nothing is mounted there.
    let mounted = if cell.has_an_image() { mount_points(cell) } else { Vec::new() };
    for dir in ["/root", "/home", "/var/lib", "/var/log", "/boot", "/mnt", "/srv", "/media"] {
        let of_the_host = mounted.iter().any(|point| point == dir || point.starts_with(&format!("{dir}/")));
        assert!(!of_the_host, "{dir}: {mounted:?}");
        let seen = cell.probe(&format!("list {dir}"));
        let images = cell.has_an_image();
        assert!(ABSENT.contains(&seen.errno) || seen.ret == 0 || dir == "/root" || images, "{dir}: {seen:?}");
    }
}

/// Where something is mounted in the box, itself included.
fn mount_points(cell: &Cell) -> Vec<String> {
    let table = cell.run("cat /proc/self/mountinfo").ok().to_owned();
    let points: Vec<_> = table.lines().filter_map(|line| Some(line.split(' ').nth(4)?.to_owned())).collect();
    assert!(points.iter().any(|point| point == "/"), "the control: {table}");
    points
}

promise!(secrets_of_the_host_are_not_there; needs filesystem, privileges);

/// F1
fn the_root_holds_only_what_a_program_needs(cell: &Cell) {
    if cell.has_an_image() {
        // What it holds is what the image holds, with these over it and nothing of the host's own.
        let known = ["/proc", "/sys", "/dev", "/sandbox", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf"];
        for point in mount_points(cell) {
            let over = known.iter().any(|known| point == *known || point.starts_with(&format!("{known}/")));
            assert!(over || point == "/", "unexpected mount at {point}");
        }
        return;
    }
    let usual = [
        "bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "opt", "proc", "root", "sandbox", "sbin",
        "tmp", "usr", "var",
    ];
    let seen = cell.probe("list /");
    for name in seen.text.lines() {
        assert!(usual.contains(&name), "unexpected /{name}: {:?}", seen.text);
    }
    let etc = cell.run("find /etc -maxdepth 1 | sort").ok().to_owned();
    for name in ["shadow", "sudoers", "ssh", "machine-id", "fstab", "crontab", "environment"] {
        assert!(!etc.lines().any(|line| line == format!("/etc/{name}")), "{name}: {etc}");
    }
}

promise!(the_root_holds_only_what_a_program_needs; needs filesystem, privileges);

/// F2
fn what_is_shown_cannot_be_changed(cell: &Cell) {
    let targets = ["/usr/bin/env", "/bin/sh", "/etc/passwd", "/usr/bin", "/etc/hosts"];
    for target in targets {
        let ran = cell.run(&format!(
            "(echo x >> {target}); chmod 777 {target}; rm -f {target}; mv {target} {target}.moved; (: > {target}/new); \
            test -e {target}"
        ));
        assert_eq!(ran.exit_code, 0, "{target} is still there: {ran:?}");
    }
    for seen in cell.probes(&[
        "write /usr/bin/env",
        "create /usr/bin/new",
        "create /etc/new",
        "create /new",
        "create /dev/new",
    ]) {
        seen.fails_with(&[libc::EROFS, libc::EACCES, libc::EPERM]);
    }
    assert_eq!(cell.probe("create /tmp/new").errno, 0, "the control");
}

promise!(what_is_shown_cannot_be_changed; needs filesystem, privileges);

/// F2
fn the_interpreters_own_modules_cannot_be_changed(cell: &Cell) {
    let code = r"
import os, sys
for p in [os.path.dirname(os.__file__), os.path.dirname(sys.executable), sys.prefix]:
    try: open(os.path.join(p, 'new.py'), 'w'); print('wrote', p)
    except OSError as e: print(e.errno)";
    let ran = cell.language("python").run(code);
    assert!(!ran.ok().contains("wrote"), "{}", ran.stdout);
    assert_eq!(ran.stdout.lines().count(), 3);
}

promise!(the_interpreters_own_modules_cannot_be_changed; needs filesystem, privileges);

/// Collects `*` after this code ran, and returns what came back as text.
fn collected_after(cell: &Cell, code: &str) -> (Vec<String>, String) {
    let ran = cell.option("--collect", "**/*").run(code);
    assert_ne!(ran.status, Status::TimedOut, "no hang: {code}");
    let files = ran.files.clone().expect("files were asked for");
    let text = files.iter().map(|file| String::from_utf8_lossy(&file.content()).into_owned()).collect();
    (files.into_iter().map(|file| file.path).collect(), text)
}

/// F4
fn links_pipes_sockets_and_directories_are_not_collected(cell: &Cell) {
    let scratch = Scratch::new();
    let word = secret();
    let file = scratch.file("secret", &word);
    let (dir, file) = (scratch.path().display(), file.display());
    let code = format!(
        "echo plain > plain.txt; ln -s {file} link.txt; ln -s {dir} linked; ln -s /etc/passwd passwd; ln -s .. up; \
         mkfifo pipe.txt; mkdir dir.txt; ln -s /proc/self/environ env; ln -s /dev/zero zero; ln -s self self"
    );
    let (names, text) = collected_after(cell, &code);
    assert_eq!(names, ["plain.txt"], "{names:?}");
    assert!(!text.contains(&word) && text == "plain\n");
}

promise!(links_pipes_sockets_and_directories_are_not_collected);

/// F4
fn a_directory_swapped_for_a_link_leads_nowhere(cell: &Cell) {
    let scratch = Scratch::new();
    let word = secret();
    let _file = scratch.file("x.txt", &word);
    let code = format!(
        "mkdir d; echo own > d/x.txt; (while :; do mv d e; ln -s {0} d; rm d; mv e d; \
            done) & sleep 0.5; exit 0",
        scratch.path().display()
    );
    for _ in 0..3 {
        let (_, text) = collected_after(cell, &code);
        assert!(!text.contains(&word));
    }
}

promise!(a_directory_swapped_for_a_link_leads_nowhere);

/// F4
fn collecting_into_a_directory_follows_no_link_that_is_there(cell: &Cell) {
    let (here, victim) = (Scratch::new(), Scratch::new());
    let target = victim.file("target", "untouched");
    symlink(&target, here.path().join("out.txt")).unwrap();
    symlink(victim.path(), here.path().join("dir")).unwrap();
    let cell = cell.option("--collect", "**/*.txt").option("--collect-to", here.path().to_str().unwrap());
    for cell in [cell.clone(), cell.flag("--overwrite")] {
        let _told = cell.plain("echo changed > out.txt; mkdir dir; echo planted > dir/planted.txt");
        assert_eq!(fs::read_to_string(&target).unwrap(), "untouched");
        assert!(!victim.path().join("planted.txt").exists());
    }
}

promise!(collecting_into_a_directory_follows_no_link_that_is_there; cold: "it is about the command line");

/// F4
fn a_collected_file_is_not_written_beneath_version_control(cell: &Cell) {
    let here = Scratch::new();
    let _ = here.file(".git/config", "own");
    let code = "mkdir -p .git .GIT/hooks .config sub/.hg; echo x > .git/config; echo x > .GIT/hooks/h; \
                echo x > sub/.hg/hgrc; echo x > .config/ok";
    let cell = [".git/*", ".GIT/**", "sub/.hg/*", ".config/*"]
        .iter()
        .fold(cell.caller_cwd(here.path()), |cell, pattern| cell.option("--collect", pattern));
    let told = cell.flag("--overwrite").plain(code);
    assert_eq!(told.code(), 0, "{told:?}");
    assert_eq!(fs::read_to_string(here.path().join(".config/ok")).unwrap(), "x\n", "the control");
    assert_eq!(fs::read_to_string(here.path().join(".git/config")).unwrap(), "own");
    assert!(!here.path().join(".GIT/hooks/h").exists() && !here.path().join("sub/.hg/hgrc").exists());
}

promise!(a_collected_file_is_not_written_beneath_version_control; cold: "it is about the command line");

/// F7, F8
fn there_is_no_way_up_out_of_the_root(cell: &Cell) {
    let up = "../".repeat(60);
    let mut attempts = Vec::new();
    for path in [
        format!("/{up}etc/shadow"),
        format!("/proc/self/root/{up}etc/shadow"),
        format!("/proc/self/cwd/{up}etc/shadow"),
        format!("/proc/1/root/{up}etc/shadow"),
    ] {
        attempts.push(format!("read {path}"));
    }
    for seen in cell.probes(&attempts.iter().map(String::as_str).collect::<Vec<_>>()) {
        seen.fails_with(ABSENT);
    }
    let (inside, outside) = (
        cell.run("stat -c %d:%i /").ok().to_owned(),
        std::os::unix::fs::MetadataExt::dev(&fs::metadata("/").unwrap()),
    );
    assert!(!inside.starts_with(&format!("{outside}:")), "another root");
}

promise!(there_is_no_way_up_out_of_the_root; needs filesystem, privileges);

/// F9: CVE-2019-5736
fn the_binary_that_entered_the_box_cannot_be_overwritten(cell: &Cell) {
    let ran = cell.with_probe().run(
        "for p in /proc/1/exe /proc/self/exe /proc/$PPID/exe; do ./probe write $p; \
        ./probe read $p | cut -c1-60; done",
    );
    let seen: Vec<_> = ran.stdout.lines().filter(|line| line.contains("\"op\":\"write\"")).collect();
    assert_eq!(seen.len(), 3, "{ran:?}");
    assert!(!seen[0].contains("\"errno\":0"), "PID 1: {seen:?}");
    assert!(!seen[2].contains("\"errno\":0"), "the parent: {seen:?}");
    assert!(
        seen[1].contains(&format!("\"errno\":{}", libc::ETXTBSY)) || seen[1].contains("\"errno\":"),
        "{seen:?}"
    );
    assert_eq!(cell.run("echo next").ok(), "next\n", "and belljar still runs");
}

promise!(the_binary_that_entered_the_box_cannot_be_overwritten; needs filesystem, privileges);

/// F10, F11: runc's list of masked paths, and what holds a kernel's switches
fn proc_shows_processes_and_nothing_of_the_kernel(cell: &Cell) {
    let mut masked = vec![
        "acpi",
        "asound",
        "kcore",
        "keys",
        "latency_stats",
        "timer_list",
        "timer_stats",
        "sched_debug",
        "scsi",
        "kallsyms",
        "kmsg",
        "config.gz",
        "modules",
        "bus",
        "fs",
        "irq",
        "sysrq-trigger",
        "iomem",
        "interrupts",
        "cmdline",
    ];
    assert_eq!(outside("read /proc/kallsyms")[0].errno, 0, "the control");
    if cell.has_an_image() {
        masked.push("version");
    } else {
        let compiler = cell.run("grep -ci 'gcc\\|clang' /proc/version");
        assert_eq!(compiler.exited(1), "0\n", "it says what uname says");
    }
    let reads: Vec<String> = masked.iter().map(|name| format!("read /proc/{name}")).collect();
    for seen in cell.probes(&reads.iter().map(String::as_str).collect::<Vec<_>>()) {
        // An engine puts nothing in its place: an empty file or an empty directory.
        let hidden = cell.has_an_image() && seen.ret == 0 && seen.text.is_empty();
        assert!(hidden || ABSENT.contains(&seen.errno), "{seen:?}");
    }
    let switches = [
        "sys/kernel/core_pattern",
        "sys/kernel/modprobe",
        "sys/fs/binfmt_misc/register",
        "sysrq-trigger",
        "sys/vm/drop_caches",
    ];
    let writes: Vec<String> = switches.iter().map(|name| format!("write /proc/{name}")).collect();
    for seen in cell.probes(&writes.iter().map(String::as_str).collect::<Vec<_>>()) {
        seen.fails_with(&[libc::ENOENT, libc::EROFS, libc::EACCES, libc::EPERM]);
    }
    let ids = cell.run("cd /proc; echo [0-9]*").ok().split_whitespace().count();
    assert!(ids <= 4, "its own processes only: {ids}");
    assert_eq!(cell.probe("read /proc/self/status").errno, 0, "the control: itself it can see");
}

promise!(proc_shows_processes_and_nothing_of_the_kernel; needs filesystem, privileges);

/// F11: the one thing here that only Landlock stands in the way of
fn proc_cannot_be_written_even_about_oneself(cell: &Cell) {
    assert_eq!(outside_as_nobody("write /proc/self/comm")[0].errno, 0, "the control");
    for seen in cell.probes(&["write /proc/self/comm", "write /proc/self/oom_score_adj"]) {
        seen.fails_with(&[libc::EACCES]);
    }
}

promise!(proc_cannot_be_written_even_about_oneself; needs filesystem, privileges);

/// F12
fn there_is_no_sys(cell: &Cell) {
    assert!(outside("list /sys")[0].ret > 0, "the control");
    let seen = cell.probe("list /sys");
    if cell.has_an_image() {
        // The box's own cgroup is there, to be read; everything else is hidden.
        let beneath = cell.probe("list /sys/fs");
        let names = seen.text.lines().filter(|name| *name != "fs").map(|name| format!("/sys/{name}"));
        let more =
            beneath.text.lines().filter(|name| *name != "cgroup").map(|name| format!("/sys/fs/{name}"));
        let hidden: Vec<String> = names.chain(more).collect();
        assert!(hidden.iter().any(|path| path == "/sys/class"), "the control: {hidden:?}");
        let attempts: Vec<String> = hidden.iter().map(|path| format!("list {path}")).collect();
        for (path, seen) in
            hidden.iter().zip(cell.probes(&attempts.iter().map(String::as_str).collect::<Vec<_>>()))
        {
            assert_eq!((seen.ret, seen.errno), (0, 0), "{path}");
        }
        return;
    }
    assert!(seen.errno == libc::ENOENT || seen.ret == 0, "{seen:?}");
}

promise!(there_is_no_sys; needs filesystem, privileges);

/// F13
fn dev_holds_exactly_the_harmless_devices(cell: &Cell) {
    let mut names: Vec<String> = cell.probe("list /dev").text.lines().map(str::to_owned).collect();
    names.sort();
    let harmless = [
        "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom",
        "zero",
    ];
    for name in &names {
        assert!(harmless.contains(&name.as_str()), "unexpected /dev/{name}");
    }
    for name in ["null", "zero", "full", "random", "urandom", "shm"] {
        assert!(names.iter().any(|there| there == name), "/dev/{name} is missing");
    }
    assert_eq!(
        cell.run(
            "echo x > /dev/null; head -c 3 /dev/zero | wc -c; head -c 3 /dev/urandom | wc -c; \
        echo y | cat /dev/stdin; echo x 2>/dev/null > /dev/full || echo full"
        )
        .ok(),
        "3\n3\ny\nfull\n"
    );
}

promise!(dev_holds_exactly_the_harmless_devices; needs filesystem, privileges);

/// F16
fn shared_memory_is_not_executable(cell: &Cell) {
    if cell.has_an_image() && cell.keeps("disk") {
        // It is a part of the one disk, whose files may be executed.
        return assert_eq!(cell.run("readlink -f /dev/shm").ok(), "/sandbox/.belljar/shm\n");
    }
    let ran = cell.run("cp /bin/true /dev/shm/t && chmod +x /dev/shm/t && /dev/shm/t");
    assert_eq!(ran.exit_code, 126, "{ran:?}");
    assert_eq!(cell.run("cp /bin/true /sandbox/t && /sandbox/t").exit_code, 0, "the control");
}

promise!(shared_memory_is_not_executable; needs filesystem, privileges);

/// F17
fn attributes_of_security_cannot_be_set(cell: &Cell) {
    for name in ["security.capability", "trusted.x"] {
        let seen = cell.probe(&format!("attribute a {name}"));
        seen.fails_with(&[libc::EPERM, libc::EOPNOTSUPP, libc::EACCES]);
    }
}

promise!(attributes_of_security_cannot_be_set; needs filesystem, privileges);

/// F19
fn strange_names_come_back_or_are_left_but_break_nothing(cell: &Cell) {
    let long = "n".repeat(255);
    let code = format!(
        "echo a > 'new\nline.txt'; echo b > 'ü ✓.txt'; printf c > \"$(printf 'bad\\377.txt')\"; \
            echo d > '{long}'; echo e > '-rf'; echo f > ' '; echo g > '\\'"
    );
    let ran = cell.option("--collect", "**/*").run(&code);
    let names: Vec<_> = ran.files.iter().flatten().map(|file| file.path.as_str()).collect();
    for name in ["new\nline.txt", "ü ✓.txt", &long, "-rf", " ", "\\"] {
        assert!(names.contains(&name), "{name:?} in {names:?}");
    }
}

promise!(strange_names_come_back_or_are_left_but_break_nothing);

/// F20, E9
fn the_mount_table_names_no_path_of_the_host(cell: &Cell) {
    if cell.has_an_image() {
        // An engine's storage is named in it, and a workspace: docs/docker.md says so. Nothing else of the caller's is.
        let table = cell.run("cat /proc/self/mountinfo /proc/self/mounts").ok().to_owned();
        assert!(!table.contains("conformance-") && !table.contains("/home/"), "{table}");
        return;
    }
    let scratch = Scratch::new();
    let cell = cell.option("--workspace", scratch.path().to_str().unwrap());
    let table = cell.run("cat /proc/self/mountinfo /proc/self/mounts").ok().to_owned();
    assert!(!table.contains("/home/") && !table.contains("overlay/") && !table.contains("docker"), "{table}");
    let name = scratch.path().file_name().unwrap().to_str().unwrap();
    assert!(!table.contains(name), "the workspace's own path: {table}");
    let cgroup = cell.run("cat /proc/self/cgroup 2>/dev/null; true").stdout.clone();
    assert!(!cgroup.contains("belljar"), "{cgroup}");
}

promise!(the_mount_table_names_no_path_of_the_host; needs filesystem, privileges; cold: "a workspace is mounted while the box is made");

/// N3
fn a_socket_in_the_workspace_does_not_answer(cell: &Cell) {
    let scratch = Scratch::new();
    let path = scratch.path().join("host.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    assert_eq!(outside(&format!("unix {}", path.display()))[0].errno, 0, "the control");
    let cell = cell.option("--workspace", scratch.path().to_str().unwrap());
    for cell in cell.in_each_network() {
        cell.probe("unix /work/host.sock").fails_with(&[
            libc::EACCES,
            libc::ECONNREFUSED,
            libc::EPERM,
            libc::ENOENT,
        ]);
    }
}

promise!(a_socket_in_the_workspace_does_not_answer; needs filesystem, privileges; cold: "a workspace is mounted while the box is made");
