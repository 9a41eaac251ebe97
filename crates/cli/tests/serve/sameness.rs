//! A program cannot tell whether its box has been waiting: each case runs warm and cold, and must say the same.
//!
//! What does differ, and is left out here, is in `docs/warm.md`: how long the process has been there, and the descriptor
//! that shells keep open on their script.

use serde_json::{Value, json};

use crate::pool::run_warm;
use crate::server::{Server, eventually};

/// Where a case runs on a server that keeps boxes waiting.
#[derive(Clone, Copy, PartialEq)]
enum Takes {
    Waiting,
    /// It cannot be run in one, and is not.
    New,
    /// It cannot be run in one, but by the child of a zygote.
    Forked,
}
use Takes::{Forked, New, Waiting};

type Case = (Takes, &'static str);

fn assert_same(language: &str, cases: &[Case], more: &Value) {
    let warm = Server::with(&format!("[pool.languages.{language}]\nmin = 2\nmax = 4\n"), &[]);
    let cold = Server::with("[pool]\nenabled = false\n", &[]);
    for (takes, code) in cases {
        let mut body = json!({"language": language, "code": code});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let of_warm = match takes {
            Waiting => run_warm(&warm, &body),
            New => warm.post("/v1/runs", &body).result(),
            Forked => run_forked(&warm, &body),
        };
        let of_cold = cold.post("/v1/runs", &body).result();
        if *takes == New {
            assert_eq!(of_warm["start"], json!("cold"), "{code}");
        }
        for told in ["stdout", "stderr", "exit_code", "status", "signal", "runtime", "files"] {
            assert_eq!(of_warm[told], of_cold[told], "{told} of {language}:\n{code}\n{of_warm}\n{of_cold}");
        }
        let says_something = ["stdout", "stderr"].iter().any(|stream| of_cold[stream] != "");
        assert!(says_something || of_cold["signal"] != Value::Null, "{code}");
    }
}

fn run_forked(server: &Server, body: &Value) -> Value {
    let mut result = Value::Null;
    eventually("a zygote lives", || {
        result = server.post("/v1/runs", body).result();
        result["start"] == "zygote"
    });
    result
}

fn nothing_more() -> Value {
    json!({})
}

#[test]
fn python_finds_itself_as_it_would_have() {
    assert_same(
        "python",
        &[
            (
                Waiting,
                "print(sorted(globals()), __name__, __file__, __spec__, __doc__, __package__, type(__loader__))",
            ),
            (
                Waiting,
                "import sys\nprint(sys.argv, sys.orig_argv, sys.path, sys.flags, sys.executable, sys.warnoptions)",
            ),
            (
                Waiting,
                "import sys\nprint(sorted(sys.modules), [f.__name__ for f in sys.meta_path], [h.__name__ for h in sys.path_hooks])",
            ),
            (Waiting, "import sys\nprint(sorted(sys.path_importer_cache, key=str))"),
            (Waiting, "import sys\nf = sys._getframe()\nprint(f.f_back, f.f_code.co_filename, f.f_lineno)"),
            (
                Waiting,
                "print(open('/proc/self/cmdline', 'rb').read(), sorted(open('/proc/self/environ', 'rb').read().split(b'\\0')))",
            ),
            (
                Waiting,
                "import os\nprint(os.getpid(), os.getppid(), os.getpgid(0), os.getsid(0), os.getcwd(), os.getresuid(), os.getresgid(), os.getgroups())",
            ),
            (
                Waiting,
                "import os\nprint(oct(os.umask(0)), os.nice(0), sorted(os.sched_getaffinity(0)), sorted(os.listdir('/sandbox')))",
            ),
            (
                Waiting,
                "import resource as r\nprint([(n, r.getrlimit(getattr(r, n))) for n in sorted(dir(r)) if n.startswith('RLIMIT_')])",
            ),
            (
                Waiting,
                "import os, re\nfor n in sorted(os.listdir('/proc/self/fd'), key=int):\n    try: print(n, re.sub(r'\\d+', 'N', os.readlink('/proc/self/fd/' + n)), open('/proc/self/fdinfo/' + n).read().split()[3])\n    except OSError: pass",
            ),
            (
                Waiting,
                "print([l for l in open('/proc/self/status') if l.split(':')[0] in ('Uid Gid Groups Seccomp NoNewPrivs CapEff CapBnd SigBlk SigIgn SigCgt Threads NStgid NSpid Umask TracerPid State').split()])",
            ),
            (
                Waiting,
                "print([l.split()[4:6] for l in open('/proc/self/mountinfo')], open('/proc/self/cgroup').read())",
            ),
            (
                Waiting,
                "import os\ns = os.stat(__file__)\nprint(oct(s.st_mode), s.st_uid, s.st_gid, s.st_size, s.st_nlink, os.path.realpath(__file__))\nprint(open(__file__).read())",
            ),
            (
                Waiting,
                "import os\nprint(os.environ, os.listdir('/'), os.listdir('/tmp'), os.listdir('/dev/shm'), os.statvfs('/sandbox').f_files)",
            ),
            (Waiting, "import os\ns = os.statvfs('/sandbox')\nprint(s.f_blocks, s.f_files - s.f_ffree)"),
        ],
        &nothing_more(),
    );
}

#[test]
fn python_is_the_process_that_it_would_have_been() {
    assert_same(
        "python",
        &[
            (
                Waiting,
                "import ctypes, os\nlibc = ctypes.CDLL(None)\nfor cpu in sorted(os.sched_getaffinity(0)):\n    os.sched_setaffinity(0, {cpu})\n    print(libc.sched_getcpu() == cpu)",
            ),
            (
                Waiting,
                "import ctypes, signal\nlibc, death = ctypes.CDLL(None), ctypes.c_int(-1)\nlibc.prctl(2, ctypes.byref(death))\nprint(death.value, libc.prctl(3), signal.getitimer(signal.ITIMER_REAL))",
            ),
            (
                Waiting,
                "print([l for l in open('/proc/self/maps') if l.split()[1] == 'rwxp' or 'x' in l.split()[1] and len(l.split()) < 6])",
            ),
            (
                Waiting,
                "import threading, _thread\nprint(threading.get_native_id(), _thread.get_native_id(), threading.main_thread().native_id)",
            ),
            (
                Waiting,
                "import os\nif os.fork() == 0:\n    print(os.getpid(), os.getppid(), flush=True)\n    os._exit(0)\nprint(os.wait())",
            ),
        ],
        &nothing_more(),
    );
}

#[test]
fn python_behaves_as_it_would_have() {
    assert_same(
        "python",
        &[
            (Waiting, "def f():\n    g()\n\ndef g():\n    raise ValueError('here')\n\nf()"),
            (Waiting, "print(1)\nif True\n    pass"),
            (Waiting, "\tx = 1\n        y = 2"),
            (Waiting, "print('\u{e4}\u{20ac}')\nraise Exception('\u{e4}')"),
            (Waiting, "\u{feff}print('after a mark')"),
            (Waiting, "print(1)\r\nprint(2)\r\nraise SystemExit('bye')\r\n"),
            (
                Waiting,
                "import inspect, linecache\ndef f(): return 1\nclass C:\n    def m(self): pass\nprint(inspect.getsource(f), inspect.getsource(C), inspect.getsourcefile(f), linecache.getlines(__file__))",
            ),
            (
                Waiting,
                "import pickle\nclass C:\n    def __init__(self): self.a = 1\nprint(pickle.loads(pickle.dumps(C())).a, pickle.dumps(C()))",
            ),
            (
                Waiting,
                "import multiprocessing as m\ndef f(x): return x * x\nif __name__ == '__main__':\n    c = m.get_context('fork')\n    with c.Pool(2) as p: print(p.map(f, range(4)))",
            ),
            (
                Waiting,
                "import multiprocessing as m\ndef f(q): q.put(__name__)\nif __name__ == '__main__':\n    c = m.get_context('spawn')\n    q = c.SimpleQueue()\n    p = c.Process(target=f, args=(q,))\n    p.start(); p.join(); print(q.get(), p.exitcode)",
            ),
            (
                Waiting,
                "import atexit, threading\natexit.register(print, 'at exit')\nt = threading.Thread(target=print, args=('thread',))\nt.start(); t.join(); print(threading.active_count(), threading.main_thread().name)",
            ),
            (
                Waiting,
                "import signal\nprint([(s.name, str(signal.getsignal(s))) for s in sorted(signal.valid_signals()) if hasattr(s, 'name') and 'function' not in str(signal.getsignal(s))], signal.pthread_sigmask(signal.SIG_BLOCK, []))",
            ),
            (Waiting, "import os, signal\nprint(1, flush=True)\nos.kill(os.getpid(), signal.SIGTERM)"),
            (
                Waiting,
                "import signal, os\nsignal.signal(signal.SIGUSR1, lambda *a: print('handled', a[0]))\nos.kill(os.getpid(), signal.SIGUSR1)",
            ),
            (Waiting, "import os\nprint(1)\nos.abort()"),
            (Waiting, "import os\nprint(1, end='')\nos._exit(7)"),
            (
                Waiting,
                "import sys\nfor s in (sys.stdin, sys.stdout, sys.stderr): print(s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.isatty(), s.fileno())",
            ),
            (
                Waiting,
                "import sys, os\nprint('a', end=''); os.write(1, b'b'); sys.stdout.write('c'); os.write(2, b'd')",
            ),
            (
                Waiting,
                "import sys, os, stat\nprint(stat.S_ISFIFO(os.fstat(0).st_mode), sys.stdin.read() == '', os.read(0, 1))\ninput()",
            ),
            (Waiting, "import warnings\nwarnings.warn('old', DeprecationWarning)\nprint('\\d')"),
            (
                Waiting,
                "import sys, locale\nprint(sys.getfilesystemencoding(), sys.getdefaultencoding(), locale.getpreferredencoding(), sys.flags.utf8_mode)",
            ),
            (New, "# -*- coding: latin-1 -*-\nprint('\u{e4}')"),
            (Waiting, "# -*- no such thing -*-\nprint(1)"),
            (
                Waiting,
                "import helper, package.part\nprint(helper.x, helper.__file__, package.part.y, helper.__cached__)\nimport os; print(sorted(os.listdir('.')), sorted(os.listdir('package')))",
            ),
            (
                Waiting,
                "import runpy, os, sys\nif not os.environ.get('AGAIN'):\n    os.environ['AGAIN'] = '1'\n    print('first', flush=True)\n    os.execv(sys.executable, [sys.executable, __file__])\nprint('second')",
            ),
            (
                Waiting,
                "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'import sys; print(sys.argv, sys.stdin.read())'], capture_output=True))",
            ),
            (
                Waiting,
                "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 5\nprint(asyncio.run(f()))",
            ),
            (
                Waiting,
                "import __main__, importlib\nprint(__main__.__file__, importlib.util.find_spec('helper').origin)",
            ),
            (Waiting, "x = 1\nprint(x)  # no line break at the end"),
            (Waiting, "import sys\nsys.setrecursionlimit(100)\ndef f(): f()\nf()"),
        ],
        &json!({"files": [{"path": "helper.py", "content": "x = 1"}, {"path": "package/part.py", "content": "y = 2"}]}),
    );
}

#[test]
fn python_reads_what_it_is_given() {
    let code = "import sys\nprint(sys.stdin.readline(), len(sys.stdin.read()), sys.stdin.read() == '')";
    assert_same("python", &[(Waiting, code)], &json!({"stdin": "first\nsecond\n"}));
    assert_same("python", &[(Waiting, code)], &json!({"stdin": format!("first\n{}", "x".repeat(200_000))}));
    let code = "import site, sys, os\nprint(site.ENABLE_USER_SITE, [p for p in sys.path if 'local' in p], os.listdir('/sandbox'))";
    let users = json!({"files": [{"path": ".local/lib/python3.11/site-packages/x.py", "content": ""}]});
    assert_same("python", &[(New, code)], &users);
}

#[test]
fn python_has_the_arguments_and_variables_that_it_would_have() {
    let more = json!({
        "args": ["one", "", "two three", "\u{fc}\u{1f600}", "-x"],
        "env": {"A": "1", "EMPTY": "", "USER": "other", "Z": "a=b\u{fc}\n", "GOMAXPROCS": "7"},
    });
    assert_same(
        "python",
        &[
            (Forked, "import sys\nprint(sys.argv, sys.orig_argv, sys.path, sys.flags)"),
            (
                Forked,
                "import os\nprint(list(os.environ.items()), list(os.environb.items()), os.listdir('.'))",
            ),
            (
                Forked,
                "import subprocess\nprint(subprocess.run(['env'], capture_output=True, text=True).stdout)",
            ),
            (
                Forked,
                "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'import os; print(dict(os.environ))'])",
            ),
            (
                Forked,
                "import argparse\np = argparse.ArgumentParser()\np.add_argument('n', nargs='*')\nprint(p.parse_args(['a']))\np.parse_args()",
            ),
        ],
        &more,
    );
}

#[test]
fn node_cannot_tell() {
    assert_same(
        "javascript",
        &[
            (
                Waiting,
                "console.log(process.argv, process.execArgv, process.execPath, process.argv0, process.title)",
            ),
            (
                Waiting,
                "console.log(require.main === module, require.main.filename, module.id, module.paths, module.children, __filename, __dirname)",
            ),
            (
                Waiting,
                "console.log(Object.keys(require.cache), Object.keys(process.env).sort(), process.pid, process.ppid, process.cwd())",
            ),
            (Waiting, "console.log(Object.keys(globalThis).sort(), process.getuid(), process.umask())"),
            (Waiting, "function f() { throw new Error('here') }\nf()"),
            (Waiting, "console.log(1\nlet"),
            (Waiting, "Promise.reject(new Error('late'))"),
            (
                Waiting,
                "console.log(require('fs').readFileSync(__filename, 'utf8'), require('fs').statSync(__filename).isFile())",
            ),
            (Waiting, "console.log(require('fs').readdirSync('/proc/self/fd').filter(n => n < 3))"),
            (
                Waiting,
                "process.stdin.on('data', d => console.log('data', String(d))).on('end', () => console.log('end', process.stdin.constructor.name))",
            ),
            (Waiting, "console.log(require('./helper').x, Object.keys(require.cache))"),
            (
                Waiting,
                "console.log(process.stdout.isTTY, process.stdout.constructor.name, process.stdin.isTTY)\nprocess.exitCode = 5",
            ),
            (
                Waiting,
                "process.on('exit', c => console.log('exit', c))\nsetTimeout(() => process.exit(3), 1)",
            ),
            (
                Waiting,
                "const {Worker, isMainThread} = require('worker_threads')\nif (isMainThread) new Worker(__filename).on('exit', c => console.log('worker', c)); else process.exit(4)",
            ),
            (
                Waiting,
                "const {Worker} = require('worker_threads')\nprocess.env.NODE_OPTIONS = 'mine'\nnew Worker(\"console.log(Object.keys(process.env).sort(), process.env.NODE_OPTIONS, process.execArgv, Object.keys(require.cache))\", {eval: true})",
            ),
            (
                Waiting,
                "console.log(String(require('child_process').execFileSync(process.execPath, ['-p', 'JSON.stringify([process.env.NODE_OPTIONS, process.execArgv])'])))",
            ),
            (
                Waiting,
                "console.log(process.listenerCount('exit'), process.eventNames(), process.stdout.listenerCount('drain'), process.stdout.writableLength, process.stdout.bytesWritten, process.stderr.eventNames())",
            ),
            (
                Waiting,
                "console.log(require('fs').readdirSync('/etc').sort(), require('fs').readdirSync('/etc/belljar'))",
            ),
            (
                Waiting,
                "const fs = require('fs'); fs.writeSync(1, [1, 2].map(fd => fs.readFileSync(`/proc/self/fdinfo/${fd}`, 'utf8').match(/flags:.*/)[0]).join())",
            ),
            (Waiting, "process.stdout.write('x'.repeat(300000), () => console.error('written'))"),
            (
                Waiting,
                "require('child_process').spawn('sh', ['-c', 'sleep 0.1; echo late'], {stdio: 'inherit'}); console.log('early')",
            ),
            (
                Waiting,
                "require('child_process').spawn('sleep', ['30'], {stdio: 'inherit', detached: true}).unref(); console.log('gone')",
            ),
            (Waiting, "console.log(1); process.kill(process.pid, 'SIGKILL')"),
            (Waiting, "console.error('failed'); process.exit(300)"),
            (Waiting, "console.log(2); process.abort()"),
            (Waiting, "#!/usr/bin/env node\nconsole.log(process.argv.length)"),
            (Waiting, "\u{feff}console.log('after a mark')"),
            (Waiting, "process.kill(process.pid, 'SIGTERM'); console.log(1); setTimeout(() => {}, 1000)"),
            (New, "import fs from 'fs'\nconsole.log(import.meta.url, typeof require)"),
        ],
        &json!({"stdin": "in", "files": [{"path": "helper.js", "content": "exports.x = 1"}]}),
    );
    let module = json!({"files": [{"path": "package.json", "content": "{\"type\": \"module\"}"}]});
    assert_same("javascript", &[(New, "console.log(typeof require)")], &module);
}

#[test]
fn typescript_cannot_tell() {
    assert_same(
        "typescript",
        &[
            (Waiting, "const x: number = 42\nconsole.log(x, process.argv, process.execArgv, __filename)"),
            (Waiting, "enum E { A, B }\nfunction f(e: E): never { throw new Error(E[e]) }\nf(E.B)"),
        ],
        &nothing_more(),
    );
}

#[test]
fn bash_cannot_tell() {
    assert_same(
        "bash",
        &[
            (Waiting, "echo $0 $$ $PPID $BASHPID ${BASH_SOURCE[@]} ${BASH_LINENO[@]} $- $SHLVL $# $_ $PWD"),
            (Waiting, "set -o; shopt; ulimit -a; umask"),
            (
                Waiting,
                "env | sort; tr '\\0' '\\n' < /proc/$$/cmdline; tr '\\0' '\\n' < /proc/$$/environ | sort",
            ),
            (Waiting, "declare -p | grep -v -E '(SECONDS|RANDOM|SRANDOM|EPOCH|BASHPID|BASH_ARGV0|COMP_)'"),
            (Waiting, "trap 'echo leaving $?' EXIT; f() { caller 0; return 3; }; f; exit 4"),
            (Waiting, "cat; read x; echo \"[$x] $?\""),
            (Waiting, "echo one\nnosuchcommand\necho $LINENO"),
            (Waiting, "echo one\nif true; then\n"),
            (
                Waiting,
                "cat <<END\nhere $((1 + 1))\nEND\n(echo sub; exit 3); echo $?\necho a | cat; sleep 0 & wait; echo waited",
            ),
            (
                Waiting,
                "f() {\n  cat \"$0\"\n}\nf; [ -f \"$0\" ] && echo regular; stat -c '%a %u %g %s %h' \"$0\"; ls -A",
            ),
            (Waiting, "kill -TERM $$; echo survived"),
            (Waiting, "if [ -z \"$AGAIN\" ]; then AGAIN=1 exec bash \"$0\"; fi; echo again $0"),
            (Waiting, "source ./lib.sh; greet; echo ${BASH_SOURCE[0]}"),
            (Waiting, "exec 3<\"$0\"; read -r -u 3 line; echo \"$line\""),
            (Waiting, "bash -c 'echo $0 $PPID; cat' < /dev/null; echo rest of the script"),
            (Waiting, "for i in 1 2 3; do (read -r line; echo \"$i $line\"); done; echo end"),
            (Waiting, "echo $'\\xff' | od -c; printf '\u{e4}'"),
            (Waiting, "#!/bin/sh\necho ${BASH_VERSION:0:1} # no line break at the end"),
        ],
        &json!({"stdin": "l1\nl2\n", "files": [{"path": "lib.sh", "content": "greet() { echo hello from ${BASH_SOURCE[0]}; }"}]}),
    );
}

#[test]
fn ruby_cannot_tell() {
    assert_same(
        "ruby",
        &[
            (Waiting, "p $0, __FILE__, __dir__, __LINE__, __method__, ARGV, $PROGRAM_NAME, $:, $\"[-3..]"),
            (
                Waiting,
                "p __ENCODING__, 'é'.encoding, 'é'.bytes, Encoding.default_external, Encoding.default_internal",
            ),
            (
                Waiting,
                "p Process.pid, Process.ppid, ENV.to_a.sort, Dir.pwd, Process.uid, $stdin.tty?, $stdout.sync",
            ),
            (Waiting, "# frozen_string_literal: true\np 'a'.frozen?"),
            (Waiting, "=begin\nnothing\n=end\np __LINE__"),
            (Waiting, "def f = raise('here')\nf"),
            (Waiting, "puts 1\nclass\n"),
            (Waiting, "p x y"),
            (
                Waiting,
                "BEGIN { puts 'first' }\nEND { puts 'last' }\nat_exit { puts 'later' }\nputs 'now'\nexit 3",
            ),
            (Waiting, "puts File.read(__FILE__), File.file?(__FILE__)"),
            (Waiting, "p gets, $<.filename, caller, binding.local_variables, self.to_s"),
            (Waiting, "require_relative 'helper'\np X, $LOADED_FEATURES.last"),
            (Waiting, "p Dir.children('/proc/self/fd').map(&:to_i).select { |fd| fd < 3 }.sort"),
            (
                Waiting,
                "puts fork { puts 'child'; $stdout.flush; exit! 4 }.then { |pid| Process.wait2(pid)[1].exitstatus }",
            ),
            (Waiting, "Thread.new { puts 'thread' }.join; Process.kill(:TERM, $$); sleep 1"),
            (Waiting, "puts 'x' * 300_000; $stderr.puts 'written'; abort 'gone'"),
            (
                Waiting,
                "warn 'w'; p defined?(DATA), $VERBOSE, $-w, RubyVM::InstructionSequence.of(method(:puts)).nil?",
            ),
            (New, "p DATA.read\n__END__\nafter"),
            (New, "#!/usr/bin/env ruby -w\np $VERBOSE"),
            (New, "# coding: iso-8859-1\np __ENCODING__"),
            (New, "\u{feff}p __ENCODING__"),
        ],
        &json!({"stdin": "in\n", "files": [{"path": "helper.rb", "content": "X = 1"}]}),
    );
    let gem = json!({"files": [{"path": ".gem/x", "content": ""}]});
    assert_same("ruby", &[(New, "p Gem.path.size")], &gem);
}

#[test]
fn r_cannot_tell() {
    assert_same(
        "r",
        &[
            (
                Waiting,
                "print(commandArgs()); print(getwd()); print(Sys.getpid()); print(sort(names(Sys.getenv())))",
            ),
            (Waiting, "x y"),
            (Waiting, "cat(1, '\\n')\nx y"),
            (Waiting, "cat(1, '\\n')\nx <- (2 +\n\n\n }"),
            (Waiting, "f <- function() stop('here')\nf()"),
            (Waiting, "warning('careful'); print(search()); quit(status = 3)"),
            (
                Waiting,
                "print(readLines(file('stdin'))); print(interactive()); print(sys.call()); print(.libPaths())",
            ),
            (
                Waiting,
                "source('helper.R'); print(x); print(readLines('main.R')); print(file.info('main.R')$isdir)",
            ),
            (Waiting, "'ünïcode' -> s; print(nchar(s)); print(Encoding(s)); print(l10n_info()$`UTF-8`)"),
            (Waiting, "set.seed(1); print(runif(2)); print(exists('.Random.seed'))"),
            (Waiting, "message(strrep('x', 100000)); tools::pskill(Sys.getpid(), 15); Sys.sleep(1)"),
        ],
        &json!({"stdin": "in\n", "files": [{"path": "helper.R", "content": "x <- 1"}]}),
    );
    let library = json!({"files": [{"path": "R/x", "content": ""}]});
    assert_same("r", &[(New, "cat(1)")], &library);
}

#[test]
fn other_languages_cannot_tell() {
    let stdin = json!({"stdin": "first\nsecond\n"});
    assert_same(
        "sh",
        &[
            (Waiting, "echo $0 $$ $PPID $- $#; set; ulimit -a; env | sort"),
            (
                Waiting,
                "cat; nosuchcommand\necho $LINENO; (exit 3); echo $?; cat \"$0\"; trap 'echo bye' EXIT; exit 5",
            ),
            (Waiting, "echo one\nif true; then\n"),
        ],
        &stdin,
    );
    assert_same(
        "zsh",
        &[
            (Waiting, "echo $0 $$ $PPID $- $# $ZSH_ARGZERO; setopt; env | sort"),
            (Waiting, "cat; nosuchcommand\necho $LINENO; cat $0; f() { echo $funcfiletrace }; f; exit 5"),
        ],
        &stdin,
    );
    assert_same(
        "perl",
        &[
            (
                Waiting,
                "print \"$0 $$ @ARGV \", __FILE__, ' ', __LINE__, ' ', join(',', sort keys %INC), \"\\n\"; print <STDIN>; warn 'w'; die 'd'",
            ),
            (Waiting, "open F, $0; print <F>; print -f $0 ? 'file' : 'no'; exit 3"),
            (Waiting, "use strict; print $x;"),
            (New, "print <DATA>; seek(DATA, 0, 0); print <DATA>;\n__DATA__\nrest\n"),
        ],
        &stdin,
    );
    assert_same(
        "php",
        &[
            (
                Waiting,
                "<?php var_dump($argv, __FILE__, __DIR__, get_included_files(), PHP_SAPI, getmypid(), php_ini_loaded_file()); echo stream_get_contents(STDIN);",
            ),
            (Waiting, "<?php function f() { throw new Exception('here'); } f();"),
            (Waiting, "before <?php echo 1 + ; ?> after"),
            (
                Waiting,
                "#!/usr/bin/php\n<?php echo __LINE__, file_get_contents(__FILE__), is_file(__FILE__); exit(3);",
            ),
            (
                Waiting,
                "<?php $f = fopen(__FILE__, 'r'); fseek($f, __COMPILER_HALT_OFFSET__); echo stream_get_contents($f); __halt_compiler();data",
            ),
            (Waiting, "text only"),
        ],
        &stdin,
    );
    assert_same(
        "lua",
        &[
            (
                Waiting,
                "print(arg[0], #arg, debug.getinfo(1).source, debug.getinfo(1).short_src, io.read('a'))",
            ),
            (Waiting, "error('here')"),
            (Waiting, "#!/usr/bin/lua\nprint(io.open(arg[0]):read('a')) os.exit(3)"),
            (Waiting, "print(1"),
        ],
        &stdin,
    );
}
