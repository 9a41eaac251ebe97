import type { ErrorCode } from "./wire.js";

/** What an error of Belljar is made of. `code` is stable; `message` and `hint` are for people. */
export interface ErrorFacts {
  code: ErrorCode | "server_unreachable" | (string & {});
  message: string;
  hint?: string | undefined;
  field?: string | undefined;
  status?: number | undefined;
  runId?: string | undefined;
  retryAfterMs?: number | undefined;
  cause?: unknown;
}

/** Belljar could not, or would not, do what was asked. A program that fails is a result, never an error. */
export class BelljarError extends Error {
  /** Which error it is, such as `busy`. */
  readonly code: string;
  /** What to do about it. */
  readonly hint: string | undefined;
  /** The part of the request that is at fault. */
  readonly field: string | undefined;
  /** The HTTP status of the answer, if there was one. */
  readonly status: number | undefined;
  /** The run that failed, if there was one. */
  readonly runId: string | undefined;

  constructor(facts: ErrorFacts) {
    super(facts.message, facts.cause === undefined ? undefined : { cause: facts.cause });
    this.code = facts.code;
    this.hint = facts.hint;
    this.field = facts.field;
    this.status = facts.status;
    this.runId = facts.runId;
  }

  override get name(): string {
    return this.constructor.name;
  }
}

/** The request is not valid; `field` says where. */
export class InvalidRequestError extends BelljarError {}
/** The server needs a key, or does not know this one. */
export class UnauthorizedError extends BelljarError {}
/** This caller may not ask for that. */
export class ForbiddenError extends BelljarError {}
/** There is no such run, file or approval, or it is no longer kept. */
export class NotFoundError extends BelljarError {}
/** The run has ended already, or the idempotency key was used for another request. */
export class ConflictError extends BelljarError {}
/** The request or its files are too large. */
export class TooLargeError extends BelljarError {}
/** The server's queue is full or a quota is used up, and it stayed so until `retryForMs` was over. */
export class BusyError extends BelljarError {
  /** When the server wants to be asked again. */
  readonly retryAfterMs: number | undefined;

  constructor(facts: ErrorFacts) {
    super(facts);
    this.retryAfterMs = facts.retryAfterMs;
  }
}
/** A bug in Belljar, or a host that failed. */
export class InternalError extends BelljarError {}
/** The backend cannot run here. */
export class BackendUnavailableError extends BelljarError {}
/** The host cannot keep a guarantee that the run needs. */
export class GuaranteeUnmetError extends BelljarError {}
/** No server answered: there is none, or the connection to it was lost. */
export class ServerUnreachableError extends BelljarError {}

const CLASSES: Record<ErrorCode | "server_unreachable", new (facts: ErrorFacts) => BelljarError> = {
  invalid_request: InvalidRequestError,
  unauthorized: UnauthorizedError,
  forbidden: ForbiddenError,
  not_found: NotFoundError,
  conflict: ConflictError,
  too_large: TooLargeError,
  busy: BusyError,
  internal: InternalError,
  backend_unavailable: BackendUnavailableError,
  guarantee_unmet: GuaranteeUnmetError,
  server_unreachable: ServerUnreachableError,
};

/** The error with the class of its code. A code that a newer server may have is a plain `BelljarError`. */
export function errorOf(facts: ErrorFacts): BelljarError {
  const known = Object.hasOwn(CLASSES, facts.code) ? CLASSES[facts.code as ErrorCode] : BelljarError;
  return new known(facts);
}

/** Codes for answers without an error object, which come from a proxy or from the HTTP library. */
const CODES: Record<number, ErrorFacts["code"]> = {
  400: "invalid_request",
  401: "unauthorized",
  403: "forbidden",
  404: "not_found",
  409: "conflict",
  413: "too_large",
  414: "too_large",
  429: "busy",
  431: "too_large",
  500: "internal",
};

/** The error that an answer of the server stands for. */
export function errorOfAnswer(status: number, body: string, extra: Pick<ErrorFacts, "runId" | "retryAfterMs">): BelljarError {
  const detail = errorDetail(body);
  if (detail) return errorOf({ ...detail, status, ...extra });
  return errorOf({
    code: CODES[status] ?? "server_unreachable",
    message: `the server answered ${status} without saying why`,
    hint: "check that the URL is that of a Belljar server, and look at the log of the proxy in front of it",
    status,
    ...extra,
  });
}

function errorDetail(body: string): ErrorFacts | undefined {
  try {
    const { code, message, hint, field } = JSON.parse(body).error;
    return typeof code === "string" && typeof message === "string" ? { code, message, hint, field } : undefined;
  } catch {
    return undefined;
  }
}
