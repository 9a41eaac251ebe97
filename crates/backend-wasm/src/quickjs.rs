//! How `QuickJS` is built, and the parts of Node's API that it gets. The module does not contain them: they are in
//! files beside it, so that a change to them needs no new module.

use std::io;
use std::path::Path;

/// What the module finds in `/lib/belljar`.
pub(crate) const LIBRARY: &[(&str, &str)] = &[
    ("prelude.js", include_str!("../library/quickjs/prelude.js")),
    ("node-buffer.js", include_str!("../library/quickjs/node-buffer.js")),
    ("node-fs.js", include_str!("../library/quickjs/node-fs.js")),
    ("node-fs/promises.js", include_str!("../library/quickjs/node-fs/promises.js")),
    ("node-os.js", include_str!("../library/quickjs/node-os.js")),
    ("node-path.js", include_str!("../library/quickjs/node-path.js")),
    ("node-process.js", include_str!("../library/quickjs/node-process.js")),
    ("node-util.js", include_str!("../library/quickjs/node-util.js")),
];

/// The compiler's command, in the directory that [`lay_out`] has prepared. The same sources and the same compiler make
/// the same module on every machine.
pub(crate) const COMMAND: &[&str] = &[
    "cc",
    "--target=wasm32-wasi",
    "-O2",
    "-s",
    "-g0",
    "-Iquickjs",
    "-D_GNU_SOURCE",
    "-DNDEBUG",
    "-D_WASI_EMULATED_SIGNAL",
    "-D_WASI_EMULATED_PROCESS_CLOCKS",
    "-Wno-everything",
    "-Wl,-z,stack-size=1048576",
    "-lwasi-emulated-signal",
    "-lwasi-emulated-process-clocks",
    "-o",
    MODULE,
    "main.c",
    "quickjs/quickjs.c",
    "quickjs/quickjs-libc.c",
    "quickjs/libregexp.c",
    "quickjs/libunicode.c",
    "quickjs/dtoa.c",
];

/// Its output.
pub(crate) const MODULE: &str = "quickjs.wasm";

const MAIN: &str = include_str!("../library/quickjs/main.c");

/// `QuickJS` does not check its stack here, because some engines put the stack elsewhere. Ours does not, and a program
/// with infinite recursion should get an exception.
const UNCHECKED: &str = "#if defined(__wasi__)\n    rt->stack_limit = 0;";
const CHECKED: &str = "#if 0\n    rt->stack_limit = 0;";

/// Puts the sources of the crate and our own side by side.
pub(crate) fn lay_out(workshop: &Path, sources: &Path) -> io::Result<()> {
    std::fs::rename(sources.join("quickjs"), workshop.join("quickjs"))?;
    let engine = workshop.join("quickjs/quickjs.c");
    let text = std::fs::read_to_string(&engine)?;
    if !text.contains(UNCHECKED) {
        return Err(io::Error::other("these are not the expected sources"));
    }
    std::fs::write(engine, text.replace(UNCHECKED, CHECKED))?;
    std::fs::write(workshop.join("main.c"), MAIN)
}
