//! The approvals of a server, asked over HTTP. Who decides there is the caller of the key.

use belljar_client::ApprovalQuery;
use belljar_ledger::approvals::Found;
use belljar_wire::{ApprovalRuling, Problem};

use super::{
    ApprovalsArgs, ApprovalsCommand, ListArgs, memory, print_approval, print_decision, print_list,
    print_revoked,
};
use crate::remote::Remote;

/// The most that a server lists at once.
const PAGE: usize = 200;

pub(super) fn act(args: &ApprovalsArgs, remote: &Remote) -> Result<(), Problem> {
    let json = args.common().json;
    match &args.command {
        None => list(remote, &args.list),
        Some(ApprovalsCommand::List(args)) => list(remote, args),
        Some(ApprovalsCommand::Show(args)) => {
            let approval = remote.ask(async |client| client.approval(&args.id).await)?;
            let findings = approval.findings.iter().cloned().map(Into::into).collect();
            print_approval(&Found { approval, findings }, json);
            Ok(())
        }
        Some(ApprovalsCommand::Approve(args)) => {
            let ruling = ruling(args.reason.clone(), args.remember.as_deref())?;
            print_decision(remote.ask(async |client| client.approve(&args.id, &ruling).await)?, json);
            Ok(())
        }
        Some(ApprovalsCommand::Deny(args)) => {
            let ruling = ruling(Some(args.reason.clone()), args.remember.as_deref())?;
            print_decision(remote.ask(async |client| client.deny(&args.id, &ruling).await)?, json);
            Ok(())
        }
        Some(ApprovalsCommand::Revoke(args)) => {
            let ruling = ruling(args.reason.clone(), None)?;
            print_revoked(&remote.ask(async |client| client.revoke(&args.id, &ruling).await)?, json);
            Ok(())
        }
    }
}

fn list(remote: &Remote, args: &ListArgs) -> Result<(), Problem> {
    let status = (args.status != "all").then(|| args.status.clone());
    let (mut approvals, mut cursor) = (Vec::new(), None);
    while approvals.len() < args.limit {
        let limit = Some((args.limit - approvals.len()).min(PAGE));
        let query = ApprovalQuery { status: status.clone(), limit, cursor };
        let page = remote.ask(async |client| client.approvals(&query).await)?;
        approvals.extend(page.approvals);
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    print_list(approvals, args);
    Ok(())
}

fn ruling(reason: Option<String>, remember: Option<&str>) -> Result<ApprovalRuling, Problem> {
    let remember_s = memory(remember)?.map(|time| time.as_secs()).filter(|seconds| *seconds > 0);
    ApprovalRuling { reason, remember_s }.check()
}
