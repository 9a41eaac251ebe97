/// <reference lib="esnext.disposable" preserve="true" />
import type { Language, RunOptions } from "./options.js";
import type { Result } from "./result.js";
import { sharedClient } from "./shared.js";

export type { Approval, ApprovalList, ApprovalListOptions, Approvals, DecisionOptions, RevokeOptions } from "./approvals.js";
export type { Audit, AuditList, AuditRecord, AuditSearchOptions, AuditVerdict } from "./audit.js";
export {
  type Backends,
  type BatchOptions,
  Belljar,
  type ClientOptions,
  type LanguageInfo,
  type Pool,
  type ScanOptions,
  type UploadOptions,
} from "./client.js";
export {
  BackendUnavailableError,
  BelljarError,
  BusyError,
  ConflictError,
  ForbiddenError,
  GuaranteeUnmetError,
  InternalError,
  InvalidRequestError,
  NotFoundError,
  ServerUnreachableError,
  TooLargeError,
  UnauthorizedError,
} from "./errors.js";
export type { RunEvent } from "./events.js";
export type { CallOptions, InputFile, Language, PageOptions, RunOptions, Size } from "./options.js";
export { CollectedFile, type Changes, type CompileResult, type Decision, type Finding, type Isolation, type NetworkDenied, type Result, type Usage } from "./result.js";
export type { Run, RunList, RunListOptions, Runs, RunStream, RunSummary } from "./runs.js";
export type { Upload, Uploads } from "./uploads.js";

/** Runs code and waits for its result, with a client that the whole program shares. */
export async function run(language: Language, code: string, options: RunOptions = {}): Promise<Result> {
  return sharedClient().run(language, code, options);
}
