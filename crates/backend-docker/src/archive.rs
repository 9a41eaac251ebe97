//! Just enough of the `tar` format to put a few files into an image.

/// An archive under construction.
#[derive(Default)]
pub(crate) struct Archive(Vec<u8>);

const BLOCK: usize = 512;

impl Archive {
    pub(crate) fn directory(&mut self, path: &str) {
        self.entry(path, 0o755, b'5', "", &[]);
    }

    pub(crate) fn file(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entry(path, mode, b'0', "", content);
    }

    pub(crate) fn link(&mut self, path: &str, target: &str) {
        self.entry(path, 0o777, b'2', target, &[]);
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.0.extend([0; 2 * BLOCK]);
        self.0
    }

    fn entry(&mut self, path: &str, mode: u32, kind: u8, target: &str, content: &[u8]) {
        let mut head = [0; BLOCK];
        put(&mut head, 0, path.as_bytes());
        put(&mut head, 100, format!("{mode:07o}").as_bytes());
        put(&mut head, 108, b"0000000");
        put(&mut head, 116, b"0000000");
        put(&mut head, 124, format!("{:011o}", content.len()).as_bytes());
        put(&mut head, 136, b"00000000000");
        head[156] = kind;
        put(&mut head, 157, target.as_bytes());
        put(&mut head, 257, b"ustar\x0000");
        // The checksum is that of the header with blanks in its own place.
        put(&mut head, 148, b"        ");
        let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
        put(&mut head, 148, format!("{sum:06o}\0").as_bytes());
        self.0.extend(head);
        self.0.extend(content);
        self.0.resize(self.0.len().next_multiple_of(BLOCK), 0);
    }
}

fn put(head: &mut [u8; BLOCK], at: usize, text: &[u8]) {
    head[at..at + text.len()].copy_from_slice(text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    #[test]
    fn tar_reads_it() {
        let mut archive = Archive::default();
        archive.directory("a");
        archive.file("a/file", 0o111, &[b'x'; 700]);
        archive.link("a/link", "file");
        let mut tar =
            Command::new("tar").arg("tv").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        tar.stdin.take().unwrap().write_all(&archive.finish()).unwrap();
        let output = tar.wait_with_output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[1].starts_with("---x--x--x") && lines[1].contains(" 700 "), "{text}");
        assert!(lines[2].ends_with("a/link -> file"), "{text}");
    }
}
