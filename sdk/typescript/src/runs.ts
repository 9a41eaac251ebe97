import { onAbort } from "./abort.js";
import { type Camel, camel } from "./case.js";
import { ConflictError } from "./errors.js";
import type { RunEvent } from "./events.js";
import { type Exchange, jsonCall, queryOf, type Request } from "./exchange.js";
import { type CallOptions, type Language, type PageOptions, refuseUnknown, requestOf, type RunOptions } from "./options.js";
import { type Result, resultOf, type WireResult } from "./result.js";
import type * as wire from "./wire.js";

export type RunSummary = Camel<wire.RunSummary>;
export type RunList = Camel<wire.RunList>;

export interface RunListOptions extends PageOptions {
  status?: wire.RunStatus | undefined;
  language?: Language | undefined;
}

/** The request that starts a run. */
export function runCall(language: Language, code: string, options: RunOptions): Request {
  const call = jsonCall("POST", "/v1/runs", requestOf(language, code, options));
  // With a key, the server recognizes a request that it has already seen.
  const headers = { ...call.headers, "idempotency-key": options.idempotencyKey ?? crypto.randomUUID() };
  return { ...call, headers, signal: options.signal, repeatable: true };
}

/** The events of a run, which starts when the first one is asked for. */
export class RunStream implements AsyncIterable<RunEvent>, AsyncDisposable {
  readonly #events: AsyncGenerator<RunEvent, void, undefined>;

  /** @internal */
  constructor(exchange: Exchange, call: () => Request) {
    this.#events = eventsOf(exchange, call);
  }

  [Symbol.asyncIterator](): AsyncGenerator<RunEvent, void, undefined> {
    return this.#events;
  }

  /** Stops listening, which cancels the run unless it was submitted. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.#events.return();
  }
}

async function* eventsOf(exchange: Exchange, call: () => Request): AsyncGenerator<RunEvent, void, undefined> {
  const request = call();
  yield* exchange.stream({ ...request, headers: { ...request.headers, accept: "text/event-stream" } });
}

/** How long one request waits for the end of a run. Then the next one does, so that no proxy loses patience. */
const WAIT_MS = 30_000;

/** A run that goes on by itself, whether or not anybody waits for it. */
export class Run implements AsyncDisposable {
  /** The identifier of the run. */
  readonly id: string;
  readonly #exchange: Exchange;
  readonly #unlink: () => void;
  #ended = false;

  /** @internal */
  constructor(exchange: Exchange, id: string, signal?: AbortSignal) {
    this.id = id;
    this.#exchange = exchange;
    this.#unlink = onAbort(signal, () => void this.cancel().catch(() => {}));
  }

  /** Waits for the result. Aborting `signal` ends the waiting, not the run. */
  async wait(options: CallOptions = {}): Promise<Result> {
    refuseUnknown("wait", options, ["signal"]);
    for (;;) {
      const answer = await this.#get(WAIT_MS, options.signal);
      if (answer.status === 200) return resultOf(answer.body as WireResult);
    }
  }

  /** How far the run is. */
  async status(options: CallOptions = {}): Promise<wire.RunStatus> {
    refuseUnknown("status", options, ["signal"]);
    return (await this.#get(0, options.signal)).body.status;
  }

  /** What happens during the run, from its start. Leaving the loop does not cancel it. */
  events(options: CallOptions = {}): RunStream {
    return new RunStream(this.#exchange, () => {
      refuseUnknown("events", options, ["signal"]);
      return { method: "GET", path: `${this.#path}/events`, signal: options.signal };
    });
  }

  /** Ends the run. Returns whether there was something to end: `false` if it had ended already. */
  async cancel(options: CallOptions = {}): Promise<boolean> {
    refuseUnknown("cancel", options, ["signal"]);
    try {
      await this.#exchange.json({ method: "POST", path: `${this.#path}/cancel`, signal: options.signal, repeatable: true });
      return true;
    } catch (error) {
      if (error instanceof ConflictError) return false;
      throw error;
    }
  }

  /** Cancels the run if it has not ended. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#unlink();
    if (!this.#ended) await this.cancel();
  }

  get #path(): string {
    return `/v1/runs/${encodeURIComponent(this.id)}`;
  }

  async #get(waitMs: number, signal: AbortSignal | undefined): Promise<{ status: number; body: WireResult | wire.RunState }> {
    const answer = await this.#exchange.json<WireResult | wire.RunState>({
      method: "GET",
      path: `${this.#path}?wait_ms=${waitMs}`,
      signal,
    });
    if (answer.status === 200) {
      this.#ended = true;
      this.#unlink();
    }
    return answer;
  }
}

export class Runs {
  readonly #exchange: Exchange;

  /** @internal */
  constructor(exchange: Exchange) {
    this.#exchange = exchange;
  }

  /** The runs of this caller, newest first: those under way, and those whose results are kept. */
  async list(options: RunListOptions = {}): Promise<RunList> {
    const { signal, ...query } = options;
    refuseUnknown("runs.list", query, ["status", "language", "limit", "cursor"]);
    const { body } = await this.#exchange.json<wire.RunList>({ method: "GET", path: `/v1/runs${queryOf(query)}`, signal });
    return camel(body);
  }

  /** A run that was submitted earlier, perhaps by another process. Asks the server nothing. */
  attach(id: string): Run {
    return new Run(this.#exchange, id);
  }
}
