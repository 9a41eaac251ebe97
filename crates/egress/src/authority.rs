//! The certificate authority of one run. It is made in the gateway's memory and dies with it; only the box trusts it.
//!
//! The certificates are as small as those that clients accept: one key on P-256, the extensions that OpenSSL wants in its
//! strict mode, and nothing else. They are written by hand, because a library for them would take longer to build than
//! all that is here.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};

/// Clocks differ, and no run takes longer than a day.
const BEFORE: Duration = Duration::from_secs(24 * 3600);
const AFTER: Duration = Duration::from_secs(7 * 24 * 3600);

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OID: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const GENERALIZED_TIME: u8 = 0x18;
const UTC_TIME: u8 = 0x17;

const ECDSA_WITH_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
const EC_PUBLIC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const SUBJECT_KEY_ID: &[u8] = &[0x55, 0x1d, 0x0e];
const KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x0f];
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
const AUTHORITY_KEY_ID: &[u8] = &[0x55, 0x1d, 0x23];
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];
const SERVER_AUTH: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01];

const ISSUER: &str = "Belljar (one run)";

/// The authority, with its key.
pub(crate) struct Authority {
    key: EcdsaKeyPair,
    certificate: Vec<u8>,
}

/// A certificate for one name, with its key in PKCS #8.
pub(crate) struct Leaf {
    pub(crate) certificate: Vec<u8>,
    pub(crate) key: Vec<u8>,
}

impl Authority {
    pub(crate) fn new() -> io::Result<Authority> {
        let (key, _) = new_key()?;
        let own = key_id(&key);
        let extensions = [
            // It certifies servers, and no other authorities.
            extension(
                BASIC_CONSTRAINTS,
                true,
                &tlv(SEQUENCE, &[&[0x01, 1, 0xff], &tlv(INTEGER, &[&[0]])[..]]),
            ),
            extension(KEY_USAGE, true, &[BIT_STRING, 2, 2, 0x04]),
            extension(SUBJECT_KEY_ID, false, &tlv(OCTET_STRING, &[&own])),
        ];
        let certificate = certify(&key, &key, ISSUER, &extensions.concat())?;
        Ok(Authority { key, certificate })
    }

    /// What the box trusts.
    pub(crate) fn pem(&self) -> String {
        let text = STANDARD.encode(&self.certificate);
        let lines: Vec<&str> =
            text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
    }

    pub(crate) fn leaf(&self, name: &str) -> io::Result<Leaf> {
        const DNS_NAME: u8 = 0x82;
        const KEY_ID: u8 = 0x80;
        let (key, document) = new_key()?;
        let names = tlv(SEQUENCE, &[&tlv(DNS_NAME, &[name.as_bytes()])]);
        let issuer = tlv(SEQUENCE, &[&tlv(KEY_ID, &[&key_id(&self.key)])]);
        let extensions = [
            extension(BASIC_CONSTRAINTS, true, &tlv(SEQUENCE, &[])),
            extension(KEY_USAGE, true, &[BIT_STRING, 2, 7, 0x80]),
            extension(EXTENDED_KEY_USAGE, false, &tlv(SEQUENCE, &[&tlv(OID, &[SERVER_AUTH])])),
            extension(SUBJECT_KEY_ID, false, &tlv(OCTET_STRING, &[&key_id(&key)])),
            extension(AUTHORITY_KEY_ID, false, &issuer),
            extension(SUBJECT_ALT_NAME, false, &names),
        ];
        let certificate = certify(&self.key, &key, "Belljar", &extensions.concat())?;
        Ok(Leaf { certificate, key: document })
    }
}

fn new_key() -> io::Result<(EcdsaKeyPair, Vec<u8>)> {
    let (kind, random) = (&ECDSA_P256_SHA256_ASN1_SIGNING, SystemRandom::new());
    let document = EcdsaKeyPair::generate_pkcs8(kind, &random).map_err(io::Error::other)?;
    let key = EcdsaKeyPair::from_pkcs8(kind, document.as_ref(), &random).map_err(io::Error::other)?;
    Ok((key, document.as_ref().to_vec()))
}

/// A certificate of `key`, signed with `issuer`.
fn certify(issuer: &EcdsaKeyPair, key: &EcdsaKeyPair, name: &str, extensions: &[u8]) -> io::Result<Vec<u8>> {
    const VERSION: u8 = 0xa0;
    const EXTENSIONS: u8 = 0xa3;
    let mut serial = [0; 16];
    SystemRandom::new().fill(&mut serial).map_err(io::Error::other)?;
    // It has to be positive, and without a zero in front.
    serial[0] = serial[0] & 0x7f | 0x40;
    let algorithm = tlv(SEQUENCE, &[&tlv(OID, &[ECDSA_WITH_SHA256])]);
    let now = SystemTime::now();
    let validity = tlv(SEQUENCE, &[&time(now - BEFORE), &time(now + AFTER)]);
    let of_key = tlv(SEQUENCE, &[&tlv(OID, &[EC_PUBLIC_KEY]), &tlv(OID, &[P256])]);
    let public = tlv(SEQUENCE, &[&of_key, &tlv(BIT_STRING, &[&[0], key.public_key().as_ref()])]);
    let content = tlv(
        SEQUENCE,
        &[
            &tlv(VERSION, &[&tlv(INTEGER, &[&[2]])]),
            &tlv(INTEGER, &[&serial]),
            &algorithm,
            &distinguished(ISSUER),
            &validity,
            &distinguished(name),
            &public,
            &tlv(EXTENSIONS, &[&tlv(SEQUENCE, &[extensions])]),
        ],
    );
    let signature = issuer.sign(&SystemRandom::new(), &content).map_err(io::Error::other)?;
    Ok(tlv(SEQUENCE, &[&content, &algorithm, &tlv(BIT_STRING, &[&[0], signature.as_ref()])]))
}

fn distinguished(name: &str) -> Vec<u8> {
    let attribute = tlv(SEQUENCE, &[&tlv(OID, &[COMMON_NAME]), &tlv(UTF8_STRING, &[name.as_bytes()])]);
    tlv(SEQUENCE, &[&tlv(SET, &[&attribute])])
}

fn extension(id: &[u8], critical: bool, value: &[u8]) -> Vec<u8> {
    let critical: &[u8] = if critical { &[0x01, 1, 0xff] } else { &[] };
    tlv(SEQUENCE, &[&tlv(OID, &[id]), critical, &tlv(OCTET_STRING, &[value])])
}

fn key_id(key: &EcdsaKeyPair) -> Vec<u8> {
    digest(&SHA256, key.public_key().as_ref()).as_ref()[..20].to_vec()
}

/// A value in DER: its tag, its length, and what it consists of.
fn tlv(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = content.len();
    let [.., high, low] = length.to_be_bytes();
    let head: &[u8] = match length {
        0..0x80 => &[tag, low],
        0x80..0x100 => &[tag, 0x81, low],
        _ => &[tag, 0x82, high, low],
    };
    [head, &content].concat()
}

/// A moment, as RFC 5280 wants it: with two digits for the year until 2049.
fn time(moment: SystemTime) -> Vec<u8> {
    let seconds = moment.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let rest = format!("{month:02}{day:02}{hour:02}{minute:02}{second:02}Z");
    match year {
        1950..2050 => tlv(UTC_TIME, &[format!("{:02}{rest}", year % 100).as_bytes()]),
        _ => tlv(GENERALIZED_TIME, &[format!("{year:04}{rest}").as_bytes()]),
    }
}

/// The date so many days after the first of January 1970, by the years since March of the year 0, whose last day is
/// the one that leap years add.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    (era * 400 + year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::client::danger::ServerCertVerifier;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use std::sync::Arc;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (days, expected) in [
            (0, (1970, 1, 1)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (19_782, (2024, 2, 29)),
            (19_783, (2024, 3, 1)),
            (29_220, (2050, 1, 1)),
        ] {
            assert_eq!(date(days), expected, "{days}");
        }
        assert_eq!(time(UNIX_EPOCH), b"\x17\x0d700101000000Z");
        assert_eq!(time(UNIX_EPOCH + Duration::from_secs(29_220 * 86_400)), b"\x18\x0f20500101000000Z");
    }

    #[test]
    fn whoever_trusts_the_authority_trusts_its_leaf_for_its_name_alone() {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let (own, other) = (Authority::new().unwrap(), Authority::new().unwrap());
        let leaf = CertificateDer::from(own.leaf("api.example.com").unwrap().certificate);
        let verify = |authority: &Authority, name: &'static str| {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
            let verifier =
                rustls::client::WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone());
            let name = ServerName::try_from(name).unwrap();
            verifier.build().unwrap().verify_server_cert(&leaf, &[], &name, &[], UnixTime::now()).is_ok()
        };
        assert!(verify(&own, "api.example.com"));
        assert!(!verify(&own, "www.example.com"));
        assert!(!verify(&other, "api.example.com"));
    }
}
