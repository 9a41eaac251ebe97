//! Progress on a terminal. Off a terminal, `indicatif` draws nothing.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use belljar_core::backend::{PullEvent, Stream};
use belljar_core::egress::NetworkEvent;
use belljar_engine::{Observer, Started};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::args::Verbosity;

const LAYER: &str = "{prefix} [{bar:30}] {bytes}/{total_bytes} {msg}";
const LINE: &str = "{prefix} {msg}";
const SPINNER: &str = "{spinner} {prefix}: {msg} ({elapsed})";
const COUNTER: &str = "{prefix} [{bar:30}] {pos}/{len}";

/// Shows the download of an image while a run waits for it, and passes everything on to another observer.
#[derive(Debug)]
pub(crate) struct PullProgress<'a> {
    bars: Option<PullBars>,
    verbosity: Verbosity,
    observer: &'a mut dyn Observer,
}

impl<'a> PullProgress<'a> {
    pub(crate) fn new(verbosity: Verbosity, observer: &'a mut dyn Observer) -> PullProgress<'a> {
        PullProgress { bars: None, verbosity, observer }
    }

    /// Before the program writes anything: bars that are cleared later would take its output with them.
    pub(crate) fn clear(&mut self) {
        self.bars = None;
    }
}

impl Observer for PullProgress<'_> {
    fn pulling(&mut self, event: &PullEvent) {
        if self.verbosity != Verbosity::Quiet {
            self.bars.get_or_insert_default().show(event);
        }
        self.observer.pulling(event);
    }

    fn started(&mut self, started: &Started<'_>) {
        self.clear();
        self.observer.started(started);
    }

    fn next_stage(&mut self) {
        self.observer.next_stage();
    }

    fn network(&mut self, event: &NetworkEvent) {
        self.observer.network(event);
    }

    fn output(&mut self, stream: Stream, bytes: &[u8]) -> ControlFlow<()> {
        self.observer.output(stream, bytes)
    }
}

/// A bar for each layer of an image. Dropping it clears them.
#[derive(Debug, Default)]
struct PullBars {
    all: MultiProgress,
    layers: BTreeMap<String, ProgressBar>,
}

impl PullBars {
    fn show(&mut self, event: &PullEvent) {
        let name = event.layer.as_ref().unwrap_or(&event.image);
        let bar = self.layers.entry(name.clone()).or_insert_with(|| {
            self.all.add(ProgressBar::no_length().with_style(style(LINE)).with_prefix(name.clone()))
        });
        match event.progress {
            Some((there, total)) if total > 0 => {
                bar.set_style(style(LAYER));
                bar.set_length(total);
                bar.set_position(there.min(total));
            }
            Some(_) | None => bar.set_style(style(LINE)),
        }
        bar.set_message(event.status.clone());
        bar.tick();
    }
}

impl Drop for PullBars {
    fn drop(&mut self) {
        self.layers.values().for_each(ProgressBar::finish_and_clear);
    }
}

/// A step that takes a while and has no measure. Dropping it clears the line.
#[derive(Debug)]
#[cfg_attr(not(feature = "wasm"), allow(dead_code, reason = "only `wasm install` has such steps"))]
pub(crate) struct Spinner(ProgressBar);

#[cfg_attr(not(feature = "wasm"), allow(dead_code, reason = "only `wasm install` has such steps"))]
impl Spinner {
    pub(crate) fn new(name: &'static str) -> Spinner {
        let bar = ProgressBar::new_spinner().with_style(style(SPINNER)).with_prefix(name);
        bar.enable_steady_tick(Duration::from_millis(100));
        Spinner(bar)
    }

    pub(crate) fn say(&self, doing: &str) {
        self.0.set_message(doing.to_owned());
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Rounds out of a known number. Dropping it clears the line.
#[derive(Debug)]
pub(crate) struct Counter(ProgressBar);

impl Counter {
    pub(crate) fn new(verbosity: Verbosity, name: &'static str, rounds: usize) -> Counter {
        let bar = match verbosity {
            Verbosity::Quiet => ProgressBar::hidden(),
            Verbosity::Normal | Verbosity::Verbose => ProgressBar::new(rounds as u64),
        };
        Counter(bar.with_style(style(COUNTER)).with_prefix(name))
    }

    pub(crate) fn advance(&self) {
        self.0.inc(1);
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn style(template: &'static str) -> ProgressStyle {
    // The templates are constants; one that does not parse fails the test below.
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("#>.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_core::language::Language;
    use belljar_core::outcome::{Stage, Start};
    use belljar_core::request::BackendName;
    use belljar_engine::Unobserved;
    use indicatif::{ProgressDrawTarget, TermLike};
    use std::io::{self, IsTerminal};
    use std::sync::{Arc, Mutex};

    /// A terminal that keeps what was written last.
    #[derive(Debug, Clone, Default)]
    struct Screen(Arc<Mutex<Vec<String>>>);

    impl Screen {
        fn add(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().push(text.to_owned());
            Ok(())
        }
    }

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            100
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, line: &str) -> io::Result<()> {
            self.add(line)
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.add(text)
        }
        fn clear_line(&self) -> io::Result<()> {
            self.add("CLEAR")
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    fn event(layer: &str, status: &str, progress: Option<(u64, u64)>) -> PullEvent {
        PullEvent { image: "alpine".into(), layer: Some(layer.into()), status: status.into(), progress }
    }

    #[test]
    fn bars_are_gone_when_the_program_starts_and_quiet_has_none() {
        let language = Language::by_name("sh").unwrap();
        let started = Started {
            language,
            runtime: "dash",
            backend: BackendName::Docker,
            start: Start::Cold,
            image: None,
            queue: Duration::ZERO,
            stage: Stage::Run,
        };
        for (verbosity, shown) in [(Verbosity::Quiet, false), (Verbosity::Normal, true)] {
            let mut unobserved = Unobserved;
            let mut progress = PullProgress::new(verbosity, &mut unobserved);
            progress.pulling(&event("one", "Downloading", None));
            assert_eq!(progress.bars.is_some(), shown, "{verbosity:?}");
            progress.started(&started);
            assert!(progress.bars.is_none());
        }
    }

    #[test]
    fn nothing_is_drawn_off_a_terminal() {
        // The runner of the tests captures stderr, and so has no terminal there.
        if !io::stderr().is_terminal() {
            assert!(PullBars::default().all.is_hidden());
        }
    }

    #[test]
    fn every_template_is_well_formed() {
        for template in [LAYER, LINE, SPINNER, COUNTER] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }

    #[test]
    fn each_layer_has_a_bar_which_is_cleared_in_the_end() {
        let screen = Screen::default();
        let target = ProgressDrawTarget::term_like_with_hz(Box::new(screen.clone()), 250);
        let mut bars = PullBars { all: MultiProgress::with_draw_target(target), layers: BTreeMap::default() };
        bars.show(&event("one", "Downloading", Some((1, 2))));
        bars.show(&event("two", "Waiting", None));
        bars.show(&event("one", "Pull complete", None));
        assert_eq!(bars.layers.len(), 2);
        let half = format!("{}{}", "#".repeat(15), ">");
        let shown = screen.0.lock().unwrap().concat();
        assert!(shown.contains("one [") && shown.contains(&half) && shown.contains("Downloading"), "{shown}");
        screen.0.lock().unwrap().clear();
        drop(bars);
        let cleared = screen.0.lock().unwrap().concat();
        assert!(cleared.contains("CLEAR") && !cleared.contains("Waiting Waiting"), "{cleared}");
    }
}
