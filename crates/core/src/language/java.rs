//! As much of Java's syntax as it takes to name a file and to start a class.
//!
//! `javac` wants a public type in a file of its name, and `java` wants to be told which class to start. Whoever sends a
//! program to be run has neither in mind: the code may come as `solution.java` and hold a `public class Main` among
//! others. So the top-level types are looked for: words outside of comments, strings and braces. Code that this misreads
//! is refused by the compiler or does not start; nothing else depends on it.

/// The longest name of a type or a package that is looked at: it becomes the name of a file and a word of a command.
const LONGEST: usize = 200;

/// What a file of Java declares at its top level.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Types {
    package: Option<String>,
    types: Vec<Type>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Type {
    name: String,
    public: bool,
    /// Whether it has something that is called `main` and takes arguments.
    starts: bool,
}

impl Types {
    /// Reads them from source code, which may be anything.
    #[must_use]
    pub fn of(code: &[u8]) -> Types {
        let code = String::from_utf8_lossy(code);
        let mut reading = Reading::default();
        Tokens(&code).for_each(|token| reading.take(token));
        reading.types
    }

    /// The name that the compiler demands for the file, if it demands one.
    #[must_use]
    pub fn file_name(&self) -> Option<String> {
        self.types.iter().find(|found| found.public).map(|found| format!("{}.java", found.name))
    }

    /// The class to start, with its package: the first one that has a `main`, else the first.
    #[must_use]
    pub fn main_class(&self) -> String {
        let first = self.types.iter().find(|found| found.starts).or(self.types.first());
        let name = first.map_or("Main", |found| &found.name);
        self.package.as_ref().map_or(name.to_owned(), |package| format!("{package}.{name}"))
    }
}

/// What has been read so far.
#[derive(Default)]
struct Reading<'a> {
    types: Types,
    depth: usize,
    public: bool,
    last: Option<Token<'a>>,
    /// The words of the package's name, while it is read.
    package: Option<String>,
}

impl<'a> Reading<'a> {
    fn take(&mut self, token: Token<'a>) {
        match token {
            Token::Mark('{') => self.depth += 1,
            Token::Mark('}') => self.depth = self.depth.saturating_sub(1),
            Token::Mark('(') if self.depth == 1 && self.last == Some(Token::Word("main")) => {
                self.types.types.last_mut().into_iter().for_each(|found| found.starts = true);
            }
            Token::Mark(_) | Token::Word(_) if self.depth == 0 => self.take_outside(token),
            Token::Mark(_) | Token::Word(_) => {}
        }
        if matches!(token, Token::Mark('}' | ';')) && self.depth == 0 {
            self.public = false;
        }
        self.last = Some(token);
    }

    /// A token outside of every type.
    fn take_outside(&mut self, token: Token<'a>) {
        if let Some(package) = &mut self.package {
            match token {
                Token::Word(word) => package.push_str(word),
                Token::Mark('.') => package.push('.'),
                Token::Mark(_) => {
                    let usable = |name: &String| (1..=LONGEST).contains(&name.len());
                    self.types.package = self.package.take().filter(usable);
                }
            }
            return;
        }
        match (self.last, token) {
            (Some(Token::Word("class" | "interface" | "enum" | "record")), Token::Word(name))
                if name.len() <= LONGEST =>
            {
                let (name, public) = (name.to_owned(), self.public);
                self.types.types.push(Type { name, public, starts: false });
            }
            (_, Token::Word("public")) => self.public = true,
            (_, Token::Word("package")) if self.types.package.is_none() => self.package = Some(String::new()),
            _ => {}
        }
    }
}

/// A word, or a character that is not part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Mark(char),
}

/// The tokens that are left of a text, without comments, strings and blanks.
struct Tokens<'a>(&'a str);

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        loop {
            self.0 = self.0.trim_start();
            let first = self.0.chars().next()?;
            let rest = &self.0[first.len_utf8()..];
            if let Some(rest) = self.0.strip_prefix("//") {
                self.0 = after(rest, "\n");
            } else if let Some(rest) = self.0.strip_prefix("/*") {
                self.0 = after(rest, "*/");
            } else if let Some(rest) = self.0.strip_prefix("\"\"\"") {
                self.0 = after_quoted(rest, "\"\"\"");
            } else if first == '"' || first == '\'' {
                self.0 = after_quoted(rest, if first == '"' { "\"" } else { "'" });
            } else if is_of_word(first) {
                let end = self.0.find(|c| !is_of_word(c)).unwrap_or(self.0.len());
                let (word, rest) = self.0.split_at(end);
                self.0 = rest;
                return Some(Token::Word(word));
            } else {
                self.0 = rest;
                return Some(Token::Mark(first));
            }
        }
    }
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

fn after<'a>(text: &'a str, end: &str) -> &'a str {
    text.split_once(end).map_or("", |(_, rest)| rest)
}

/// What follows a string or a character, in which a backslash takes the next character's meaning.
fn after_quoted<'a>(mut text: &'a str, end: &str) -> &'a str {
    while let Some(at) = text.find(|c| c == '\\' || end.starts_with(c)) {
        let rest = &text[at..];
        if let Some(rest) = rest.strip_prefix(end) {
            return rest;
        }
        let skipped = if rest.starts_with('\\') { 2 } else { 1 };
        let next = rest.char_indices().nth(skipped).map_or(rest.len(), |(index, _)| index);
        text = &rest[next..];
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(code: &str) -> (Option<String>, String) {
        let types = Types::of(code.as_bytes());
        (types.file_name(), types.main_class())
    }

    fn named(file: &str, main: &str) -> (Option<String>, String) {
        (Some(file.to_owned()), main.to_owned())
    }

    #[test]
    fn a_file_is_called_like_its_public_type_and_the_class_with_a_main_is_started() {
        let alone = "class A { public static void main(String[] args) {} }";
        assert_eq!(names(alone), (None, "A".to_owned()));
        let public =
            "import java.util.*;\npublic class Main { static class Inner {} void main(String[] a) {} }";
        assert_eq!(names(public), named("Main.java", "Main"));
        let helper = "class Helper { int main; }\npublic final class Solution { public static void main(String... a) {} }";
        assert_eq!(names(helper), named("Solution.java", "Solution"));
        let first = "class First { public static void main(String[] a) {} } class Second { void main() {} }";
        assert_eq!(names(first), (None, "First".to_owned()));
        let packaged = "package org . example ; @Deprecated public record Point(int x) { static void main(String[] a) {} }";
        assert_eq!(names(packaged), named("Point.java", "org.example.Point"));
    }

    #[test]
    fn comments_strings_and_braces_hide_what_is_in_them() {
        let code = r#"
            // public class Wrong {
            /* public class Wrong { */
            class Right {
                String a = "} public class Wrong { \" ";
                char b = '}', c = '\'';
                String d = """
                    } public class Wrong { " \""" """;
                public static void main(String[] args) { class Local { void main() {} } }
            }
            public interface Other {}"#;
        assert_eq!(names(code), named("Other.java", "Right"));
    }

    #[test]
    fn code_without_a_type_starts_the_usual_one() {
        for code in ["", "void main() {}", "public", "class", "package", "\"", "'\\", "{{{{"] {
            assert_eq!(names(code).1, "Main", "{code}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(code in r#"(class|public|main|[\\"'{}();./*\n ]|é|A){0,60}"#) {
            let _ = Types::of(code.as_bytes());
        }

        #[test]
        fn no_bytes_make_it_panic(code in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Types::of(&code);
        }
    }
}
