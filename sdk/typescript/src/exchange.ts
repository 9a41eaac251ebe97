import { Ending, onAbort, pause } from "./abort.js";
import type { Connection } from "./connection.js";
import { BelljarError, errorOf, errorOfAnswer, ServerUnreachableError } from "./errors.js";
import { eventsIn, type RunEvent } from "./events.js";
import { invalid } from "./options.js";
import { type Answer, type Call, ConnectionFailure, type Transport } from "./transport.js";

/** A request before it is known over which connection it goes. */
export interface Request extends Omit<Call, "ending" | "headers"> {
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
  /** Whether it may be sent again after its connection was lost. `GET` always may. */
  repeatable?: boolean;
  /** Whether an answer under way is waited for in any case: it names a run that goes on without us. */
  uninterrupted?: boolean;
}

export function jsonCall(method: Call["method"], path: string, body: object): Request & { headers: Record<string, string> } {
  return { method, path, headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
}

export function queryOf(values: object): string {
  const given = Object.entries(values).filter(([, value]) => value !== undefined);
  return given.length === 0 ? "" : `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}`;
}

/** How often a request is sent again after its connection was lost. */
const RESENDS = 2;
const RESEND_PAUSE_MS = 50;

/** Sends requests: waits while the server is busy, sends again what was lost, and turns answers into values or errors. */
export class Exchange {
  readonly #connection: Connection;
  readonly #apiKey: string | undefined;
  readonly #retryForMs: number;
  readonly #underWay = new Set<Ending>();
  #closed = false;

  constructor(connection: Connection, apiKey: string | undefined, retryForMs: number) {
    this.#connection = connection;
    this.#apiKey = apiKey;
    this.#retryForMs = retryForMs;
  }

  async json<T>(request: Request): Promise<{ status: number; body: T }> {
    const call = this.#begin(request.uninterrupted ? undefined : request.signal);
    try {
      return await this.#send(request, call.ending, async (answer) => ({
        status: answer.status,
        body: parsed(await answer.text()) as T,
      }));
    } finally {
      call.end();
    }
  }

  async *stream(request: Request): AsyncGenerator<RunEvent, void, undefined> {
    const call = this.#begin(request.signal);
    try {
      const answer = await this.#send(request, call.ending, async (answer) => answer);
      let last: RunEvent | undefined;
      for await (last of eventsIn(answer.chunks())) yield last;
      if (last?.type !== "end") throw new ConnectionFailure(new Error("the stream has no end"), true);
    } catch (error) {
      throw error instanceof ConnectionFailure ? lost(error) : error;
    } finally {
      call.end();
    }
  }

  close(): void {
    this.#closed = true;
    for (const call of this.#underWay) call.abort(closedError());
    this.#connection.close();
  }

  /** One call: it is aborted with the caller's own signal, and when the client is closed. */
  #begin(signal: AbortSignal | undefined): { ending: Ending; end(): void } {
    if (this.#closed) throw closedError();
    const ending = new Ending();
    this.#underWay.add(ending);
    const unlink = onAbort(signal, () => ending.abort(signal!.reason));
    const end = (): void => {
      unlink();
      this.#underWay.delete(ending);
    };
    return { ending, end };
  }

  async #send<T>(request: Request, ending: Ending, read: (answer: Answer) => Promise<T>): Promise<T> {
    const deadline = performance.now() + this.#retryForMs;
    const progress = { resends: 0, reached: false, renewed: false };
    const between = (request.uninterrupted && request.signal) || ending;
    for (;;) {
      between.throwIfAborted();
      const transport = await this.#connection.transport();
      try {
        const answer = await transport.send({ ...request, headers: this.#headersOf(request), ending });
        if (answer.status < 400) return await read(answer);
        await this.#waitIfBusy(await errorFrom(answer), deadline, between);
      } catch (error) {
        if (!(error instanceof ConnectionFailure)) throw error;
        await this.#recover(error, request, transport, progress, between);
      }
    }
  }

  /** Returns if the request is worth sending again. */
  async #recover(
    failure: ConnectionFailure,
    request: Request,
    transport: Transport,
    progress: { resends: number; reached: boolean; renewed: boolean },
    signal: AbortSignal | Ending,
  ): Promise<void> {
    progress.reached ||= failure.reached;
    const another = !failure.reached && this.#connection.renew(transport);
    // A server that has the request may have run it. Another server would run it a second time without being asked to.
    if (another && !progress.reached && !progress.renewed) {
      progress.renewed = true;
      return;
    }
    const repeatable = request.repeatable || request.method === "GET" || !progress.reached;
    if (!repeatable || another || progress.resends === RESENDS) throw unreachable(transport, failure, progress.reached);
    await pause(RESEND_PAUSE_MS * 2 ** progress.resends++, signal);
  }

  async #waitIfBusy(error: BelljarError, deadline: number, signal: AbortSignal | Ending): Promise<void> {
    const wait = error.code === "busy" && "retryAfterMs" in error ? Number(error.retryAfterMs ?? 1000) : Infinity;
    // Callers that were refused together must not come back together.
    const spread = wait * (1 + Math.random() / 4);
    if (performance.now() + spread > deadline) throw error;
    await pause(spread, signal);
  }

  #headersOf(request: Request): Record<string, string> {
    const key = this.#apiKey === undefined ? {} : { authorization: `Bearer ${this.#apiKey}` };
    return { accept: "application/json", ...request.headers, ...key };
  }
}

function parsed(text: string): unknown {
  // The answer to a DELETE.
  if (text === "") return undefined;
  try {
    return JSON.parse(text);
  } catch {
    throw errorOf({
      code: "server_unreachable",
      message: "what answered is not a Belljar server: its answer is not JSON",
      hint: "check the URL",
    });
  }
}

async function errorFrom(answer: Answer): Promise<BelljarError> {
  const seconds = Number(answer.header("retry-after") ?? Number.NaN);
  return errorOfAnswer(answer.status, await answer.text(), {
    runId: answer.header("x-run-id"),
    retryAfterMs: Number.isNaN(seconds) ? undefined : seconds * 1000,
  });
}

function unreachable(transport: Transport, failure: ConnectionFailure, reached: boolean): ServerUnreachableError {
  return new ServerUnreachableError({
    code: "server_unreachable",
    message: reached
      ? `the connection to the server at ${transport.address} was lost: ${failure.message}`
      : `no server answers at ${transport.address}: ${failure.message}`,
    hint: "check that it is running: 'belljar serve' starts one, and BELLJAR_URL says where it is",
    cause: failure.cause,
  });
}

function lost(failure: ConnectionFailure): ServerUnreachableError {
  return new ServerUnreachableError({
    code: "server_unreachable",
    message: `the connection to the server was lost before the run had ended: ${failure.message}`,
    hint: "run it again",
    cause: failure.cause,
  });
}

function closedError(): BelljarError {
  return invalid(undefined, "this client was closed", "make another one: new Belljar()");
}
