//! What the server makes of a body before it starts anything, for each kind of body that it reads. This is for fuzz
//! targets: they assert that a body becomes no more in memory than its length allows.

use crate::compat::{fusion, piston};
use crate::mcp;

/// Reads a body as far as it can be read without a run, and says whether it was understood.
pub type Reader = fn(&[u8]) -> bool;

/// Every kind of body, with a name for messages.
pub const ALL: [(&str, Reader); 6] = [
    ("/v1/runs", run),
    ("/mcp", mcp::understands),
    ("/api/v2/execute", piston::understands),
    ("/api/v2/connect", piston::understands_message),
    ("/run_code", fusion::understands_code),
    ("/run_jupyter", fusion::understands_cells),
];

/// Whether there are few enough values in it to be read at all.
pub(crate) fn is_affordable(body: &[u8]) -> bool {
    belljar_wire::cost(body).is_ok()
}

fn run(body: &[u8]) -> bool {
    let read = || belljar_wire::RunRequest::from_json(body).ok()?.parse(belljar_wire::Local::default()).ok();
    is_affordable(body) && read().is_some()
}
