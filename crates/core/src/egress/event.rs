//! What a box does with its network, as it happens.

use std::fmt;

/// Something that happened to a connection, or to several of the same kind. Its text is the code's own: of bounded size, and
/// without characters that a terminal would act upon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkEvent {
    /// A name, or an address.
    pub host: String,
    /// The port; none for a name that was only looked up.
    pub port: Option<u16>,
    /// What happened.
    pub step: NetworkStep,
    /// How many times, if it happened more often than can be told.
    pub count: u64,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkStep {
    /// It may pass, and is on its way.
    Allowed,
    /// It may not pass, for this reason.
    Refused(String),
    /// It might have passed, but the other end does not answer, or does not want it.
    Failed,
    /// It is over.
    Closed {
        /// Bytes that left the box.
        up: u64,
        /// Bytes that came into it.
        down: u64,
    },
    /// More happened than is told.
    Omitted,
}

impl NetworkEvent {
    /// So many events that are not told.
    #[must_use]
    pub fn omitted(count: u64) -> NetworkEvent {
        NetworkEvent { host: "*".to_owned(), port: None, step: NetworkStep::Omitted, count }
    }

    /// Adds another event, if it differs in nothing but numbers.
    ///
    /// # Errors
    /// The other event, if it is of another kind or of another host.
    pub fn join(&mut self, other: NetworkEvent) -> Result<(), NetworkEvent> {
        if (&self.host, self.port) != (&other.host, other.port) {
            return Err(other);
        }
        match (&mut self.step, &other.step) {
            (NetworkStep::Closed { up, down }, NetworkStep::Closed { up: more_up, down: more_down }) => {
                *up = up.saturating_add(*more_up);
                *down = down.saturating_add(*more_down);
            }
            (own, step) if own == step => {}
            _ => return Err(other),
        }
        self.count = self.count.saturating_add(other.count);
        Ok(())
    }
}

/// `api.example.com:443 closed, 1.2 kB up, 34 kB down`.
impl fmt::Display for NetworkEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NetworkEvent { host, port, step, count } = self;
        if *step == NetworkStep::Omitted {
            return write!(f, "{count} more events");
        }
        match port {
            Some(port) if host.contains(':') => write!(f, "[{host}]:{port}")?,
            Some(port) => write!(f, "{host}:{port}")?,
            None => f.write_str(host)?,
        }
        match step {
            NetworkStep::Allowed => f.write_str(" allowed")?,
            NetworkStep::Refused(reason) => write!(f, " refused ({reason})")?,
            NetworkStep::Failed => f.write_str(" failed (no answer, or not accepted)")?,
            NetworkStep::Closed { up, down } => write!(f, " closed, {} up, {} down", size(*up), size(*down))?,
            NetworkStep::Omitted => {}
        }
        if *count > 1 { write!(f, ", {count} times") } else { Ok(()) }
    }
}

/// A number of bytes, for a person.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1000.0;
    let mut unit = 0;
    // What would be rounded to a thousand is one of the next unit.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = usize::from(value < 9.95);
    format!("{value:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(host: &str, port: Option<u16>, step: NetworkStep) -> NetworkEvent {
        NetworkEvent { host: host.to_owned(), port, step, count: 1 }
    }

    #[test]
    fn an_event_is_a_line() {
        let refused = NetworkStep::Refused("a private address".to_owned());
        let closed = NetworkStep::Closed { up: 1234, down: 33_900 };
        for (event, text) in [
            (event("api.example.com", Some(443), NetworkStep::Allowed), "api.example.com:443 allowed"),
            (event("10.0.0.1", Some(80), refused.clone()), "10.0.0.1:80 refused (a private address)"),
            (event("evil.org", None, refused), "evil.org refused (a private address)"),
            (event("a.org", Some(443), closed), "a.org:443 closed, 1.2 kB up, 34 kB down"),
            (
                event("2606::1", Some(80), NetworkStep::Failed),
                "[2606::1]:80 failed (no answer, or not accepted)",
            ),
            (NetworkEvent::omitted(7), "7 more events"),
        ] {
            assert_eq!(event.to_string(), text);
        }
        let often = NetworkEvent { count: 3, ..event("a.org", Some(1), NetworkStep::Allowed) };
        assert_eq!(often.to_string(), "a.org:1 allowed, 3 times");
    }

    #[test]
    fn sizes_have_two_digits_or_more() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (9949, "9.9 kB"),
            (9960, "10 kB"),
            (999_499, "999 kB"),
            (999_600, "1.0 MB"),
            (u64::MAX, "18447 PB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn events_that_differ_only_in_numbers_become_one() {
        let closed = |up, down| event("a.org", Some(1), NetworkStep::Closed { up, down });
        let mut first = closed(1, 2);
        assert_eq!(first.join(closed(10, 20)), Ok(()));
        assert_eq!(first, NetworkEvent { count: 2, ..closed(11, 22) });
        for other in [
            event("a.org", Some(1), NetworkStep::Allowed),
            event("b.org", Some(1), NetworkStep::Closed { up: 0, down: 0 }),
            event("a.org", Some(2), NetworkStep::Closed { up: 0, down: 0 }),
        ] {
            assert_eq!(first.join(other.clone()), Err(other));
        }
        let refused = |why: &str| event("a.org", Some(1), NetworkStep::Refused(why.to_owned()));
        assert!(refused("x").join(refused("y")).is_err() && refused("x").join(refused("x")).is_ok());
    }
}
