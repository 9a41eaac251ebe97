//! Waiting: for input, for a time, or for whichever comes first.

use std::time::{Duration, Instant};

use super::abi::{Errno, Fault, Memory};
use super::calls::time_of;
use super::descriptors::What;
use crate::guest::Guest;

/// The most events that one call waits for.
const MAX_SUBSCRIPTIONS: u32 = 1024;

/// Waits for the first of some events. Programs also sleep in this way.
pub(super) fn poll_oneoff(
    memory: &mut Memory<'_>,
    guest: &mut Guest,
    subscriptions: u32,
    events: u32,
    count: u32,
    out: u32,
) -> Result<(), Fault> {
    if count == 0 || count > MAX_SUBSCRIPTIONS {
        return Err(Errno::Inval.into());
    }
    let at = |index: u32| subscriptions.checked_add(index * 48).ok_or(Errno::Fault);
    let awaited: Result<Vec<_>, Errno> =
        (0..count).map(|index| Subscription::read(memory, guest, at(index)?)).collect();
    let happened = guest.wait_for(&awaited?)?;
    let mut told = 0;
    for event in &happened {
        let at = events.checked_add(told * 32).ok_or(Errno::Fault)?;
        memory.put(at, &event.record())?;
        told += 1;
    }
    Ok(memory.put_u32(out, told)?)
}

/// What is waited for.
#[derive(Debug, Clone, Copy)]
struct Subscription {
    userdata: u64,
    kind: u8,
    on: On,
}

#[derive(Debug, Clone, Copy)]
enum On {
    Time(Instant),
    /// A time too far in the future to be represented.
    Never,
    Input,
    /// A stream that can be read or written without blocking.
    Ready(u64),
    Failed(Errno),
}

/// What has happened.
struct Happened {
    userdata: u64,
    kind: u8,
    error: u16,
    bytes: u64,
}

impl Subscription {
    fn read(memory: &Memory<'_>, guest: &Guest, at: u32) -> Result<Subscription, Errno> {
        let field = |offset: u32| at.checked_add(offset).ok_or(Errno::Fault);
        let userdata = memory.u64(at)?;
        let [kind] = memory.array::<1>(field(8)?)?;
        let on = match kind {
            0 => {
                let absolute = u16::from_le_bytes(memory.array(field(40)?)?) & 1 != 0;
                clock_event(guest, memory.u32(field(16)?)?, memory.u64(field(24)?)?, absolute)
            }
            1 => guest.readable(memory.u32(field(16)?)?),
            2 => guest
                .system
                .descriptors
                .get(memory.u32(field(16)?)?)
                .map_or_else(On::Failed, |_| On::Ready(0)),
            _ => return Err(Errno::Inval),
        };
        Ok(Subscription { userdata, kind, on })
    }

    fn happened(self, error: u16, bytes: u64) -> Happened {
        Happened { userdata: self.userdata, kind: self.kind, error, bytes }
    }
}

impl Happened {
    fn record(&self) -> [u8; 32] {
        let mut record = [0; 32];
        record[..8].copy_from_slice(&self.userdata.to_le_bytes());
        record[8..10].copy_from_slice(&self.error.to_le_bytes());
        record[10] = self.kind;
        record[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        record
    }
}

impl Guest {
    fn readable(&self, fd: u32) -> On {
        match self.system.descriptors.get(fd).map(|descriptor| &descriptor.what) {
            Ok(What::Stdin) => On::Input,
            Ok(What::Output(_) | What::Dir(_) | What::File(_) | What::Host(_) | What::Device(_)) => {
                On::Ready(0)
            }
            Err(errno) => On::Failed(errno),
        }
    }

    /// Waits until at least one of these has happened.
    fn wait_for(&self, awaited: &[Subscription]) -> Result<Vec<Happened>, Fault> {
        let at_once = |one: &Subscription| matches!(one.on, On::Ready(_) | On::Failed(_));
        let times =
            awaited.iter().filter_map(|one| if let On::Time(time) = one.on { Some(time) } else { None });
        let first = if awaited.iter().any(at_once) { Some(Instant::now()) } else { times.min() };
        let wants_input = awaited.iter().any(|one| matches!(one.on, On::Input));
        let input = if wants_input {
            self.link.await_input(first)?
        } else {
            self.link.sleep_until(first)?;
            None
        };
        let now = Instant::now();
        let happened = awaited.iter().filter_map(|one| match one.on {
            On::Time(time) if time <= now => Some(one.happened(0, 0)),
            On::Input => input.map(|bytes| one.happened(0, bytes as u64)),
            On::Ready(bytes) => Some(one.happened(0, bytes)),
            On::Failed(errno) => Some(one.happened(errno as u16, 0)),
            On::Time(_) | On::Never => None,
        });
        Ok(happened.collect())
    }
}

fn clock_event(guest: &Guest, clock: u32, timeout: u64, absolute: bool) -> On {
    let since = if absolute { time_of(guest, clock) } else { Ok(0) };
    let left = since.map(|since| Duration::from_nanos(timeout.saturating_sub(since)));
    match left.map(|left| Instant::now().checked_add(left)) {
        Ok(Some(time)) => On::Time(time),
        Ok(None) => On::Never,
        Err(errno) => On::Failed(errno),
    }
}
