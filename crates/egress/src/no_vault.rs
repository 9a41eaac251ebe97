//! What stands in for `vault`, `relay` and `authority` in a build without the feature `secrets`: there are no secrets, so
//! none of this is ever reached.

use std::io;
use std::rc::Rc;

use crate::inspect::{Broken, Demand};
use crate::secret::Secret;

#[derive(Debug, Default)]
pub(crate) struct Vault {}

#[derive(Debug)]
pub(crate) enum Door {}

#[derive(Debug)]
pub(crate) enum Relay {}

#[derive(Debug)]
pub(crate) enum Authority {}

impl Authority {
    pub(crate) fn new() -> io::Result<Authority> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn pem(&self) -> String {
        match *self {}
    }
}

impl Vault {
    pub(crate) fn open(secrets: Vec<Secret>, _: &str, _: Option<&Authority>) -> io::Result<Vault> {
        if secrets.is_empty() { Ok(Vault {}) } else { Err(io::ErrorKind::Unsupported.into()) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        true
    }

    pub(crate) fn knows(&self, _: &str) -> bool {
        false
    }

    pub(crate) fn door(&self, _: &str, _: u16) -> Option<Rc<Door>> {
        None
    }
}

impl Relay {
    pub(crate) fn new(door: &Rc<Door>, _: Demand, _: Vec<u8>) -> Result<Relay, Broken> {
        match **door {}
    }

    pub(crate) fn takes(&self) -> bool {
        match *self {}
    }

    pub(crate) fn take_from_box(&mut self, _: &[u8]) -> Result<(), Broken> {
        match *self {}
    }

    pub(crate) fn take_from_host(&mut self, _: &[u8]) -> Result<(), Broken> {
        match *self {}
    }

    pub(crate) fn settle(&mut self) {
        match *self {}
    }

    pub(crate) fn end_from_box(&mut self) {
        match *self {}
    }

    pub(crate) fn give_host(&mut self) -> Vec<u8> {
        match *self {}
    }

    pub(crate) fn give_box(&mut self) -> Vec<u8> {
        match *self {}
    }
}
