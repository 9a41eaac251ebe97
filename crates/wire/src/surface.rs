//! Hints in the words of the interface that a client uses. Most are written for the command line; over HTTP and MCP its
//! options and commands have other names.

use crate::problem::Problem;

/// An interface other than the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Surface {
    /// Version 1 of the HTTP interface.
    Http,
    /// The tools of MCP.
    Mcp,
}

const DOCTOR: [&str; 2] = ["`belljar doctor --all`", "`belljar doctor`"];
const LANGUAGES: &str = "`belljar languages`";
const WAIVE: &str = "--waive ";

impl Problem {
    /// The same, with a hint for clients of this interface.
    #[must_use]
    pub fn over(mut self, surface: Surface) -> Problem {
        self.error.hint = surface.worded(&self.error.hint);
        self
    }
}

impl Surface {
    fn worded(self, hint: &str) -> String {
        let (doctor, languages) = match self {
            Surface::Http => ("`GET /v1/backends`", "`GET /v1/languages`"),
            Surface::Mcp => ("`belljar doctor` on the server's host", "list_languages"),
        };
        // Each is replaced once: what takes its place may contain it.
        let hint = DOCTOR
            .iter()
            .find(|name| hint.contains(**name))
            .map_or_else(|| hint.to_owned(), |name| hint.replace(name, doctor));
        self.without_options(&hint.replace(LANGUAGES, languages))
    }

    /// `--waive memory --waive pids` as this interface has it.
    fn without_options(self, hint: &str) -> String {
        let mut told = String::with_capacity(hint.len());
        let mut rest = hint;
        while let Some(at) = rest.find(WAIVE) {
            told += &rest[..at];
            rest = &rest[at..];
            let mut names = Vec::new();
            while let Some(named) = rest.strip_prefix(WAIVE) {
                let end = named.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(named.len());
                names.push(&named[..end]);
                rest = &named[end..];
                if let Some(next) = rest.strip_prefix(' ').filter(|next| next.starts_with(WAIVE)) {
                    rest = next;
                }
            }
            told += &match self {
                Surface::Http => {
                    format!(
                        "\"waive\": {names:?}, if the server allows it (waive = {names:?} in its belljar.toml)"
                    )
                }
                Surface::Mcp => format!(
                    "a waiver of {}, which only the operator can give (waive = {names:?} in belljar.toml)",
                    names.join(", ")
                ),
            };
        }
        told + rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Code;

    fn worded(surface: Surface, hint: &str) -> String {
        Problem::new(Code::InvalidRequest, "", hint).over(surface).error.hint
    }

    #[test]
    fn commands_become_what_the_interface_has() {
        let hint = "did you mean 'c'? `belljar languages` lists what can run here";
        let http = "did you mean 'c'? `GET /v1/languages` lists what can run here";
        assert_eq!(worded(Surface::Http, hint), http);
        assert_eq!(worded(Surface::Mcp, hint), "did you mean 'c'? list_languages lists what can run here");
        for hint in ["`belljar doctor --all` lists the backends", "`belljar doctor` lists the backends"] {
            assert_eq!(worded(Surface::Http, hint), "`GET /v1/backends` lists the backends");
            assert_eq!(
                worded(Surface::Mcp, hint),
                "`belljar doctor` on the server's host lists the backends"
            );
        }
        assert_eq!(worded(Surface::Http, "try again in 1 s"), "try again in 1 s");
    }

    #[test]
    fn waivers_become_a_field_or_the_operators_affair() {
        let hint = "start systemd; or do without: --waive memory --waive pids; see above";
        assert_eq!(
            worded(Surface::Http, hint),
            "start systemd; or do without: \"waive\": [\"memory\", \"pids\"], if the server allows it \
             (waive = [\"memory\", \"pids\"] in its belljar.toml); see above"
        );
        assert_eq!(
            worded(Surface::Mcp, hint),
            "start systemd; or do without: a waiver of memory, pids, which only the operator can give \
             (waive = [\"memory\", \"pids\"] in belljar.toml); see above"
        );
    }
}
