//! Attacks on the layer over a writable workspace: on what is beneath it, and on whoever reads it afterwards.

use std::fs;
use std::os::unix::fs::symlink;

use belljar_conformance::{Cell, Scratch, promise, secret};

/// A cell with a writable workspace whose changes are told, if the backend has that.
fn layered(cell: &Cell, scratch: &Scratch) -> Option<Cell> {
    let cell =
        cell.option("--workspace", scratch.path().to_str().unwrap()).flag("--writable").flag("--changes");
    (cell.backend() == "native").then_some(cell)
}

/// F21
fn links_in_the_layer_lead_the_reader_nowhere(cell: &Cell) {
    let (scratch, elsewhere) = (Scratch::new(), Scratch::new());
    let secret = secret();
    let hidden = elsewhere.file("d/f", &secret);
    let _before = scratch.file("d/f", "before");
    symlink(elsewhere.path(), scratch.path().join("was")).unwrap();
    assert_eq!(fs::read_to_string(scratch.path().join("was/d/f")).unwrap(), secret, "the control");
    let Some(cell) = layered(cell, &scratch) else { return };
    let outside = elsewhere.path().display();
    // A directory becomes a link, a link a directory, and names lead up and to the host's files.
    let code = format!(
        "rm -r d; ln -s {outside}/d d; rm was; mkdir -p was/d; echo x > was/d/f; ln -s {hidden} absolute; \
         ln -s ../../../../../../..{hidden} relative; ln -s /proc/self/root/{hidden} magic; ln -s . loop",
        hidden = hidden.display()
    );
    let ran = cell.option("--collect", "**").run(&code);
    ran.ok();
    let changes = ran.changes.clone().unwrap();
    assert!(!changes.patch.contains(&secret), "{changes:?}");
    let files: Vec<_> = ran.files.iter().flatten().map(|file| (file.path.as_str(), file.content())).collect();
    assert_eq!(files, [("was/d/f", b"x\n".to_vec())]);
    assert_eq!(changes.added, ["absolute", "d", "loop", "magic", "relative", "was/d/f"]);
    assert_eq!(changes.removed, ["d/f", "was"]);
}

promise!(links_in_the_layer_lead_the_reader_nowhere; needs filesystem; cold: "a workspace is mounted while the box is made");

/// F22
fn what_overlayfs_notes_in_the_layer_cannot_be_forged(cell: &Cell) {
    let scratch = Scratch::new();
    let _before = scratch.file("kept/f", "before");
    let Some(cell) = layered(cell, &scratch) else { return };
    let code = r"
import os, stat
def attempt(name, act):
    try: act()
    except OSError: print(name, 'refused')
    else: print(name, 'done')
os.mkdir('made')
attempt('whiteout', lambda: os.mknod('white', stat.S_IFCHR | 0o666, os.makedev(0, 0)))
attempt('device', lambda: os.mknod('zero', stat.S_IFCHR | 0o666, os.makedev(1, 5)))
attempt('block', lambda: os.mknod('disk', stat.S_IFBLK | 0o666, os.makedev(8, 0)))
attempt('whiteout over', lambda: os.mknod('kept/f', stat.S_IFCHR | 0o666, os.makedev(0, 0)))
attempt('pipe', lambda: os.mkfifo('pipe'))
open('kept/g', 'w').close()
for name in ('user.overlay.opaque', 'trusted.overlay.opaque', 'user.overlay.redirect', 'user.overlay.whiteout'):
    for path in ('kept', 'kept/g', '.'):
        try: os.setxattr(path, name, b'y')
        except OSError: pass
print(open('kept/f').read())
";
    let ran = cell.language("python").run(code);
    let refused =
        "whiteout refused\ndevice refused\nblock refused\nwhiteout over refused\npipe done\nbefore\n";
    assert_eq!(ran.ok(), refused);
    let changes = ran.changes.clone().unwrap();
    assert_eq!(
        (changes.added, changes.changed.len(), changes.removed.len()),
        (vec!["kept/g".to_owned(), "pipe".to_owned()], 0, 0)
    );
}

promise!(what_overlayfs_notes_in_the_layer_cannot_be_forged; needs filesystem, syscalls; cold: "a workspace is mounted while the box is made");

/// F23
fn a_huge_layer_is_told_within_bounds(cell: &Cell) {
    let scratch = Scratch::new();
    let _before = scratch.file("hole", vec![0; 1 << 20]);
    let Some(cell) = layered(cell, &scratch) else { return };
    let cell = cell.language("python").limit("timeout", "60s").limit("memory", "512M");
    let code = r"
import os
for number in range(11000): open(f'{number}', 'w').close()
for number in range(200):
    with open(f'sparse{number}', 'w') as file: file.truncate(60 << 20)
with open('lines', 'w') as file: file.write('\n' * (255 << 10))
path = '.'
for _ in range(90):
    path += '/d'
    os.mkdir(path)
open(path + '/f', 'w').close()
";
    let ran = cell.run(code);
    ran.ok();
    let changes = ran.changes.clone().unwrap();
    assert!(changes.truncated);
    assert!(changes.added.len() <= 10_000 && changes.patch.len() <= 1 << 20, "{}", changes.added.len());
    let few = cell.run("open('a', 'w').write('x')").changes.clone().unwrap();
    assert_eq!((few.added, few.truncated), (vec!["a".to_owned()], false), "the control");
}

promise!(a_huge_layer_is_told_within_bounds; needs filesystem, disk; cold: "a workspace is mounted while the box is made");

/// F24
fn no_name_forges_a_line_of_the_patch(cell: &Cell) {
    let scratch = Scratch::new();
    let Some(cell) = layered(cell, &scratch) else { return };
    let code = r"
import os
names = ['a\n--- a/victim\n+++ b/victim', 'q\ndiff --git a/victim b/victim', '\x1b[31mred', 'quo\x22te', 'back\\slash']
for name in names:
    os.makedirs(os.path.dirname(name) or '.', exist_ok=True)
    open(name, 'w').write('x\n')
os.makedirs(b'bad\xff')
open(b'bad\xff/f', 'w').write('x\n')
";
    let ran = cell.language("python").run(code);
    ran.ok();
    let changes = ran.changes.clone().unwrap();
    let forged = |line: &str| line.contains("victim") && !line.contains("\\012");
    assert!(!changes.patch.lines().any(forged), "{}", changes.patch);
    assert!(!changes.patch.contains('\u{1b}'), "{}", changes.patch);
    assert!(changes.patch.contains(r#""b/bad\377/f""#), "{}", changes.patch);
    assert_eq!(changes.added.len(), 6, "{changes:?}");
    let words = cell.language("python").plain(code);
    let told = String::from_utf8_lossy(&words.stderr).into_owned();
    assert!(
        !told.lines().any(|line| line.starts_with("--- a/victim") || line.starts_with("diff --git a/victim")),
        "{told}"
    );
}

promise!(no_name_forges_a_line_of_the_patch; needs filesystem; cold: "a workspace is mounted while the box is made");
