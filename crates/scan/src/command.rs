//! A program and its words, as a shell or a spawning function would run it.

use std::rc::Rc;

use belljar_core::finding::Launched;

use crate::view::Dialect;

/// A command, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Command {
    /// The programs that run it, such as `sudo`.
    pub(crate) wrappers: Vec<Rc<str>>,
    /// The program, without its directory.
    pub(crate) name: Rc<str>,
    /// Options. Short ones that were written together are apart.
    pub(crate) flags: Vec<Rc<str>>,
    /// Everything else.
    pub(crate) operands: Vec<Rc<str>>,
    /// The words of which one is a file that the program runs, if it is an interpreter: those that may be values of options,
    /// and the first that cannot be one. If it is none, the program itself, if it is named by its path.
    pub(crate) scripts: Vec<Rc<str>>,
    /// Code that an option passes to an interpreter, and the number of the word that it is in.
    pub(crate) code: Option<(Dialect, Rc<str>, usize)>,
}

/// Programs that run the program in their next words, with the letters of their options that take a value.
const WRAPPERS: [(&str, &str); 16] = [
    ("sudo", "ugCDhprtTU"),
    ("doas", "uC"),
    ("env", "uCS"),
    ("nohup", ""),
    ("time", "fo"),
    ("timeout", "sk"),
    ("nice", "n"),
    ("ionice", "cnpP"),
    ("exec", "a"),
    ("command", ""),
    ("builtin", ""),
    ("busybox", ""),
    ("xargs", "adEILnPs"),
    ("setsid", ""),
    ("stdbuf", "ioe"),
    ("unbuffer", ""),
];

/// Interpreters by the beginning of their names, and the options that take code.
const INTERPRETERS: [(&str, Dialect, &[&str]); 12] = [
    ("python", Dialect::Python, &["-c"]),
    ("pypy", Dialect::Python, &["-c"]),
    ("node", Dialect::JavaScript, &["-e", "-p", "--eval", "--print"]),
    ("bun", Dialect::JavaScript, &["-e", "--eval"]),
    ("bash", Dialect::Shell, &["-c"]),
    ("dash", Dialect::Shell, &["-c"]),
    ("zsh", Dialect::Shell, &["-c"]),
    ("perl", Dialect::Other("perl"), &["-e", "-E"]),
    ("ruby", Dialect::Other("ruby"), &["-e"]),
    ("php", Dialect::Other("php"), &["-r"]),
    ("lua", Dialect::Other("lua"), &["-e"]),
    ("Rscript", Dialect::Other("r"), &["-e"]),
];

impl Command {
    /// Takes words apart. `None` if there is no program in them.
    pub(crate) fn of(words: &[Rc<str>]) -> Option<Command> {
        let first = first_of_program(words);
        let name = base_name(words.get(first)?);
        if name.is_empty() {
            return None;
        }
        let (mut flags, mut operands) = (Vec::new(), Vec::new());
        for word in &words[first + 1..] {
            match word.strip_prefix('-') {
                Some(rest) if rest.starts_with('-') && rest.len() > 1 => {
                    flags.push(word.split('=').next().unwrap_or(word).into());
                }
                Some(rest) if !rest.is_empty() && rest != "-" => {
                    flags.push(word.clone());
                    if rest.len() > 1 && rest.len() < 8 {
                        flags.extend(rest.chars().map(|c| Rc::from(format!("-{c}"))));
                    }
                }
                Some(_) | None => operands.push(word.clone()),
            }
        }
        let code = inline_code(name, words, first + 1);
        let scripts = match (runs_files(name), &code) {
            (true, None) => scripts(&words[first + 1..]),
            (false, _) if words[first].contains('/') => vec![words[first].clone()],
            (true, Some(_)) | (false, _) => Vec::new(),
        };
        let wrappers = words[..first].iter().map(|word| base_name(word));
        let wrappers =
            wrappers.filter(|word| WRAPPERS.iter().any(|(name, _)| name == word)).map(Rc::from).collect();
        Some(Command { wrappers, name: name.into(), flags, operands, scripts, code })
    }

    /// What this program runs besides code in its words: a file, as this language.
    pub(crate) fn launches(&self) -> Option<(Dialect, Launched)> {
        let words: Vec<String> = self.scripts.iter().map(|word| word.to_string()).collect();
        let program = words.first()?.clone();
        Some(match (interpreter(&self.name), self.name.as_ref()) {
            (Some((_, dialect, _)), _) => (dialect, Launched::File(words)),
            (None, "." | "source") => (Dialect::Shell, Launched::File(words)),
            (None, _) => (Dialect::Shell, Launched::Program(program)),
        })
    }

    /// The language of what this program reads from its standard input and runs.
    pub(crate) fn interprets_stdin(&self) -> Option<Dialect> {
        let only_stdin =
            self.operands.iter().all(|word| word.as_ref() == "-" || word.as_ref() == "/dev/stdin");
        let reads = only_stdin || self.flags.iter().any(|flag| flag.as_ref() == "-s");
        interpreter(&self.name).map(|(_, dialect, _)| dialect).filter(|_| self.code.is_none() && reads)
    }
}

/// The most words that may be the file that a command runs.
pub(crate) const MOST_WORDS: usize = 8;

fn runs_files(name: &str) -> bool {
    interpreter(name).is_some() || matches!(name, "." | "source")
}

/// The words of which one is a file to run.
fn scripts(words: &[Rc<str>]) -> Vec<Rc<str>> {
    let mut scripts = Vec::new();
    let mut after_option = false;
    for word in words {
        let is_option = word.starts_with(['-', '+']) && word.len() > 1;
        if !is_option {
            scripts.push(word.clone());
        }
        if scripts.len() == MOST_WORDS || !is_option && !after_option {
            break;
        }
        after_option = is_option;
    }
    scripts
}

/// The number of the first word that is not a wrapper's.
fn first_of_program(words: &[Rc<str>]) -> usize {
    let mut first = 0;
    let mut options: Option<&str> = None;
    while let Some(word) = words.get(first) {
        if let Some((_, with_value)) = WRAPPERS.iter().find(|(name, _)| *name == base_name(word)) {
            options = Some(with_value);
        } else if let Some(with_value) = options {
            let is_setting = word.contains('=') || word.starts_with(|c: char| c.is_ascii_digit());
            match word.strip_prefix('-') {
                // Its value is the next word.
                Some(option) if option.len() == 1 && with_value.contains(option) => first += 1,
                Some(_) => {}
                None if is_setting => {}
                None => break,
            }
        } else {
            break;
        }
        first += 1;
    }
    // A wrapper alone is a program, too.
    if first >= words.len() { 0 } else { first }
}

fn base_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

fn interpreter(name: &str) -> Option<(&'static str, Dialect, &'static [&'static str])> {
    if name == "sh" || name == "ash" || name == "ksh" {
        return Some(("sh", Dialect::Shell, &["-c"]));
    }
    let unversioned = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '-');
    INTERPRETERS.into_iter().find(|(known, _, _)| *known == unversioned)
}

fn inline_code(name: &str, words: &[Rc<str>], from: usize) -> Option<(Dialect, Rc<str>, usize)> {
    let (_, dialect, options) = interpreter(name)?;
    for (index, word) in words.iter().enumerate().skip(from) {
        let Some(short) = word.strip_prefix('-') else { continue };
        let together = !short.starts_with('-')
            && short.len() < 8
            && options.iter().any(|option| option.len() == 2 && short.ends_with(&option[1..]));
        if options.contains(&word.as_ref()) || together {
            return words.get(index + 1).map(|code| (dialect, code.clone(), index + 1));
        }
        let attached = options.iter().filter(|option| option.len() == 2);
        if let Some(code) =
            attached.filter_map(|option| word.strip_prefix(option)).find(|code| code.len() > 3)
        {
            return Some((dialect, code.into(), index));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &str) -> Command {
        let words: Vec<Rc<str>> = words.split('|').map(Rc::from).collect();
        Command::of(&words).unwrap()
    }

    #[test]
    fn words_become_a_program_options_and_operands() {
        let command = of("/bin/rm|-rf|--one-file-system=x|/");
        assert_eq!(command.name.as_ref(), "rm");
        let flags: Vec<&str> = command.flags.iter().map(AsRef::as_ref).collect();
        assert_eq!(flags, ["-rf", "-r", "-f", "--one-file-system"]);
        assert_eq!(command.operands, ["/".into()]);
    }

    #[test]
    fn wrappers_are_looked_through() {
        assert_eq!(of("sudo|-E|env|A=b|timeout|10|rm|x").name.as_ref(), "rm");
        assert_eq!(of("sudo").name.as_ref(), "sudo");
        assert_eq!(of("sudo|-u|x|bash").name.as_ref(), "bash");
        assert_eq!(of("env|-i|nice|-n|5|ls").wrappers, ["env".into(), "nice".into()]);
    }

    #[test]
    fn a_file_that_is_run_is_among_the_first_words() {
        let files = |words: &str| match of(words).launches() {
            Some((dialect, Launched::File(words))) => (dialect.name(), words.join(" ")),
            Some((dialect, Launched::Program(path))) => (dialect.name(), format!("program {path}")),
            Some((_, Launched::Stdin)) | None => ("", String::new()),
        };
        assert_eq!(files("bash|data.txt|a|b"), ("bash", "data.txt".to_owned()));
        assert_eq!(files("sudo|python3|-W|ignore|data.txt|x"), ("python", "ignore data.txt".to_owned()));
        assert_eq!(files(".|./data.txt"), ("bash", "./data.txt".to_owned()));
        assert_eq!(files("./run|x"), ("bash", "program ./run".to_owned()));
        assert_eq!(files("python3|-c|print(1)|x").1, "", "the code is in the words");
        assert_eq!(files("cat|data.txt").1, "");
    }

    #[test]
    fn code_for_an_interpreter_is_found() {
        let code = |words: &str| of(words).code.map(|(dialect, code, _)| (dialect.name(), code.to_string()));
        assert_eq!(code("python3|-c|print(1)"), Some(("python", "print(1)".to_owned())));
        assert_eq!(code("python3.11|-Ic|x"), Some(("python", "x".to_owned())));
        assert_eq!(code("bash|-lc|id"), Some(("bash", "id".to_owned())));
        assert_eq!(code("node|--eval|x()"), Some(("javascript", "x()".to_owned())));
        assert_eq!(code("python3|-cimport os"), Some(("python", "import os".to_owned())));
        assert_eq!(code("python3|script.py|-c|x"), Some(("python", "x".to_owned())), "harmless excess");
        assert_eq!(code("ls|-c|x"), None);
        assert_eq!(of("python3").interprets_stdin(), Some(Dialect::Python));
        assert_eq!(of("bash|-s").interprets_stdin(), Some(Dialect::Shell));
        assert_eq!(of("bash|x.sh").interprets_stdin(), None);
    }
}
