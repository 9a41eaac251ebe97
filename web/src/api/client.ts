// The only module that sends requests to the server.
import { readEvents, type ServerEvent } from "./events";
import type * as Schema from "./schema";

/** Who uses the console, and what the server offers them. */
export interface Session {
  login: boolean;
  caller: string | null;
  audit: boolean;
  approvals: boolean;
  decides: boolean;
}

/** An answer that is the server's error object, or no answer at all. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly hint: string,
    readonly field: string | null = null,
  ) {
    super(message);
  }
}

/** Called when a request was refused because the session has ended. */
let onSignedOut: () => void = () => {};
export function whenSignedOut(listener: () => void): void {
  onSignedOut = listener;
}

async function send(path: string, init: RequestInit = {}): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, { credentials: "same-origin", cache: "no-store", ...init });
  } catch (cause) {
    if (init.signal?.aborted) throw cause;
    throw new Problem(0, "unreachable", "the server does not answer", "check that it runs, and try again");
  }
  if (response.ok) return response;
  const problem = await problemOf(response);
  if (response.status === 401) onSignedOut();
  throw problem;
}

async function problemOf(response: Response): Promise<Problem> {
  try {
    const { error } = (await response.json()) as Schema.Error;
    return new Problem(response.status, error.code, error.message, error.hint, error.field ?? null);
  } catch {
    return new Problem(response.status, "unknown", `the server answered ${response.status}`, "see the server's log");
  }
}

async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  const response = await send(path, signal ? { signal } : {});
  return (await response.json()) as T;
}

function postJson(body: unknown, headers: Record<string, string> = {}): RequestInit {
  return { method: "POST", headers: { "content-type": "application/json", ...headers }, body: JSON.stringify(body) };
}

async function post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
  const response = await send(path, { ...postJson(body), ...(signal ? { signal } : {}) });
  return (await response.json()) as T;
}

/** A path with those parameters that have a value. */
export function withQuery(path: string, parameters: Record<string, string | undefined>): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) if (value) query.set(name, value);
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

export const session = {
  show: () => get<Session>("/console/session"),
  async begin(key: string): Promise<Session> {
    const response = await fetch("/console/session", postJson({ key }));
    if (!response.ok) throw await problemOf(response);
    return (await response.json()) as Session;
  },
  end: () => send("/console/session", { method: "DELETE" }),
};

/** A run that this page has started: closing the page, or aborting, cancels it. */
export interface Started {
  id: string;
  events: AsyncIterable<ServerEvent>;
}

export const runs = {
  async start(request: Schema.RunRequest, signal: AbortSignal): Promise<Started> {
    const init = postJson(request, { accept: "text/event-stream" });
    const response = await send("/v1/runs", { ...init, signal });
    return { id: response.headers.get("x-run-id") ?? "", events: readEvents(response) };
  },
  async follow(id: string, signal: AbortSignal): Promise<AsyncIterable<ServerEvent>> {
    return readEvents(await send(`/v1/runs/${encodeURIComponent(id)}/events`, { signal }));
  },
  list: (parameters: Record<string, string | undefined>) =>
    get<Schema.RunList>(withQuery("/v1/runs", parameters)),
  cancel: (id: string) => send(`/v1/runs/${encodeURIComponent(id)}/cancel`, { method: "POST" }),
};

export const scan = (language: string, code: string, signal: AbortSignal) =>
  post<Schema.ScanResult>("/v1/scan", { language, code }, signal);

export const audit = {
  list: (parameters: Record<string, string | undefined>) =>
    get<Schema.AuditList>(withQuery("/v1/audit", parameters)),
  find: (id: string) => get<Schema.AuditRecord>(`/v1/audit/${encodeURIComponent(id)}`),
  verify: () => get<Schema.AuditVerdict>("/v1/audit/verify"),
};

export const approvals = {
  list: (status: string) => get<Schema.ApprovalList>(withQuery("/v1/approvals", { status })),
  find: (id: string) => get<Schema.Approval>(`/v1/approvals/${encodeURIComponent(id)}`),
  decide: (id: string, decision: "approve" | "deny" | "revoke", ruling: Schema.ApprovalRuling) =>
    post<Schema.Approval>(`/v1/approvals/${encodeURIComponent(id)}/${decision}`, ruling),
};

export const host = {
  languages: (signal?: AbortSignal) => get<Schema.LanguageList>("/v1/languages", signal),
  backends: () => get<Schema.BackendList>("/v1/backends"),
  pool: () => get<Schema.Pool>("/v1/pool"),
  metrics: async () => (await send("/metrics")).text(),
};
