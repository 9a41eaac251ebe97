import { Approvals } from "./approvals.js";
import { Audit } from "./audit.js";
import { type Camel, camel } from "./case.js";
import { connectionTo } from "./connection.js";
import { environment } from "./environment.js";
import { type BelljarError, errorOf } from "./errors.js";
import { Exchange, jsonCall, queryOf, type Request } from "./exchange.js";
import { type CallOptions, invalid, type Language, OPTIONS, refuseUnknown, requestOf, type RunOptions } from "./options.js";
import { type Finding, type Result, resultOf, type WireResult } from "./result.js";
import { Run, runCall, Runs, RunStream } from "./runs.js";
import { type Upload, Uploads } from "./uploads.js";
import type * as wire from "./wire.js";

export type LanguageInfo = Camel<wire.Language>;
export type Backends = Camel<wire.BackendList>;
export type Pool = Camel<wire.Pool>;

export interface ClientOptions {
  /** The URL of a server: `http://…`, `https://…` or `unix:/…`. Else `BELLJAR_URL`, else the bundled binary is started. */
  url?: string | undefined;
  /** A key of the server. Else `BELLJAR_API_KEY`. */
  apiKey?: string | undefined;
  /** The belljar program to start if there is no URL. Else `BELLJAR_BINARY`, the platform's package, the PATH. */
  binary?: string | undefined;
  /** For how long a call is repeated while the server is busy. 60 s by default; 0 is never. */
  retryForMs?: number | undefined;
  /** Another `fetch` to send requests with. */
  fetch?: typeof fetch | undefined;
}

export interface ScanOptions extends CallOptions {
  /** The only modules that the code may import. */
  allowedImports?: readonly string[] | undefined;
}

export interface UploadOptions extends CallOptions {
  idempotencyKey?: string | undefined;
}

/** Each input is the standard input of a run of its own. The server takes no key for many runs. */
export type BatchOptions = Omit<RunOptions, "stdin" | "idempotencyKey">;

const BATCH_OPTIONS = OPTIONS.filter((name) => name !== "stdin" && name !== "idempotencyKey");

/** A client of a Belljar server. Making one starts nothing: the server is looked for at the first call. */
export class Belljar implements AsyncDisposable, Disposable {
  /** The runs of this caller. */
  readonly runs: Runs;
  /** The runs that wait for a person. */
  readonly approvals: Approvals;
  /** The files of this caller that the server keeps. */
  readonly uploads: Uploads;
  /** The record of all runs, for those who may read it. */
  readonly audit: Audit;
  readonly #exchange: Exchange;

  constructor(options: ClientOptions = {}) {
    refuseUnknown("Belljar", options, ["url", "apiKey", "binary", "retryForMs", "fetch"]);
    this.#exchange = new Exchange(
      connectionTo({ ...options, url: options.url ?? environment("BELLJAR_URL") }),
      options.apiKey ?? environment("BELLJAR_API_KEY"),
      options.retryForMs ?? 60_000,
    );
    this.runs = new Runs(this.#exchange);
    this.approvals = new Approvals(this.#exchange);
    this.uploads = new Uploads(this.#exchange);
    this.audit = new Audit(this.#exchange);
  }

  /** Runs code and waits for its result. If a policy asks for it, that includes the decision of a person. */
  async run(language: Language, code: string, options: RunOptions = {}): Promise<Result> {
    const call = runCall(language, code, options);
    const { status, body } = await this.#exchange.json<WireResult | wire.RunState>(call);
    if (status === 200) return resultOf(body as WireResult);
    const run = new Run(this.#exchange, body.id);
    try {
      return await run.wait({ signal: options.signal });
    } catch (error) {
      // From the moment that it waits for a person, the run does not end with our connection.
      if (options.signal?.aborted) await run.cancel().catch(() => {});
      throw error;
    }
  }

  /**
   * Compiles code once and runs it once for each input, in a fresh box. Where Belljar could not run it, the list has the error.
   * If the code does not compile, there is one result.
   */
  async runBatch(language: Language, code: string, inputs: readonly string[], options: BatchOptions = {}): Promise<(Result | BelljarError)[]> {
    refuseUnknown("runBatch", options, BATCH_OPTIONS);
    const request = { ...requestOf(language, code, options), stdin: inputs };
    const call: Request = { ...jsonCall("POST", "/v1/runs", request), signal: options.signal };
    const { body } = await this.#exchange.json<wire.RunBatch>(call);
    return body.runs.map((one) => ("error" in one ? errorOf(one.error) : resultOf(one)));
  }

  /** Runs code and tells what happens as it happens. Leaving the loop cancels the run. */
  stream(language: Language, code: string, options: RunOptions = {}): RunStream {
    return new RunStream(this.#exchange, () => runCall(language, code, options));
  }

  /** Starts a run and does not wait for it. Aborting `signal` cancels the run, also later. */
  async submit(language: Language, code: string, options: RunOptions = {}): Promise<Run> {
    const call = runCall(language, code, options);
    const headers = { ...call.headers, prefer: "respond-async" };
    const { body } = await this.#exchange.json<wire.RunState>({ ...call, headers, uninterrupted: true });
    const run = new Run(this.#exchange, body.id, options.signal);
    options.signal?.throwIfAborted();
    return run;
  }

  /** What can run on the server, and how to get what cannot. */
  async languages(options: CallOptions & { backend?: wire.BackendChoice } = {}): Promise<LanguageInfo[]> {
    refuseUnknown("languages", options, ["signal", "backend"]);
    const path = `/v1/languages${queryOf({ backend: options.backend })}`;
    const { body } = await this.#exchange.json<wire.LanguageList>({ method: "GET", path, signal: options.signal });
    return camel(body.languages);
  }

  /** What isolates runs on the server, and what it guarantees. */
  async backends(options: CallOptions = {}): Promise<Backends> {
    refuseUnknown("backends", options, ["signal"]);
    const { body } = await this.#exchange.json<wire.BackendList>({ method: "GET", path: "/v1/backends", signal: options.signal });
    return camel(body);
  }

  /** The boxes that the server keeps ready. */
  async pool(options: CallOptions = {}): Promise<Pool> {
    refuseUnknown("pool", options, ["signal"]);
    const { body } = await this.#exchange.json<wire.Pool>({ method: "GET", path: "/v1/pool", signal: options.signal });
    return camel(body);
  }

  /** What there is to say about code, without running it. */
  async scan(language: Language, code: string, options: ScanOptions = {}): Promise<Finding[]> {
    refuseUnknown("scan", options, ["signal", "allowedImports"]);
    const request = { language, code, allowed_imports: options.allowedImports };
    const { body } = await this.#exchange.json<wire.ScanResult>({
      ...jsonCall("POST", "/v1/scan", request),
      signal: options.signal,
      repeatable: true,
    });
    return camel(body.findings);
  }

  /** Keeps a file on the server, for `files: [{ path, upload: id }]` of later runs. */
  async upload(content: string | Uint8Array, options: UploadOptions = {}): Promise<Upload> {
    refuseUnknown("upload", options, ["signal", "idempotencyKey"]);
    if (typeof content !== "string" && !(content instanceof Uint8Array)) {
      throw invalid(undefined, "the content to upload has to be a string or a Uint8Array", "read the file first");
    }
    const { body } = await this.#exchange.json<wire.Upload>({
      method: "PUT",
      path: "/v1/files",
      headers: { "content-type": "application/octet-stream", "idempotency-key": options.idempotencyKey ?? crypto.randomUUID() },
      body: content as string | Uint8Array<ArrayBuffer>,
      signal: options.signal,
      repeatable: true,
    });
    return camel(body);
  }

  /** Ends the calls under way, which cancels their runs, and closes the connections. The server stays. */
  async close(): Promise<void> {
    this.#exchange.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  [Symbol.dispose](): void {
    this.#exchange.close();
  }
}
