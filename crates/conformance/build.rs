//! Compiles the in-box probe: static, so that it runs in a box that shows nothing of the host; and once more small.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=probe/probe.c");
    let Some(out) = std::env::var_os("OUT_DIR") else {
        println!("cargo::error=OUT_DIR is not set");
        return;
    };
    compile(&PathBuf::from(&out).join("belljar-probe"), &["-static"], "BELLJAR_PROBE");
    // For a box that shows the host's libraries, and takes only what is small.
    compile(&PathBuf::from(&out).join("belljar-small-probe"), &["-s"], "BELLJAR_SMALL_PROBE");
}

fn compile(probe: &Path, more: &[&str], variable: &str) {
    let flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "probe/probe.c", "-lrt", "-o"];
    match Command::new("gcc").args(more).args(flags).arg(probe).status() {
        Ok(status) if status.success() => {
            println!("cargo::rustc-env={variable}={}", probe.display());
        }
        Ok(status) => println!("cargo::error=gcc could not compile probe/probe.c: {status}"),
        Err(fault) => println!("cargo::error=the tests need gcc and libc6-dev: {fault}"),
    }
}
