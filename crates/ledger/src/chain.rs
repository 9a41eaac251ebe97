//! The hash of a record: SHA-256 over every column, each with its type and its length, so that no two records have the
//! same encoding.

use rusqlite::Row;
use rusqlite::types::{Value, ValueRef};
use sha2::{Digest, Sha256};

use crate::schema::HASHED;

pub(crate) type Hash = [u8; 32];

/// What the encoding begins with; another version of it begins differently.
const RECORD: &[u8] = b"belljar ledger record 1\n";

/// The hash of a record that is about to be written; its values are those of [`HASHED`], in that order.
pub(crate) fn of_values(values: &[Value]) -> Hash {
    let mut hasher = Sha256::new_with_prefix(RECORD);
    values.iter().for_each(|value| feed(&mut hasher, value.into()));
    hasher.finalize().into()
}

/// The hash of a record as it was read; its columns begin with those of [`HASHED`].
pub(crate) fn of_row(row: &Row<'_>) -> rusqlite::Result<Hash> {
    let mut hasher = Sha256::new_with_prefix(RECORD);
    for at in 0..HASHED.len() {
        feed(&mut hasher, row.get_ref(at)?);
    }
    Ok(hasher.finalize().into())
}

fn feed(hasher: &mut Sha256, value: ValueRef<'_>) {
    match value {
        ValueRef::Null => hasher.update([0]),
        ValueRef::Integer(number) => feed_bytes(hasher, 1, &number.to_le_bytes()),
        ValueRef::Real(number) => feed_bytes(hasher, 2, &number.to_bits().to_le_bytes()),
        ValueRef::Text(text) => feed_bytes(hasher, 3, text),
        ValueRef::Blob(bytes) => feed_bytes(hasher, 4, bytes),
    }
}

fn feed_bytes(hasher: &mut Sha256, kind: u8, bytes: &[u8]) {
    hasher.update([kind]);
    hasher.update((bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

/// What the next record is chained to: the hash of this one, and its signature, which its hash cannot cover.
pub(crate) fn link(hash: &Hash, signature: &[u8]) -> Hash {
    Sha256::new_with_prefix(b"belljar ledger link 1\n")
        .chain_update(hash)
        .chain_update(signature)
        .finalize()
        .into()
}

/// What is signed for a record. The hash covers the number already.
pub(crate) fn signed_record(hash: &Hash) -> Vec<u8> {
    [b"belljar ledger record 1 signed\n".as_slice(), hash].concat()
}

/// What is signed when records are pruned, through this one.
pub(crate) fn signed_anchor(through: u64, at: i64, hash: &Hash) -> Vec<u8> {
    [b"belljar ledger anchor 1\n".as_slice(), &through.to_le_bytes(), &at.to_le_bytes(), hash].concat()
}

/// What is signed to say that there are this many records.
pub(crate) fn signed_head(seq: u64, hash: &Hash) -> Vec<u8> {
    [b"belljar ledger head 1\n".as_slice(), &seq.to_le_bytes(), hash].concat()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_differ_in_type_or_place_have_different_hashes() {
        let hash = |values: &[Value]| of_values(values);
        let text = |text: &str| Value::Text(text.to_owned());
        let all = [
            hash(&[text("ab"), text("c")]),
            hash(&[text("a"), text("bc")]),
            hash(&[text("abc"), Value::Null]),
            hash(&[Value::Blob(b"ab".to_vec()), text("c")]),
            hash(&[Value::Integer(1)]),
            hash(&[Value::Real(1.0)]),
            hash(&[text("1")]),
            hash(&[Value::Null]),
            hash(&[]),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one), "{at}");
        }
        assert_eq!(hash(&[text("a")]), hash(&[text("a")]));
    }
}
