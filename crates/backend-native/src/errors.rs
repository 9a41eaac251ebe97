//! What is said when a box could not be made.

use std::io;

use belljar_core::Field;
use belljar_core::backend::BackendError;

use crate::host::Obstacle;

/// A step in this process that failed.
pub(crate) fn setup(step: &'static str) -> impl Fn(io::Error) -> BackendError {
    move |source| BackendError::Setup {
        step: step.to_owned(),
        hint: "`belljar doctor` shows what this host can do".into(),
        source,
    }
}

/// PID 1 died before the box was ready.
pub(crate) fn died() -> BackendError {
    setup("build the box: PID 1 died")(io::ErrorKind::BrokenPipe.into())
}

/// A step in the keeper or in PID 1 that failed.
pub(crate) fn failure(doing: &str, errno: i32) -> BackendError {
    let source = io::Error::from_raw_os_error(errno);
    if doing.starts_with("write the run's files") && errno == rustix::io::Errno::NOSPC.raw_os_error() {
        return BackendError::Unusable {
            field: Field::Files,
            message: "the run's files do not fit into --disk".into(),
            hint: "raise the limit with --disk".into(),
        };
    }
    let obstacle = Obstacle { doing: doing.to_owned(), errno };
    BackendError::Setup { step: doing.to_owned(), hint: obstacle.hint(), source }
}
