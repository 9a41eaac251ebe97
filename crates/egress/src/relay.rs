//! A connection to a host that has a secret. TLS ends here, with a certificate that only the box trusts, and begins anew
//! towards the host, whose certificate is verified as every client does. In between, each request is read, and gets the
//! secret in its header.
//!
//! Nothing is decrypted for the box before the host has shown that it is that host.

use std::io::{self, Read, Write};
use std::rc::Rc;

use belljar_core::egress::Reason;
use rustls::{ClientConnection, ServerConnection};

use crate::http::Requests;
use crate::inspect::{Broken, Demand, Refused, pass_requests};
use crate::scrub::Scrub;
use crate::vault::Door;

/// Both ends of it.
pub(crate) struct Relay {
    inside: ServerConnection,
    outside: ClientConnection,
    requests: Requests,
    /// What every request must show.
    demand: Demand,
    /// What the box sent before the host has shown itself.
    early: Vec<u8>,
    scrub: Scrub,
    /// Who has been told that the other sends no more.
    told_host: bool,
    told_box: bool,
}

impl std::fmt::Debug for Relay {
    /// Its buffers have requests with the secret in them.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay").finish_non_exhaustive()
    }
}

impl Relay {
    /// `hello` is what the box has sent so far.
    pub(crate) fn new(door: &Rc<Door>, demand: Demand, hello: Vec<u8>) -> Result<Relay, Broken> {
        let mut inside = ServerConnection::new(door.inside.clone()).map_err(|_| Broken::Over)?;
        let mut outside =
            ClientConnection::new(door.outside.clone(), door.name.clone()).map_err(|_| Broken::Over)?;
        // What is waiting here is bounded by what is taken at a time.
        inside.set_buffer_limit(None);
        outside.set_buffer_limit(None);
        Ok(Relay {
            inside,
            outside,
            requests: Requests::with_secret(door.secret.clone()),
            demand,
            early: hello,
            scrub: Scrub::new(door.secret.value.as_str()),
            told_host: false,
            told_box: false,
        })
    }

    /// Whether it takes more from the box: not before the host has shown itself.
    pub(crate) fn takes(&self) -> bool {
        !self.outside.is_handshaking()
    }

    /// Takes what the box sent. Its requests go on with the secret in them.
    pub(crate) fn take_from_box(&mut self, mut bytes: &[u8]) -> Result<(), Broken> {
        if !self.takes() {
            self.early.extend_from_slice(bytes);
            return Ok(());
        }
        while !bytes.is_empty() {
            let length = self.inside.read_tls(&mut bytes).map_err(|_| Broken::Over)?;
            let state = self.inside.process_new_packets().map_err(|_| Broken::Over)?;
            let plain = read(self.inside.reader(), state.plaintext_bytes_to_read())?;
            let mut requests = Vec::new();
            let passed = pass_requests(&mut self.requests, &self.demand, &plain, &mut requests);
            passed.map_err(|Refused { name, reason }| self.refuse(name, reason))?;
            write(self.outside.writer(), &requests)?;
            if state.peer_has_closed() {
                self.end_from_box();
            }
            if length == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Takes what the host sent.
    pub(crate) fn take_from_host(&mut self, mut bytes: &[u8]) -> Result<(), Broken> {
        while !bytes.is_empty() {
            let length = self.outside.read_tls(&mut bytes).map_err(|_| Broken::Over)?;
            let state = self.outside.process_new_packets().map_err(|fault| self.judge(&fault))?;
            let plain = read(self.outside.reader(), state.plaintext_bytes_to_read())?;
            let mut shown = Vec::new();
            self.scrub.pass(&plain, &mut shown);
            write(self.inside.writer(), &shown)?;
            if state.peer_has_closed() && !self.told_box {
                self.settle();
                self.told_box = true;
                self.inside.send_close_notify();
            }
            if length == 0 {
                break;
            }
        }
        if self.takes() && !self.early.is_empty() {
            let early = std::mem::take(&mut self.early);
            self.take_from_box(&early)?;
        }
        Ok(())
    }

    /// The host has sent all that it has for now, so nothing of it may be held back.
    pub(crate) fn settle(&mut self) {
        let mut shown = Vec::new();
        self.scrub.flush(&mut shown);
        let _ = write(self.inside.writer(), &shown);
    }

    /// The box sends no more.
    pub(crate) fn end_from_box(&mut self) {
        if !self.told_host && self.takes() {
            self.told_host = true;
            self.outside.send_close_notify();
        }
    }

    /// What is to be sent to the host.
    pub(crate) fn give_host(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        while self.outside.wants_write() && self.outside.write_tls(&mut out).is_ok() {}
        out
    }

    /// What is to be sent to the box.
    pub(crate) fn give_box(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        while self.inside.wants_write() && self.inside.write_tls(&mut out).is_ok() {}
        out
    }

    /// A certificate that cannot be verified is a refusal; anything else ends a connection as it would without us.
    fn judge(&self, fault: &rustls::Error) -> Broken {
        use rustls::Error::{InvalidCertificate, NoCertificatesPresented, UnsupportedNameType};
        if !matches!(fault, InvalidCertificate(_) | NoCertificatesPresented | UnsupportedNameType) {
            return Broken::Over;
        }
        self.refuse(None, Reason::Untrusted)
    }

    /// What shows no other name is told by the name of the host.
    fn refuse(&self, name: Option<String>, reason: Reason) -> Broken {
        let own = || self.demand.names.as_ref().and_then(|names| names.first().cloned());
        Broken::Refused(Refused { name: name.or_else(own), reason })
    }
}

fn read(mut from: rustls::Reader<'_>, length: usize) -> Result<Vec<u8>, Broken> {
    let mut plain = vec![0; length];
    if length > 0 {
        from.read_exact(&mut plain).map_err(|_| Broken::Over)?;
    }
    Ok(plain)
}

fn write(mut to: rustls::Writer<'_>, bytes: &[u8]) -> Result<(), Broken> {
    let written: io::Result<()> = to.write_all(bytes);
    written.map_err(|_| Broken::Over)
}
