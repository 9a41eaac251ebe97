//! Plots: what matplotlib's `show` would have shown comes back as files of the run.
//!
//! A backend of matplotlib's own kind does it, a module that runs beside the code. It is chosen by a file of
//! configuration, not by a variable: a file can be added to a box that waits already.

/// The name of the module.
pub const MODULE: &str = "belljar_plots";

/// The file of the module, beside the code.
pub const FILE: &str = "belljar_plots.py";

/// Its text.
pub const SOURCE: &str = include_str!("plots.py");

/// The files that it leaves in the home of the program.
pub const PICTURES: &str = "figure-*.png";

/// matplotlib's configuration, relative to the home of the program.
pub const CONFIGURATION: &str = ".config/matplotlib/matplotlibrc";

/// What it says.
pub const CONFIGURED: &str = "backend: module://belljar_plots\n";

/// The variable that has the last word on the backend.
pub const VARIABLE: &str = "MPLBACKEND";

/// Whether this code may call `show`.
#[must_use]
pub fn could_show(code: &[u8]) -> bool {
    const CALL: &[u8] = b"show";
    code.windows(CALL.len()).any(|window| window == CALL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_agree() {
        assert_eq!(FILE, format!("{MODULE}.py"));
        assert_eq!(CONFIGURED, format!("backend: module://{MODULE}\n"));
        assert!(could_show(b"plt.show()") && !could_show(b"print(1)"));
    }
}
