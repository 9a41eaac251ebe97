use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;

use rustix::fs::{CWD, mknodat};

use super::*;

/// A workspace, and a layer over it as overlayfs would write it.
struct Folders {
    folder: tempfile::TempDir,
}

impl Folders {
    fn new() -> Folders {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("before")).unwrap();
        fs::create_dir_all(folder.path().join("layer")).unwrap();
        Folders { folder }
    }

    fn put(&self, path: &str, content: &str) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// The kernel lets everybody make this one.
    fn remove(&self, path: &str) {
        let path = self.folder.path().join("layer").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        mknodat(CWD, &path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    }

    fn changes(&self) -> Changes {
        let open = |name: &str| fs::File::open(self.folder.path().join(name)).unwrap();
        let (before, layer) = (open("before"), open("layer"));
        let code = rustix::process::geteuid().as_raw();
        Layered { before: before.as_fd(), layer: layer.as_fd(), code }.changes()
    }
}

#[test]
fn what_was_added_changed_and_removed_is_told_apart() {
    let folders = Folders::new();
    for name in ["same", "edited", "gone", "dir/gone", "shape"] {
        folders.put(&format!("before/{name}"), "one\n");
    }
    folders.put("layer/same", "one\n");
    folders.put("layer/edited", "two\n");
    folders.put("layer/new/deep", "new\n");
    folders.put("layer/shape/now-a-directory", "");
    folders.remove("gone");
    folders.remove("dir");
    folders.remove("was-never-there");
    let changes = folders.changes();
    assert_eq!(changes.added, ["new/deep", "shape/now-a-directory"]);
    assert_eq!(changes.changed, ["edited"]);
    assert_eq!(changes.removed, ["dir/gone", "gone", "shape"]);
    assert!(!changes.truncated);
    let expected = "diff --git a/edited b/edited\n--- a/edited\n+++ b/edited\n@@ -1 +1 @@\n-one\n+two\n";
    assert!(changes.patch.contains(expected), "{}", changes.patch);
}

#[test]
fn a_link_is_told_and_not_followed() {
    let folders = Folders::new();
    folders.put("secret/f", "secret");
    folders.put("before/dir/f", "before");
    symlink("../secret", folders.folder.path().join("layer/dir")).unwrap();
    symlink("../secret", folders.folder.path().join("before/was")).unwrap();
    folders.put("layer/was/f", "mine");
    let changes = folders.changes();
    assert_eq!(
        (changes.added, changes.removed),
        (vec!["dir".into(), "was/f".into()], vec!["dir/f".to_owned(), "was".to_owned()])
    );
    assert!(!changes.patch.contains("secret"), "{}", changes.patch);
}

#[test]
fn what_is_no_text_or_too_large_is_listed_only() {
    let folders = Folders::new();
    folders.put("layer/binary", "\0");
    let whole = "line\n".repeat(60_000);
    folders.put("layer/large", &whole);
    let changes = folders.changes();
    assert_eq!(changes.added, ["binary", "large"]);
    assert_eq!((changes.patch.as_str(), changes.truncated), ("", true));
}

#[test]
fn more_names_than_are_listed_are_left_out() {
    let folders = Folders::new();
    for number in 0..=MAX_LISTED {
        folders.put(&format!("layer/{number}"), "");
    }
    let changes = folders.changes();
    assert_eq!((changes.added.len(), changes.truncated), (MAX_LISTED, true));
}
