//! Code in a workspace, and a workspace that code can write to.

use std::fs;
use std::os::unix::fs::symlink;

use belljar_conformance::{Cell, Scratch, promise};

fn in_workspace(cell: &Cell, scratch: &Scratch) -> Cell {
    cell.option("--workspace", scratch.path().to_str().unwrap())
}

fn writable(cell: &Cell, scratch: &Scratch) -> Cell {
    in_workspace(cell, scratch).flag("--writable")
}

fn a_file_of_the_workspace_runs_where_it_is(cell: &Cell) {
    let scratch = Scratch::new();
    let _own = scratch.file("main.sh", "echo 'of the workspace'\n");
    let code = "case \"$0\" in */work/tools/main.sh) echo in place;; esac\n\
                . \"$(dirname \"$0\")/lib.sh\"\nls; sh main.sh\n";
    let tool = scratch.file("tools/main.sh", code);
    let _lib = scratch.file("tools/lib.sh", "echo its neighbour\n");
    let expected = "in place\nits neighbour\nmain.sh\ntools\nof the workspace\n";
    assert_eq!(in_workspace(cell, &scratch).run_file(&tool).ok(), expected);
    let by_its_name = in_workspace(cell, &scratch).caller_cwd(scratch.path());
    assert_eq!(by_its_name.run_file("tools/main.sh".as_ref()).ok(), expected);
}

promise!(a_file_of_the_workspace_runs_where_it_is; cold: "a workspace is mounted while the box is made");

fn a_file_from_elsewhere_is_put_into_the_working_directory(cell: &Cell) {
    let (scratch, elsewhere) = (Scratch::new(), Scratch::new());
    let _there = scratch.file("there", "");
    let tool = elsewhere.file("deep/tool.sh", "ls; case \"$0\" in */work/tool.sh) echo in the top;; esac\n");
    assert_eq!(in_workspace(cell, &scratch).run_file(&tool).ok(), "there\ntool.sh\nin the top\n");
}

promise!(a_file_from_elsewhere_is_put_into_the_working_directory; cold: "a workspace is mounted while the box is made");

fn a_link_out_of_the_workspace_is_not_followed(cell: &Cell) {
    let (scratch, elsewhere) = (Scratch::new(), Scratch::new());
    let secret = elsewhere.file("secret.sh", "echo secret\n");
    let _tool = scratch.file("tool.sh", "echo inside\n");
    symlink(&secret, scratch.path().join("out.sh")).unwrap();
    symlink("tool.sh", scratch.path().join("in.sh")).unwrap();
    let cell = in_workspace(cell, &scratch);
    assert_eq!(cell.run_file(&scratch.path().join("in.sh")).ok(), "inside\n", "the control");
    let out = scratch.path().join("out.sh");
    let refused = cell.refuse_words(&[out.to_str().unwrap()]);
    assert!(refused.error.message.ends_with("is a link that leads out of the workspace"), "{refused:?}");
}

promise!(a_link_out_of_the_workspace_is_not_followed; cold: "it is about the command line");

fn a_file_can_be_laid_over_one_of_the_workspace(cell: &Cell) {
    let (scratch, elsewhere) = (Scratch::new(), Scratch::new());
    let before = scratch.file("lib/part.sh", "echo before\n");
    let test = scratch.file("test.sh", ". lib/part.sh\nls lib\n");
    let _other = scratch.file("lib/other.sh", "");
    let patched = elsewhere.file("patched.sh", "echo after\n");
    let over =
        |path: &str| in_workspace(cell, &scratch).option("--file", &format!("{}:{path}", patched.display()));
    assert_eq!(
        in_workspace(cell, &scratch).run_file(&test).ok(),
        "before\nother.sh\npart.sh\n",
        "the control"
    );
    assert_eq!(over("lib/part.sh").run_file(&test).ok(), "after\nother.sh\npart.sh\n");
    assert_eq!(over("test.sh").run_file(&test).ok(), "after\n", "over the code itself");
    assert_eq!(fs::read_to_string(before).unwrap(), "echo before\n");
}

promise!(a_file_can_be_laid_over_one_of_the_workspace; cold: "a workspace is mounted while the box is made");

fn what_is_written_to_a_workspace_is_gone_afterwards(cell: &Cell) {
    let scratch = Scratch::new();
    let old = scratch.file("sub/old.txt", "old");
    if cell.backend() != "native" {
        let refused = writable(cell, &scratch).refuse("true");
        assert_eq!(refused.error.field.as_deref(), Some("writable"), "{refused:?}");
        return;
    }
    let code = "echo new > new.txt; mkdir -p sub/deep; echo x > sub/deep/x; rm sub/old.txt; cat new.txt sub/deep/x; ls sub";
    let ran = writable(cell, &scratch).option("--collect", "**").run(code);
    assert_eq!(ran.ok(), "new\nx\ndeep\n");
    let files: Vec<_> = ran.files.iter().flatten().map(|file| (file.path.as_str(), file.content())).collect();
    assert_eq!(files, [("new.txt", b"new\n".to_vec()), ("sub/deep/x", b"x\n".to_vec())]);
    assert!(ran.changes.is_none(), "nobody asked");
    assert_eq!(fs::read_to_string(&old).unwrap(), "old");
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1);
    assert_eq!(
        writable(cell, &scratch).run("cat new.txt 2>/dev/null; ls sub").ok(),
        "old.txt\n",
        "the next run sees nothing of it"
    );
    let control = in_workspace(cell, &scratch).run("echo x > new.txt && echo written; true");
    assert_eq!(control.ok(), "", "without --writable");
}

promise!(what_is_written_to_a_workspace_is_gone_afterwards; needs filesystem; cold: "a workspace is mounted while the box is made");

fn what_is_written_to_a_workspace_counts_as_disk(cell: &Cell) {
    if cell.backend() != "native" {
        return;
    }
    let scratch = Scratch::new();
    let large = scratch.file("large", vec![b'x'; 8 << 20]);
    let cell = writable(cell, &scratch).limit("disk", "4M");
    assert_eq!(cell.run("head -c 3000000 /dev/zero > a && echo fits").ok(), "fits\n", "the control");
    let both = "head -c 3000000 /dev/zero > a; head -c 3000000 /dev/zero > /tmp/b && echo fits; true";
    assert_eq!(cell.run(both).ok(), "", "one budget for all");
    assert_eq!(cell.run("mv large larger 2>/dev/null && echo copied; true").ok(), "", "a copy counts, too");
    assert_eq!(fs::metadata(large).unwrap().len(), 8 << 20);
}

promise!(what_is_written_to_a_workspace_counts_as_disk; needs filesystem, disk; cold: "a workspace is mounted while the box is made");

fn changes_tell_what_a_run_did(cell: &Cell) {
    if cell.backend() != "native" {
        return;
    }
    let scratch = Scratch::new();
    let _files = ["keep/same.txt", "keep/edit.txt", "gone/a.txt", "gone/b.txt", "renewed/old.txt", "touched"]
        .map(|name| scratch.file(name, "one\ntwo\n"));
    let code = "printf 'one\\n2\\n' > e && mv e keep/edit.txt; rm -r gone; rm -r renewed; mkdir renewed; \
                echo new > renewed/new.txt; printf '\\000\\001' > binary; ln -s /etc/passwd link; \
                cp touched t && mv t touched; mkdir empty; mkfifo pipe";
    let ran = writable(cell, &scratch).flag("--changes").run(code);
    ran.ok();
    let changes = ran.changes.clone().expect("changes, because they were asked for");
    assert_eq!(changes.added, ["binary", "link", "pipe", "renewed/new.txt"]);
    assert_eq!(changes.changed, ["keep/edit.txt"]);
    assert_eq!(changes.removed, ["gone/a.txt", "gone/b.txt", "renewed/old.txt"]);
    assert!(!changes.truncated, "{changes:?}");
    let edit = "diff --git a/keep/edit.txt b/keep/edit.txt\n--- a/keep/edit.txt\n+++ b/keep/edit.txt\n\
                @@ -1,2 +1,2 @@\n one\n-two\n+2\n";
    assert!(changes.patch.contains(edit), "{}", changes.patch);
    assert!(!changes.patch.contains("link") && !changes.patch.contains("binary"), "{}", changes.patch);
    let nothing = writable(cell, &scratch).flag("--changes").run("ls > /dev/null").changes.clone().unwrap();
    assert_eq!((nothing.added.len(), nothing.patch.as_str()), (0, ""));
}

promise!(changes_tell_what_a_run_did; needs filesystem; cold: "a workspace is mounted while the box is made");

fn git_applies_the_patch(cell: &Cell) {
    if cell.backend() != "native" {
        return;
    }
    let scratch = Scratch::new();
    let _files = ["a b.txt", "edit.txt", "gone.txt"].map(|name| scratch.file(name, "one\ntwo\n"));
    let code = "printf 'no end' > n && mv n edit.txt; rm gone.txt; printf 'x\\n' > 'new file'; : > empty; \
                echo y > x && mv x 'a b.txt'; printf '#!/bin/sh\\n' > tool; chmod +x tool";
    let ran = writable(cell, &scratch).flag("--changes").run(code);
    ran.ok();
    let apart = Scratch::new();
    let patch = apart.file("patch", &ran.changes.as_ref().unwrap().patch);
    let applied = std::process::Command::new("git")
        .args(["apply", "--unsafe-paths", "-p1"])
        .arg(&patch)
        .current_dir(scratch.path())
        .env("GIT_CEILING_DIRECTORIES", scratch.path().parent().unwrap())
        .output();
    let Ok(applied) = applied else { return cell.skip("there is no git here") };
    assert!(applied.status.success(), "{applied:?}\n{}", ran.changes.as_ref().unwrap().patch);
    let read = |name: &str| fs::read_to_string(scratch.path().join(name)).unwrap();
    assert_eq!(
        (read("edit.txt"), read("new file"), read("a b.txt"), read("empty")),
        ("no end".into(), "x\n".into(), "y\n".into(), String::new())
    );
    assert!(!scratch.path().join("gone.txt").exists());
}

promise!(git_applies_the_patch; needs filesystem; cold: "a workspace is mounted while the box is made");

fn what_writable_and_changes_need_is_said(cell: &Cell) {
    let scratch = Scratch::new();
    let refused = cell.flag("--writable").refuse("true");
    assert_eq!(
        (refused.error.field.as_deref(), &*refused.error.message),
        (Some("writable"), "writable needs a workspace")
    );
    assert!(refused.error.hint.contains("--workspace"), "{refused:?}");
    let refused = in_workspace(cell, &scratch).flag("--changes").refuse("true");
    assert_eq!(refused.error.field.as_deref(), Some("changes"), "{refused:?}");
}

promise!(what_writable_and_changes_need_is_said; cold: "it is about the command line");
