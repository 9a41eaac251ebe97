//! Compiles the in-box probe: static, so that it runs in a box that shows nothing of the host.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=probe/probe.c");
    let Some(out) = std::env::var_os("OUT_DIR") else {
        println!("cargo::error=OUT_DIR is not set");
        return;
    };
    let probe = PathBuf::from(out).join("belljar-probe");
    let flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-static", "-pthread", "probe/probe.c", "-lrt", "-o"];
    match Command::new("gcc").args(flags).arg(&probe).status() {
        Ok(status) if status.success() => {
            println!("cargo::rustc-env=BELLJAR_PROBE={}", probe.display());
        }
        Ok(status) => println!("cargo::error=gcc could not compile probe/probe.c: {status}"),
        Err(fault) => println!("cargo::error=the tests need gcc and libc6-dev: {fault}"),
    }
}
