//! One line of advice for whoever reads the output of a program that lacks a package: how to get it here.

use belljar_core::language::Language;
use belljar_core::request::BackendName;

/// How much of the end of stderr is looked at: a stack trace of Node fits into it.
pub(crate) const TAIL: usize = 4096;

/// What to tell about a program that ended with exit code 1 and left this at the end of stderr.
pub(crate) fn on(
    tail: &[u8],
    language: Language,
    backend: BackendName,
    image: Option<&str>,
) -> Option<String> {
    let tail = String::from_utf8_lossy(tail);
    let module = match language.name {
        "python" => missing_in_python(&tail)?,
        "javascript" | "typescript" => missing_in_node(&tail)?,
        _ => return None,
    };
    let how = match (backend, image, language.name) {
        (_, Some(image), _) => format!("{image} has no '{module}'; name an image that has it with --image"),
        (BackendName::Wasm, ..) => {
            format!(
                "the wasm backend has no '{module}', only what comes with the interpreter and the run's own files"
            )
        }
        (_, _, "python") => format!(
            "to get '{module}', install it for the Python that runs the code (`belljar languages` names it), or name \
             a virtual environment that has it under [runtimes]; see docs/packages.md"
        ),
        _ => format!(
            "to get '{module}', run `npm install {module}` in a directory and pass it as the workspace; see \
             docs/packages.md"
        ),
    };
    Some(format!("hint: {how}"))
}

/// The last line of a traceback.
fn missing_in_python(tail: &str) -> Option<&str> {
    let last = tail.trim_end_matches('\n').rsplit('\n').next()?;
    let module = last.strip_prefix("ModuleNotFoundError: No module named '")?.strip_suffix('\'')?;
    package(module.split('.').next()?)
}

/// Node says what is missing above the stack, and its version in the last line.
fn missing_in_node(tail: &str) -> Option<&str> {
    let last = tail.trim_end_matches('\n').rsplit('\n').next()?;
    let uncaught = last.starts_with("Node.js v") && tail.contains("MODULE_NOT_FOUND");
    let said = ["Error: Cannot find module '", "Cannot find package '"];
    let module =
        said.iter().find_map(|said| tail.split_once(said)).filter(|_| uncaught)?.1.split('\'').next()?;
    // A file that is missing is no package.
    let mut parts = module.split('/');
    match parts.next()? {
        scope if scope.starts_with('@') => package(&module[..scope.len() + 1 + parts.next()?.len()]),
        name => package(name),
    }
}

/// Only what looks like the name of a package is repeated: the program wrote it.
fn package(name: &str) -> Option<&str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_@/.".contains(c);
    let fits = !name.is_empty() && name.len() <= 64 && name.chars().all(plain);
    (fits && !name.starts_with(['.', '/', '-'])).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(language: &str, tail: &str) -> Option<String> {
        on(tail.as_bytes(), Language::by_name(language).unwrap(), BackendName::Native, None)
    }

    #[test]
    fn a_package_that_python_lacks_is_named() {
        let tail = "Traceback (most recent call last):\n  File \"/sandbox/main.py\", line 1, in <module>\n\
                    ModuleNotFoundError: No module named 'pandas.core'\n";
        let told = advice("python", tail).unwrap();
        assert!(told.starts_with("hint: to get 'pandas', install it for the Python"), "{told}");
        assert!(!told.contains('\n'));
    }

    #[test]
    fn a_package_that_node_lacks_is_named() {
        let commonjs = "Error: Cannot find module '@scope/name/part'\nRequire stack:\n- /sandbox/main.js\n  code: \
                        'MODULE_NOT_FOUND',\n}\n\nNode.js v18.19.0\n";
        assert!(advice("javascript", commonjs).unwrap().contains("npm install @scope/name`"));
        let module = "Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'left-pad' imported from /sandbox/main.mjs\n\
                      \n\nNode.js v18.19.0\n";
        assert!(advice("typescript", module).unwrap().contains("npm install left-pad`"));
    }

    #[test]
    fn nothing_is_said_about_anything_else() {
        for (language, tail) in [
            ("python", "ModuleNotFoundError: No module named 'x'\nand more\n"),
            ("python", "ModuleNotFoundError: No module named '\u{1b}[2J'\n"),
            ("python", "ValueError: No module named 'x'\n"),
            ("javascript", "Error: Cannot find module './x'\ncode: 'MODULE_NOT_FOUND'\n\nNode.js v18\n"),
            (
                "javascript",
                "Error: Cannot find module '/sandbox/x'\ncode: 'MODULE_NOT_FOUND'\n\nNode.js v18\n",
            ),
            ("javascript", "Error: Cannot find module 'x'\ncode: 'MODULE_NOT_FOUND'\n"),
            ("bash", "ModuleNotFoundError: No module named 'x'\n"),
        ] {
            assert_eq!(advice(language, tail), None, "{tail}");
        }
    }

    #[test]
    fn where_there_is_an_image_it_is_the_image_that_lacks_it() {
        let python = Language::by_name("python").unwrap();
        let tail = b"ModuleNotFoundError: No module named 'x'";
        let told = on(tail, python, BackendName::Docker, Some("python:3.11-slim")).unwrap();
        assert_eq!(told, "hint: python:3.11-slim has no 'x'; name an image that has it with --image");
    }
}
