//! Files that callers upload for their runs. They are kept in memory: for a limited time, bounded for each caller, and
//! bounded together. A caller that has used up its room is refused. If another caller has more than one that needs room,
//! the oldest file of that other caller is dropped.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use belljar_core::limits::Bytes as Size;
use belljar_engine::RunId;
use belljar_wire::{Code, Problem};
use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::caller::Caller;
use crate::config::Keep;
use crate::idempotency::{KEY_BYTES, Key, used_otherwise};
use crate::store::Store;

/// What keeping a file takes beyond its content, near enough.
const FILE_BYTES: usize = 1024;
/// When a caller without room may try again.
const LATER: Duration = Duration::from_secs(60);

/// The files that are kept. A clone is the same.
#[derive(Debug, Clone)]
pub(crate) struct Uploads(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    keep: Keep,
    shelves: Mutex<Shelves>,
}

/// One lock for both, so that two requests with one key are one file.
#[derive(Debug)]
struct Shelves {
    files: Store<Arc<Upload>>,
    /// The identifiers of files by the `Idempotency-Key` that they came with.
    keys: Store<String>,
}

/// A file that was uploaded.
#[derive(Debug)]
pub(crate) struct Upload {
    id: String,
    pub(crate) content: Bytes,
    sha256: [u8; 32],
    expires: SystemTime,
}

/// What became of an upload.
#[derive(Debug)]
pub(crate) enum Stored {
    New(Arc<Upload>),
    /// An earlier request with the same key has stored it.
    Known(Arc<Upload>),
}

impl Upload {
    pub(crate) fn described(&self) -> belljar_wire::Upload {
        belljar_wire::Upload::new(&self.id, self.content.len(), &self.sha256, self.expires)
    }

    fn bytes(&self) -> usize {
        self.content.len() + FILE_BYTES
    }
}

impl Uploads {
    pub(crate) fn new(keep: Keep) -> Uploads {
        let shelves = Shelves { files: Store::new(keep), keys: Store::new(keep) };
        Uploads(Arc::new(Shared { keep, shelves: Mutex::new(shelves) }))
    }

    /// Keeps a file. The same content under the same key is the same file, while that is kept.
    pub(crate) fn put(&self, caller: &Caller, key: Option<&Key>, content: Bytes) -> Result<Stored, Problem> {
        let (now, sha256) = (Instant::now(), Sha256::digest(&content).into());
        let mut shelves = self.shelves();
        if let Some(key) = key
            && let Some(earlier) = shelves.known(caller, key, now)
        {
            return if earlier.sha256 == sha256 {
                Ok(Stored::Known(earlier))
            } else {
                Err(used_otherwise(key))
            };
        }
        let id = RunId::new().as_str().replacen("run_", "file_", 1);
        let expires = SystemTime::now() + self.0.keep.age;
        let upload = Arc::new(Upload { id: id.clone(), content, sha256, expires });
        self.refuse_beyond_room(caller, &mut shelves.files, upload.bytes(), now)?;
        shelves.files.put(caller.name(), id.clone(), upload.clone(), upload.bytes(), now);
        if let Some(key) = key {
            shelves.keys.put(caller.name(), key.as_str().to_owned(), id, KEY_BYTES, now);
        }
        Ok(Stored::New(upload))
    }

    /// A file of this caller's.
    pub(crate) fn find(&self, caller: &Caller, id: &str) -> Result<Arc<Upload>, Problem> {
        self.shelves().files.get(caller.name(), id, Instant::now()).ok_or_else(|| no_such_file(id))
    }

    /// Forgets a file of this caller's.
    pub(crate) fn remove(&self, caller: &Caller, id: &str) -> Result<(), Problem> {
        let mut shelves = self.shelves();
        let known = shelves.files.get(caller.name(), id, Instant::now());
        known.ok_or_else(|| no_such_file(id))?;
        shelves.files.remove(caller.name(), id);
        Ok(())
    }

    /// All files of this caller's, oldest first: the identifiers begin with the time.
    pub(crate) fn list(&self, caller: &Caller) -> Vec<Arc<Upload>> {
        let mut files = self.shelves().files.all(caller.name(), Instant::now());
        files.sort_by(|one, other| one.id.cmp(&other.id));
        files
    }

    /// Refuses a file for which the caller has no room, or for which it would lose another one.
    fn refuse_beyond_room(
        &self,
        caller: &Caller,
        files: &mut Store<Arc<Upload>>,
        more: usize,
        now: Instant,
    ) -> Result<(), Problem> {
        let (room, held) = (caller.upload_room(self.0.keep.bytes), files.held(caller.name(), now));
        let size = Size::new(room as u64);
        if more > room {
            let message = format!("the file does not fit into the {size} that this caller may keep");
            return Err(Problem::new(Code::TooLarge, message, "send less, or ask the operator for more"));
        }
        let message = if held + more > room {
            format!("{held} bytes of uploaded files are kept for this caller, which may have {size}")
        } else if files.is_full_for(caller.name(), more, now) {
            "the server has no room left for uploaded files of this caller".to_owned()
        } else {
            return Ok(());
        };
        let hint =
            "delete one with DELETE /v1/files/{id}, or wait until one expires; GET /v1/files lists them";
        Err(Problem { retry_after: Some(LATER), ..Problem::new(Code::Busy, message, hint) })
    }

    fn shelves(&self) -> MutexGuard<'_, Shelves> {
        // A panic while the lock was held left each map as it was before or after one change.
        self.0.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shelves {
    /// The file that came with this key, if it is still kept.
    fn known(&mut self, caller: &Caller, key: &Key, now: Instant) -> Option<Arc<Upload>> {
        let id = self.keys.get(caller.name(), key.as_str(), now)?;
        self.files.get(caller.name(), &id, now)
    }
}

fn no_such_file(id: &str) -> Problem {
    let shown: String = id.chars().take(64).collect();
    let message = format!("there is no uploaded file '{}'", shown.escape_debug());
    let hint =
        "check the id; a file is kept for a limited time, and only the caller that uploaded it can use it";
    Problem::new(Code::NotFound, message, hint)
}

#[cfg(test)]
mod tests {
    use belljar_core::allowance::Allowance;

    use super::*;
    use crate::caller::{Callers, Key as ApiKey, Quota, Secret};
    use crate::config::Config;
    use crate::defaults::Defaults;

    const KEEP: Keep = Keep { runs: 3, bytes: 100 << 10, age: Duration::from_secs(60) };

    fn anonymous() -> Caller {
        Caller::anonymous(Allowance::boxed(), Arc::default(), &Defaults::default())
    }

    fn holder(name: &str, uploads: Option<usize>) -> Caller {
        let (secret, quota) = (Secret::random().unwrap(), Quota { uploads, ..Quota::default() });
        let hash = secret.hash();
        let key = ApiKey {
            name: name.into(),
            hash,
            allowance: Allowance::boxed(),
            policy: Arc::default(),
            quota,
            audits: false,
            approves: false,
        };
        Callers::new(&Config { keys: vec![key], ..Config::default() }, None).holder(secret.reveal()).unwrap()
    }

    fn stored(uploads: &Uploads, caller: &Caller, kib: usize) -> Result<Arc<Upload>, Code> {
        match uploads.put(caller, None, vec![0; kib << 10].into()) {
            Ok(Stored::New(upload) | Stored::Known(upload)) => Ok(upload),
            Err(problem) => Err(problem.error.code),
        }
    }

    #[test]
    fn a_file_is_its_callers_alone_until_it_is_removed() {
        let (uploads, mine, yours) = (Uploads::new(KEEP), anonymous(), holder("other", None));
        let upload = uploads.put(&mine, None, Bytes::from_static(b"abc")).unwrap();
        let Stored::New(upload) = upload else { panic!("{upload:?}") };
        let described = upload.described();
        assert!(described.id.starts_with("file_") && described.size == 3, "{described:?}");
        assert!(described.sha256.starts_with("ba7816bf"), "{described:?}");
        assert_eq!(uploads.find(&mine, &upload.id).unwrap().content, "abc");
        assert_eq!(uploads.find(&yours, &upload.id).unwrap_err().error.code, Code::NotFound);
        assert_eq!(uploads.remove(&yours, &upload.id).unwrap_err().error.code, Code::NotFound);
        assert_eq!((uploads.list(&mine).len(), uploads.list(&yours).len()), (1, 0));
        uploads.remove(&mine, &upload.id).unwrap();
        assert_eq!(uploads.find(&mine, &upload.id).unwrap_err().error.code, Code::NotFound);
        assert!(uploads.list(&mine).is_empty());
    }

    #[test]
    fn a_caller_without_room_is_refused_and_loses_nothing() {
        let (uploads, caller) = (Uploads::new(KEEP), anonymous());
        let first = stored(&uploads, &caller, 60).unwrap();
        assert_eq!(stored(&uploads, &caller, 60).unwrap_err(), Code::Busy);
        assert_eq!(stored(&uploads, &caller, 100).unwrap_err(), Code::TooLarge);
        assert!(uploads.find(&caller, &first.id).is_ok());
        uploads.remove(&caller, &first.id).unwrap();
        for _ in 0..3 {
            assert!(stored(&uploads, &caller, 20).is_ok());
        }
        assert_eq!(stored(&uploads, &caller, 1).unwrap_err(), Code::Busy, "there are too many");
    }

    #[test]
    fn a_quota_is_less_than_all_the_room() {
        let (uploads, held, free) =
            (Uploads::new(KEEP), holder("held", Some(30 << 10)), holder("free", None));
        assert!(stored(&uploads, &held, 20).is_ok());
        assert_eq!(stored(&uploads, &held, 20).unwrap_err(), Code::Busy);
        assert!(stored(&uploads, &free, 20).is_ok());
    }

    #[test]
    fn the_same_key_and_content_are_one_file() {
        let (uploads, caller, key) = (Uploads::new(KEEP), anonymous(), Key::parse(b"k").unwrap());
        let put = |content: &'static [u8]| uploads.put(&caller, Some(&key), Bytes::from_static(content));
        let Stored::New(first) = put(b"a").unwrap() else { panic!("not new") };
        let Stored::Known(again) = put(b"a").unwrap() else { panic!("not known") };
        assert_eq!(first.id, again.id);
        assert_eq!(put(b"b").unwrap_err().error.code, Code::Conflict);
        uploads.remove(&caller, &first.id).unwrap();
        let Stored::New(anew) = put(b"b").unwrap() else { panic!("not new") };
        assert_ne!(first.id, anew.id);
    }
}
