//! Colors of code for a person who reads it: comments, texts, numbers and keywords, told by a lexer that knows no more of a
//! language than that. It takes text that is already harmless for a terminal, and adds nothing but colors.

use std::ops::Range;

use anstyle::{AnsiColor, Style};

const COMMENT: Style = AnsiColor::BrightBlack.on_default();
const TEXT: Style = AnsiColor::Green.on_default();
const NUMBER: Style = AnsiColor::Cyan.on_default();
const KEYWORD: Style = AnsiColor::Magenta.on_default();

const PYTHON: &str = "False None True and as assert async await break class continue def del elif else except finally for \
    from global if import in is lambda match case nonlocal not or pass raise return try while with yield";
const JAVASCRIPT: &str = "async await break case catch class const continue debugger default delete do else enum export extends \
    false finally for from function if import in instanceof interface let new null of return static super switch this throw \
    true try type typeof undefined var void while with yield";
const SHELL: &str = "case do done elif else esac exit export fi for function if in local readonly return select set shift then \
    time trap until unset while";
const OTHER: &str = "and begin bool break case catch char class const continue def default do double else elseif elsif end enum \
    extends false final float fn for foreach func function go goto if impl import in include int interface let local long loop \
    match module mut my namespace new next nil not null package print private protected pub public repeat require return self \
    static struct sub super switch then this throw true try type unless unsafe until use using var void while yield";

/// How a language writes what has a color.
#[derive(Debug, Clone, Copy)]
struct Lexicon {
    keywords: &'static str,
    line_comments: &'static [&'static str],
    has_block_comments: bool,
    quotes: &'static [&'static str],
}

impl Lexicon {
    fn of(language: &str) -> Lexicon {
        let (keywords, line_comments, has_block_comments, quotes): (_, &[_], _, &[_]) = match language {
            "python" => (PYTHON, &["#"], false, &["\"\"\"", "'''", "\"", "'"]),
            "javascript" | "typescript" => (JAVASCRIPT, &["//"], true, &["\"", "'", "`"]),
            "bash" | "sh" | "zsh" => (SHELL, &["#"], false, &["\"", "'"]),
            "ruby" | "perl" | "r" => (OTHER, &["#"], false, &["\"", "'"]),
            "php" => (OTHER, &["#", "//"], true, &["\"", "'"]),
            "lua" => (OTHER, &["--"], false, &["\"", "'"]),
            // A single quote begins a lifetime as often as a character.
            "rust" => (OTHER, &["//"], true, &["\""]),
            _ => (OTHER, &["//"], true, &["\"", "'"]),
        };
        Lexicon { keywords, line_comments, has_block_comments, quotes }
    }

    /// How long the next token is, and its color. `before` is the character in front of it.
    fn next(&self, rest: &str, before: Option<char>) -> (usize, Option<Style>) {
        let first = rest.chars().next().unwrap_or_default();
        let begins_word = before.is_none_or(char::is_whitespace);
        let begins_comment = |mark: &&str| rest.starts_with(*mark) && (*mark != "#" || begins_word);
        if self.line_comments.iter().any(begins_comment) {
            return (rest.find('\n').unwrap_or(rest.len()), Some(COMMENT));
        }
        if self.has_block_comments && rest.starts_with("/*") {
            return (rest.find("*/").map_or(rest.len(), |end| end + 2), Some(COMMENT));
        }
        if let Some(quote) = self.quotes.iter().find(|quote| rest.starts_with(**quote)) {
            return (text_length(rest, quote), Some(TEXT));
        }
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        if !is_part(first) {
            return (first.len_utf8(), None);
        }
        let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let is_keyword = || self.keywords.split_ascii_whitespace().any(|word| word == &rest[..length]);
        let style = match first {
            '0'..='9' => Some(NUMBER),
            _ if before != Some('.') && is_keyword() => Some(KEYWORD),
            _ => None,
        };
        (length, style)
    }
}

/// How long a text in quotes is, with them. It ends at the quote that is not behind a backslash.
fn text_length(rest: &str, quote: &str) -> usize {
    let mut at = quote.len();
    while let Some(found) =
        rest.get(at..).and_then(|inner| inner.find(['\\', quote.chars().next().unwrap_or('"')]))
    {
        at += found;
        if rest[at..].starts_with('\\') {
            at += 1 + rest[at + 1..].chars().next().map_or(0, char::len_utf8);
        } else if rest[at..].starts_with(quote) {
            return at + quote.len();
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// The colored parts of a code, in order.
fn styled(code: &str, language: &str) -> Vec<(Range<usize>, Style)> {
    let lexicon = Lexicon::of(language);
    let (mut parts, mut at, mut before) = (Vec::new(), 0, None);
    while at < code.len() {
        let (length, style) = lexicon.next(&code[at..], before);
        let end = at + length;
        parts.extend(style.map(|style| (at..end, style)));
        before = code[..end].chars().next_back();
        at = end;
    }
    parts
}

/// Each line of a code, as it is drawn and with colors. A tab is drawn as four spaces.
fn lines(code: &str, language: &str) -> Vec<(String, String)> {
    let drawn = |text: &str| text.replace('\t', "    ");
    let parts = styled(code, language);
    let mut parts = parts.iter().peekable();
    let (mut lines, mut start) = (Vec::new(), 0);
    for line in code.split('\n') {
        let end = start + line.len();
        let (mut colored, mut at) = (String::new(), start);
        while let Some((range, style)) = parts.peek()
            && range.start < end
        {
            let (from, to) = (range.start.max(start), range.end.min(end));
            colored.push_str(&drawn(&code[at..from]));
            colored.push_str(&format!("{style}{}{style:#}", drawn(&code[from..to])));
            at = to;
            if range.end > end {
                break;
            }
            parts.next();
        }
        colored.push_str(&drawn(&code[at..end]));
        lines.push((drawn(line), colored));
        start = end + 1;
    }
    lines
}

/// A listing of a code, in which the lines of the code have colors. The lines between them, which show findings, stay.
pub(super) fn colored(listing: &str, code: &str, language: &str) -> String {
    let lines = lines(code, language);
    let mut drawn = listing.split('\n').peekable();
    let (mut whole, mut number) = (String::with_capacity(2 * listing.len()), 1);
    while let Some(line) = drawn.next() {
        let plain = anstream::adapter::strip_str(line).to_string();
        let is_next =
            plain.trim_start().strip_prefix(&number.to_string()).is_some_and(|rest| rest.starts_with(" |"));
        match lines.get(number - 1).filter(|_| is_next) {
            Some((text, colors)) => {
                number += 1;
                match line.strip_suffix(text.as_str()) {
                    Some(margin) => whole.push_str(&format!("{margin}{colors}")),
                    None => whole.push_str(line),
                }
            }
            None => whole.push_str(line),
        }
        if drawn.peek().is_some() {
            whole.push('\n');
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words in brackets are colored: comments, texts, numbers, keywords.
    fn marked(code: &str, language: &str) -> String {
        let colored: Vec<String> = lines(code, language).into_iter().map(|(_, colored)| colored).collect();
        let mut marked = colored.join("\n");
        for (style, open) in [(COMMENT, "c["), (TEXT, "t["), (NUMBER, "n["), (KEYWORD, "k[")] {
            marked = marked.replace(&style.to_string(), open);
        }
        marked.replace(&format!("{TEXT:#}"), "]")
    }

    #[test]
    fn comments_texts_numbers_and_keywords_have_colors() {
        insta::assert_snapshot!(marked("import os # if\nx.if = '#\\'' + f(0x1f, in1)\n", "python"), @r"
        k[import] os c[# if]
        x.if = t['#\''] + f(n[0x1f], in1)
        ");
        insta::assert_snapshot!(marked("const a = `x${1}` // for\n/* a\n b */ é", "javascript"), @r"
        k[const] a = t[`x${1}`] c[// for]
        c[/* a]
        c[ b */] é
        ");
        insta::assert_snapshot!(marked("if [ $# -gt 1 ]; then\n\techo \"a # b\"; fi", "bash"), @r#"
        k[if] [ $# -gt n[1] ]; k[then]
            echo t["a # b"]; k[fi]
        "#);
        insta::assert_snapshot!(marked("'''a\n'b'\n''' 'open", "python"), @r"
        t['''a]
        t['b']
        t['''] t['open]
        ");
    }

    #[test]
    fn colors_change_no_character() {
        let code = "def f():\n\treturn '\\\n# é\u{301}' # \"\n\n'''";
        for language in ["python", "javascript", "bash", "php", "lua", "rust", "c", "nothing"] {
            for (plain, colored) in lines(code, language) {
                assert_eq!(anstream::adapter::strip_str(&colored).to_string(), plain, "{language}");
            }
        }
    }
}
