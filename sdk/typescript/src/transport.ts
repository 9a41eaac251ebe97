import type { Ending } from "./abort.js";

/** How a request gets to the server and its answer back. `fetch` is enough for a URL; Node also has unix sockets. */

export interface Call {
  method: "GET" | "POST" | "PUT" | "DELETE";
  /** The path with its query, below the server's URL. */
  path: string;
  headers: Record<string, string>;
  body?: string | Uint8Array<ArrayBuffer> | undefined;
  /** Ends the call, also while its answer is being read. */
  ending: Ending;
}

export interface Answer {
  readonly status: number;
  header(name: string): string | undefined;
  /** The whole body. */
  text(): Promise<string>;
  /** The body as it comes. Leaving the loop closes the connection. */
  chunks(): AsyncIterable<Uint8Array>;
}

export interface Transport {
  /** The server, for messages. */
  readonly address: string;
  send(call: Call): Promise<Answer>;
  close(): void;
}

/** There was no connection to the server, or it was lost before the whole answer was there. */
export class ConnectionFailure extends Error {
  /** Whether the server may have got the request. */
  readonly reached: boolean;

  constructor(cause: unknown, reached: boolean) {
    super(reasonOf(cause), { cause });
    this.reached = reached;
  }
}

/** `fetch failed` says nothing; the reason is further down. */
function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const deeper = error.cause instanceof Error ? reasonOf(error.cause) : "";
  return deeper || error.message || ("code" in error ? String(error.code) : error.name);
}

export class FetchTransport implements Transport {
  readonly address: string;
  readonly #base: string;
  readonly #fetch: typeof fetch;

  constructor(url: URL, using: typeof fetch = fetch) {
    this.address = url.origin;
    this.#base = url.origin + url.pathname.replace(/\/$/, "");
    this.#fetch = using;
  }

  async send({ method, path, headers, body, ending }: Call): Promise<Answer> {
    // Bun ends requests after five minutes unless it is told not to. Others ignore the field.
    const init: RequestInit & { timeout: false } = { method, headers, signal: ending.signal(), timeout: false };
    if (body !== undefined) init.body = body;
    // Called as a plain function: browsers refuse `fetch` as a method of something else.
    const call = this.#fetch;
    const response = await call(this.#base + path, init).catch((error: unknown) => {
      throw ending.aborted ? ending.reason : new ConnectionFailure(error, true);
    });
    return new FetchAnswer(response, ending);
  }

  close(): void {}
}

class FetchAnswer implements Answer {
  readonly status: number;
  readonly #response: Response;
  readonly #ending: Ending;

  constructor(response: Response, ending: Ending) {
    this.status = response.status;
    this.#response = response;
    this.#ending = ending;
  }

  header(name: string): string | undefined {
    return this.#response.headers.get(name) ?? undefined;
  }

  text(): Promise<string> {
    return this.#response.text().catch((error: unknown) => this.#fail(error));
  }

  async *chunks(): AsyncIterable<Uint8Array> {
    const reader = this.#response.body?.getReader();
    if (!reader) return;
    let ended = false;
    try {
      for (;;) {
        const { done, value } = await reader.read();
        ended = done;
        if (done) return;
        yield value;
      }
    } catch (error) {
      ended = true;
      this.#fail(error);
    } finally {
      if (!ended) await reader.cancel().catch(() => {});
    }
  }

  #fail(error: unknown): never {
    throw this.#ending.aborted ? this.#ending.reason : new ConnectionFailure(error, true);
  }
}
