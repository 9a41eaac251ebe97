//! Who may have a connection. There are only so many, in all and for each address, and a client that holds one without
//! asking for anything has to make room for one that might.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

/// Connections that were told to go and have not gone yet. More than that are not told: their descriptors are still open.
const MAX_LEAVING: usize = 64;

/// All places. A clone is the same.
#[derive(Debug, Clone)]
pub(crate) struct Places(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    all: usize,
    each: usize,
    state: Mutex<State>,
    /// Notified when the last one has gone.
    emptied: Notify,
}

#[derive(Debug)]
struct State {
    /// When the last one to go so far has gone.
    left_at: Instant,
    open: usize,
    leaving: usize,
    by_peer: HashMap<IpAddr, usize>,
    /// Those with no request under way, in the order in which they began to wait.
    waiting: BTreeMap<u64, (IpAddr, Arc<Seat>)>,
    next: u64,
}

/// A place, for as long as there is the connection.
#[derive(Debug)]
pub(crate) struct Place {
    places: Places,
    peer: IpAddr,
    seat: Arc<Seat>,
}

/// What a place and the list of those that wait both know.
#[derive(Debug, Default)]
struct Seat {
    /// Changed with the list locked, except from [`SERVING`] to [`ANSWERED`].
    stage: AtomicU8,
    /// Where it is in the list, while it waits.
    number: AtomicU64,
    told_to_go: Notify,
}

/// Waits for a request, or for the rest of one's head.
const WAITING: u8 = 0;
/// Has a request, whose answer is not complete.
const SERVING: u8 = 1;
/// Has an answer that is complete, and perhaps not sent.
const ANSWERED: u8 = 2;
/// Was told to go.
const GOING: u8 = 3;

/// A request under way.
#[derive(Debug)]
pub(crate) struct Serving(Arc<Seat>);

impl Places {
    /// So many in all, and so many for each address.
    pub(crate) fn new(all: usize, each: usize) -> Places {
        let state = State {
            left_at: Instant::now(),
            open: 0,
            leaving: 0,
            by_peer: HashMap::new(),
            waiting: BTreeMap::new(),
            next: 0,
        };
        Places(Arc::new(Shared { all, each, state: Mutex::new(state), emptied: Notify::new() }))
    }

    /// A place for a client at this address. If there is none, the one that has waited longest loses its own: among those
    /// of the same address, if that has too many. `None` if nobody waits.
    pub(crate) fn enter(&self, address: IpAddr) -> Option<Place> {
        let peer = peer_of(address);
        let mut state = self.state();
        let of_this_peer = state.by_peer.get(&peer).copied().unwrap_or(0);
        if of_this_peer >= self.0.each {
            state.dismiss(|other| other == peer)?;
        } else if state.open >= self.0.all {
            state.dismiss(|_| true)?;
        }
        let seat = Arc::new(Seat::default());
        state.open += 1;
        *state.by_peer.entry(peer).or_default() += 1;
        state.wait(peer, &seat);
        drop(state);
        Some(Place { places: self.clone(), peer, seat })
    }

    /// Waits until all have gone.
    pub(crate) async fn emptied(&self) {
        loop {
            let emptied = self.0.emptied.notified();
            if self.state().is_empty() {
                return;
            }
            emptied.await;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.state().is_empty()
    }

    /// When a connection was last closed.
    pub(crate) fn left_at(&self) -> Instant {
        self.state().left_at
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while the lock was held leaves a count that is too high by one at worst.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Tells the one of these to go that has waited longest. From then on its place is free.
    fn dismiss(&mut self, among: impl Fn(IpAddr) -> bool) -> Option<()> {
        if self.leaving >= MAX_LEAVING {
            return None;
        }
        let number = self.waiting.iter().find(|(_, (peer, _))| among(*peer)).map(|(number, _)| *number)?;
        let (peer, seat) = self.waiting.remove(&number)?;
        seat.stage.store(GOING, Ordering::Release);
        self.free(peer);
        self.leaving += 1;
        seat.told_to_go.notify_one();
        Some(())
    }

    fn wait(&mut self, peer: IpAddr, seat: &Arc<Seat>) {
        self.next += 1;
        seat.number.store(self.next, Ordering::Release);
        self.waiting.insert(self.next, (peer, seat.clone()));
    }

    fn free(&mut self, peer: IpAddr) {
        self.open -= 1;
        if let Some(number) = self.by_peer.get_mut(&peer) {
            *number -= 1;
            if *number == 0 {
                self.by_peer.remove(&peer);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.open == 0 && self.leaving == 0
    }
}

impl Place {
    /// A request has arrived. It is under way until this is dropped. `None` if the client was told to go just before.
    pub(crate) fn serve(&self) -> Option<Serving> {
        let mut state = self.places.state();
        if self.seat.is(GOING) {
            return None;
        }
        state.waiting.remove(&self.seat.number.load(Ordering::Acquire));
        self.seat.stage.store(SERVING, Ordering::Release);
        Some(Serving(self.seat.clone()))
    }

    /// Everything that was to be sent has been handed to the kernel.
    pub(crate) fn sent(&self) {
        if self.seat.is(ANSWERED) {
            let mut state = self.places.state();
            self.seat.stage.store(WAITING, Ordering::Release);
            state.wait(self.peer, &self.seat);
        }
    }

    /// Waits until somebody else is to have this place.
    pub(crate) async fn told_to_go(&self) {
        self.seat.told_to_go.notified().await;
    }
}

impl Seat {
    fn is(&self, stage: u8) -> bool {
        self.stage.load(Ordering::Acquire) == stage
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.stage.store(ANSWERED, Ordering::Release);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.places.state();
        if self.seat.is(WAITING) {
            state.waiting.remove(&self.seat.number.load(Ordering::Acquire));
        }
        state.left_at = Instant::now();
        if self.seat.is(GOING) {
            state.leaving -= 1;
        } else {
            state.free(self.peer);
        }
        if state.is_empty() {
            self.places.0.emptied.notify_waiters();
        }
    }
}

/// Whom an address stands for. One machine has many: all of 127.0.0.0/8, and of IPv6 usually all that share 64 bits.
fn peer_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        address if address.is_loopback() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn is_told(place: &Place) -> bool {
        place.told_to_go().now_or_never().is_some()
    }

    #[test]
    fn the_one_that_has_waited_longest_makes_room() {
        let places = Places::new(2, 2);
        let enter = |text: &str| places.enter(address(text));
        let (first, second) = (enter("10.0.0.1").unwrap(), enter("10.0.0.2").unwrap());
        let third = enter("10.0.0.3").unwrap();
        assert!(is_told(&first) && !is_told(&second));
        assert!(first.serve().is_none(), "too late");
        let (busy, also_busy) = (second.serve().unwrap(), third.serve().unwrap());
        assert!(enter("10.0.0.4").is_none(), "nobody waits");
        drop((busy, also_busy));
        assert!(enter("10.0.0.4").is_none(), "the answers are not sent yet");
        third.sent();
        second.sent();
        let fourth = enter("10.0.0.4").unwrap();
        assert!(is_told(&third) && !is_told(&second), "the third has waited longer");
        assert!(second.serve().is_some(), "another request on the same connection");
        drop((first, second, third, fourth));
        assert!(places.emptied().now_or_never().is_some());
        assert!(places.state().by_peer.is_empty() && places.state().waiting.is_empty());
    }

    #[test]
    fn an_address_takes_only_its_own_places() {
        let places = Places::new(10, 2);
        let enter = |text: &str| places.enter(address(text));
        let other = enter("192.0.2.1").unwrap();
        let ours = [enter("2001:db8::1").unwrap(), enter("2001:db8::2").unwrap()];
        let _busy = ours.each_ref().map(|place| place.serve().unwrap());
        assert!(enter("2001:db8::3").is_none(), "it is the same network");
        let elsewhere = enter("2001:db8:0:1::1").unwrap();
        assert!(enter("192.0.2.1").is_some(), "the control: another address");
        assert!(!is_told(&other) && !is_told(&elsewhere));
    }

    #[test]
    fn this_machine_is_one_address() {
        for text in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.2"] {
            assert_eq!(peer_of(address(text)), address("127.0.0.1"), "{text}");
        }
        assert_eq!(peer_of(address("::ffff:192.0.2.1")), address("192.0.2.1"));
    }

    #[test]
    fn no_more_are_told_to_go_than_can_be_waited_for() {
        let places = Places::new(1, 1);
        let mut held = vec![places.enter(address("10.0.0.1")).unwrap()];
        while let Some(place) = places.enter(address("10.0.0.1")) {
            held.push(place);
        }
        assert_eq!(held.len(), 1 + MAX_LEAVING);
        held.remove(0);
        assert!(places.enter(address("10.0.0.1")).is_some(), "one has gone");
    }
}
