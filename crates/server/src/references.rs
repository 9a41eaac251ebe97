//! Files of a request whose content the server has already: what an earlier run collected, or what was uploaded. A
//! caller can refer to its own alone.

use std::sync::Arc;

use belljar_core::Field;
use belljar_wire::{Code, FileSource, InputFile, Local, LocalFile, Problem, RunRequest};

use crate::caller::Caller;
use crate::http::body::Share;
use crate::runs::{Finished, Found, Runs};
use crate::uploads::Upload;

/// Where the content of a file is.
enum Kept {
    OfRun(Arc<Finished>, String),
    Uploaded(Arc<Upload>),
}

impl Kept {
    /// Finds it; `None` if the request itself has the content.
    fn find(runs: &Runs, caller: &Caller, file: &InputFile) -> Result<Option<Kept>, Problem> {
        match file.source()? {
            FileSource::Text(_) | FileSource::Base64(_) => Ok(None),
            FileSource::Upload(id) => Ok(Some(Kept::Uploaded(runs.uploads().find(caller, id)?))),
            FileSource::Run { id, path } => match runs.find(caller, id)? {
                Found::Finished(Ok(finished)) => Ok(Some(Kept::OfRun(finished, path.to_owned()))),
                Found::Finished(Err(_)) => Err(failed(id)),
                Found::Unfinished(_) => Err(not_ended(id)),
            },
        }
    }

    fn content(&self) -> Result<&[u8], Problem> {
        match self {
            Kept::OfRun(finished, path) => Ok(&finished.file(path)?.content),
            Kept::Uploaded(upload) => Ok(&upload.content),
        }
    }
}

/// Moves the files that are references from the request to `local`, with their contents. Returns the memory that these
/// take, which is to be held until the run has ended. Nothing is copied before it is known to fit.
pub(crate) fn fetch(
    runs: &Runs,
    caller: &Caller,
    request: &mut RunRequest,
    local: &mut Local,
) -> Result<Share, Problem> {
    if !request.files.iter().any(is_reference) {
        return Ok(Share::default());
    }
    let (references, own) = std::mem::take(&mut request.files).into_iter().partition(is_reference);
    request.files = own;
    let found = find_all(runs, caller, &references).map_err(|problem| problem.at(Field::Files))?;
    let contents: Vec<&[u8]> =
        found.iter().map(Kept::content).collect::<Result<_, _>>().map_err(|fault| fault.at(Field::Files))?;
    let total: usize = contents.iter().map(|content| content.len()).sum();
    request.refuse_large_files(total as u64, &caller.allowance().ceilings)?;
    let room = runs.memory().of(caller.name()).share(total)?;
    for (InputFile { path, executable, .. }, content) in references.into_iter().zip(contents) {
        local.files.push(LocalFile { path, content: content.to_vec(), executable });
    }
    Ok(room)
}

fn is_reference(file: &InputFile) -> bool {
    file.from_run.is_some() || file.upload.is_some()
}

fn find_all(runs: &Runs, caller: &Caller, references: &[InputFile]) -> Result<Vec<Kept>, Problem> {
    let found: Result<Vec<_>, _> = references.iter().map(|file| Kept::find(runs, caller, file)).collect();
    // A reference that also has a content is refused.
    found.map(|found| found.into_iter().flatten().collect())
}

fn failed(id: &str) -> Problem {
    let shown: String = id.chars().take(64).collect();
    let message = format!("the run '{}' failed and left no files", shown.escape_debug());
    Problem::new(Code::NotFound, message, "run its code again first")
}

fn not_ended(id: &str) -> Problem {
    let shown: String = id.chars().take(64).collect();
    let message = format!("the run '{}' has not ended yet, so its files are not there", shown.escape_debug());
    Problem::new(Code::Conflict, message, "wait for its result first")
}
