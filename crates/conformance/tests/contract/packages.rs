//! What a program needs from others, and what comes of what it draws.

use belljar_conformance::{Cell, promise};

/// Where a person reads stderr: not in JSON, where a program may compare it.
fn a_program_that_lacks_a_package_is_told_how_to_get_it(cell: &Cell) {
    if !cell.speaks("python", "pass") {
        return;
    }
    let python = cell.language("python");
    let code = "import sys\nprint('out')\nimport no_such_package.part";
    let lacks = "ModuleNotFoundError: No module named 'no_such_package'";
    let told = python.plain(code);
    assert_eq!((told.code(), &*told.stdout_text()), (1, "out\n"), "{told:?}");
    let stderr = told.stderr_text();
    let lines: Vec<_> = stderr.lines().collect();
    let [.., error, hint] = lines[..] else { panic!("{told:?}") };
    assert_eq!(error, lacks);
    assert!(hint.starts_with("hint: ") && hint.contains("'no_such_package'"), "{told:?}");

    let read_by_a_program = python.run(code);
    assert!(read_by_a_program.stderr.ends_with(&format!("{lacks}\n")), "{read_by_a_program:?}");
    for other in [
        "raise ModuleNotFoundError('x')",
        "import sys\nsys.stderr.write(\"No module named 'x'\")\nsys.exit(1)",
    ] {
        assert!(!python.plain(other).stderr_text().contains("hint:"), "{other}");
    }
}

promise!(a_program_that_lacks_a_package_is_told_how_to_get_it; cold: "the command line's own");

/// matplotlib is not installed everywhere. This does what it does: it reads its configuration, and imports the backend
/// that is named there.
const DRAW: &str = "import os, sys, types
for name in ['matplotlib', 'matplotlib._pylab_helpers', 'matplotlib.backend_bases', 'matplotlib.backends', 'matplotlib.backends.backend_agg']:
    sys.modules[name] = types.ModuleType(name)
class Figure:
    stale = False
    def savefig(self, path, format):
        open(path, 'w').write(format)
class Gcf:
    get_all_fig_managers = lambda: [types.SimpleNamespace(canvas=types.SimpleNamespace(figure=figure))]
figure = Figure()
sys.modules['matplotlib._pylab_helpers'].Gcf = Gcf
sys.modules['matplotlib.backend_bases'].FigureManagerBase = object
sys.modules['matplotlib.backends.backend_agg'].FigureCanvasAgg = object
try:
    text = open(os.path.expanduser('~/.config/matplotlib/matplotlibrc')).read()
except FileNotFoundError:
    sys.exit('no configuration')
backend = __import__(text.partition('module://')[2].strip())
backend.show(); backend.show(block=False)
figure = Figure(); backend.show()
";

fn what_is_shown_comes_back_as_files(cell: &Cell) {
    if !cell.speaks("python", "pass") {
        return;
    }
    let python = cell.language("python");
    let ran = python.flag("--plots").run(DRAW);
    ran.ok();
    let files = ran.files.clone().unwrap_or_default();
    let seen: Vec<_> = files.iter().map(|file| (file.path.as_str(), file.content())).collect();
    assert_eq!(seen, [("figure-1.png", b"png".to_vec()), ("figure-2.png", b"png".to_vec())]);

    let without = python.run(DRAW);
    assert_eq!((without.exit_code, without.stderr.as_str()), (1, "no configuration\n"), "{without:?}");
    assert_eq!(without.files, None);
    let draws_nothing =
        python.flag("--plots").run("import os\nprint([name for name in os.listdir('.') if name[0] != '.'])");
    assert_eq!((draws_nothing.ok(), &draws_nothing.files), ("['main.py']\n", &None));
}

promise!(what_is_shown_comes_back_as_files);

fn nobody_gets_the_file_that_saves_figures(cell: &Cell) {
    if !cell.speaks("python", "pass") {
        return;
    }
    let ran = cell.language("python").flag("--plots").option("--collect", "*").run(DRAW);
    let files = ran.files.clone().unwrap_or_default();
    let paths: Vec<_> = files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["figure-1.png", "figure-2.png"]);
}

promise!(nobody_gets_the_file_that_saves_figures);

fn a_program_that_chooses_a_backend_itself_is_left_alone(cell: &Cell) {
    if !cell.speaks("python", "pass") {
        return;
    }
    let ran = cell.language("python").flag("--plots").option("--env", "MPLBACKEND=agg").run(DRAW);
    assert_eq!((ran.exit_code, ran.stderr.as_str()), (1, "no configuration\n"), "{ran:?}");
}

promise!(a_program_that_chooses_a_backend_itself_is_left_alone; cold: "a variable");
