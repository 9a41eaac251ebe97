//! Servers that keep boxes waiting, so that what is promised of a run is held to of one that did not begin from nothing.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::time::Instant;

use serde_json::{Value, json};

use crate::brief::Brief;
use crate::cell::{self, Cell, Ran, Running, User};
use crate::host::{self, PATIENCE, Scratch, eventually};
use crate::request::{self, Asked, Obstacle};

/// How often to ask for a run with a given start. When the machine is so busy that a runtime takes seconds to enter its box,
/// the server starts the run cold instead.
const TRIES: usize = 5;

/// How a run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Start {
    /// In a box that is built for it.
    Cold,
    /// In a box that has been waiting.
    Warm,
    /// In a new box, with a runtime that was forked into it.
    Zygote,
}

impl Start {
    /// The result's word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Start::Cold => "cold",
            Start::Warm => "warm",
            Start::Zygote => "zygote",
        }
    }

    /// A pool in which no other start is had.
    fn pool_of(self, language: &str) -> String {
        let bounds = match self {
            Start::Cold => return "[pool]\nenabled = false\n".into(),
            Start::Warm => "min = 1\nmax = 2",
            Start::Zygote => "min = 0\nmax = 0",
        };
        format!("[pool.languages.{language}]\n{bounds}\n")
    }
}

/// The servers of one promise: one for each language, and for each environment that a caller is to have.
#[derive(Debug)]
pub(crate) struct Served {
    start: Start,
    servers: RefCell<HashMap<Key, Rc<Server>>>,
    tally: RefCell<Tally>,
}

type Key = (String, Vec<(String, String)>);

/// What became of the runs of one promise.
#[derive(Debug, Default)]
struct Tally {
    as_asked: usize,
    otherwise: BTreeMap<Obstacle, usize>,
}

impl Served {
    pub(crate) fn new(start: Start) -> Served {
        Served { start, servers: RefCell::default(), tally: RefCell::default() }
    }

    pub(crate) fn start(&self) -> Start {
        self.start
    }

    /// Runs code as asked for, or returns nothing where that cannot be, by design.
    #[track_caller]
    pub(crate) fn run(&self, cell: &Cell, code: &str) -> Option<Ran> {
        let asked = match request::of(cell, self.start, code) {
            Ok(asked) => asked,
            Err(obstacle) => {
                *self.tally.borrow_mut().otherwise.entry(obstacle).or_default() += 1;
                return None;
            }
        };
        let server = self.server(&asked.language, cell);
        let ran = server.run_as_asked(self.start, &asked);
        self.tally.borrow_mut().as_asked += 1;
        Some(ran)
    }

    fn server(&self, language: &str, cell: &Cell) -> Rc<Server> {
        let key = (language.to_owned(), cell.env.clone());
        let mut servers = self.servers.borrow_mut();
        servers.entry(key).or_insert_with(|| Rc::new(Server::start(self.start, language, cell))).clone()
    }

    /// Says how many runs were what they should have been, and why the others were not.
    ///
    /// # Panics
    /// If none was: the promise was not put to the test at all.
    pub(crate) fn assert_tried(&self, name: &str) {
        let tally = self.tally.borrow();
        let mut told = format!("{name}: {} {}", tally.as_asked, self.start.name());
        for (obstacle, count) in &tally.otherwise {
            told += &format!("; {count} cold by design: {obstacle}");
        }
        host::write_record("starts", name, &(told.clone() + "\n"));
        assert!(tally.as_asked > 0, "no run of this promise was; if none can be, say why: {told}");
    }
}

/// A server with boxes of one language. It goes when this does.
#[derive(Debug)]
struct Server {
    running: Running,
    address: String,
    _config: Scratch,
}

impl Server {
    fn start(start: Start, language: &str, cell: &Cell) -> Server {
        let config = Scratch::new();
        // They share what is known about the runtimes of this host, and would share a ledger, too.
        let settings =
            start.pool_of(language) + "[audit]\nenabled = false\n[server.allow]\nnetwork = 'full'\n";
        let _file = config.file("belljar.toml", settings);
        let mut command = host::belljar(User::Root, &host::staged(User::Root), None);
        command.args(["serve", "--listen", "127.0.0.1:0", "--config", "belljar.toml"]);
        command.current_dir(config.path());
        command.envs(cell.env.iter().map(|(name, value)| (name, value)));
        let running = cell::start(command, None);
        let address = running.wait_for_message("listening on http://");
        let server = Server { running, address, _config: config };
        if start == Start::Zygote {
            eventually("a zygote lives", || {
                let asked = server.ask("POST", "/v1/runs", &json!({"language": language, "code": "1"}));
                asked["start"] == start.name()
            });
        }
        server
    }

    #[track_caller]
    fn run_as_asked(&self, start: Start, asked: &Asked) -> Ran {
        let mut ran = (0..TRIES).map(|_| self.run(start, asked));
        ran.find(|ran| ran.start == start.name()).unwrap_or_else(|| {
            let (pool, body) = (self.ask("GET", "/v1/pool", &Value::Null), asked.body.to_string());
            panic!("no start was {} in {TRIES} tries: {}\npool: {pool}", start.name(), Brief(&body))
        })
    }

    fn run(&self, start: Start, asked: &Asked) -> Ran {
        if start == Start::Warm {
            eventually("a box waits", || {
                let pool = self.ask("GET", "/v1/pool", &Value::Null);
                pool["languages"][0]["ready"].as_u64() > Some(0)
            });
        }
        let since = Instant::now();
        let answer = self.ask("POST", "/v1/runs", &asked.body);
        let result = serde_json::from_value(answer.clone());
        Ran::of(
            result.unwrap_or_else(|fault| panic!("no result ({fault}): {}", Brief(&answer.to_string()))),
            since.elapsed(),
        )
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut stream = TcpStream::connect(&self.address).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("it is not zero");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("the server reads");
        stream.write_all(body.as_bytes()).expect("the server reads");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("the server answers");
        let body = answer.windows(4).position(|at| at == b"\r\n\r\n").expect("an answer has a head") + 4;
        serde_json::from_slice(&answer[body..])
            .unwrap_or_else(|fault| panic!("{fault}: {}", Brief(&String::from_utf8_lossy(&answer))))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.running.kill();
    }
}
