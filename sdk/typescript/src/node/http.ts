import { Agent, type ClientRequest, type IncomingMessage, type RequestOptions, request as requestHttp } from "node:http";
import { Agent as TlsAgent, request as requestHttps } from "node:https";
import type { Ending } from "../abort.js";
import type { Answer, Call, Transport } from "../transport.js";
import { ConnectionFailure } from "../transport.js";

/**
 * Node's own HTTP client. Unlike its `fetch` it knows unix sockets, and it waits for an answer for as long as a run takes
 * (`fetch` gives up after five minutes). A connection that nobody uses does not keep the process alive.
 */
export class NodeTransport implements Transport {
  readonly address: string;
  readonly #agent: Agent;
  readonly #target: RequestOptions;
  readonly #request: typeof requestHttp;
  readonly #prefix: string;

  constructor(where: URL | { socket: string }) {
    const keep = { keepAlive: true, maxFreeSockets: 32, noDelay: true };
    if ("socket" in where) {
      this.address = `unix:${where.socket}`;
      this.#target = { socketPath: where.socket };
      this.#prefix = "";
      this.#agent = new Agent(keep);
      this.#request = requestHttp;
      return;
    }
    const tls = where.protocol === "https:";
    this.address = where.origin;
    this.#prefix = where.pathname.replace(/\/$/, "");
    // Brackets belong to the URL, not to the IPv6 address.
    this.#target = { protocol: where.protocol, hostname: where.hostname.replace(/^\[|\]$/g, ""), port: where.port };
    this.#agent = tls ? new TlsAgent(keep) : new Agent(keep);
    this.#request = tls ? requestHttps : requestHttp;
  }

  async send(call: Call): Promise<Answer> {
    // One turn of the event loop, in which the agent learns which of its idle connections the server has closed.
    await new Promise((resolve) => setImmediate(resolve));
    call.ending.throwIfAborted();
    const { method, body } = call;
    const headers = body === undefined ? call.headers : { ...call.headers, "content-length": Buffer.byteLength(body) };
    const request = this.#request({ ...this.#target, method, path: this.#prefix + call.path, headers, agent: this.#agent });
    const answer = answerTo(request, call.ending);
    request.end(body);
    return answer;
  }

  close(): void {
    this.#agent.destroy();
  }
}

function answerTo(request: ClientRequest, ending: Ending): Promise<Answer> {
  return new Promise((resolve, reject) => {
    let reached = false;
    let answered = false;
    request.once("socket", (socket) => {
      if (socket.connecting) socket.once("connect", () => (reached = true));
      else reached = true;
    });
    const fail = (error: Error): void => reject(ending.aborted ? ending.reason : new ConnectionFailure(error, reached));
    const unlink = ending.listen(() => void request.destroy());
    request.once("close", () => {
      unlink();
      // Without an error and without an answer: a request that was destroyed before it had a socket.
      if (!answered) fail(closed());
    });
    request.on("error", fail);
    request.once("response", (response) => {
      answered = true;
      resolve(new NodeAnswer(response, ending));
    });
  });
}

class NodeAnswer implements Answer {
  readonly status: number;
  readonly #response: IncomingMessage;
  readonly #ending: Ending;

  constructor(response: IncomingMessage, ending: Ending) {
    this.status = response.statusCode ?? 0;
    this.#response = response;
    this.#ending = ending;
  }

  header(name: string): string | undefined {
    const value = this.#response.headers[name.toLowerCase()];
    return Array.isArray(value) ? value.join(", ") : value;
  }

  /** By events: the iterator of a stream goes through several turns of the queue for every answer, which most calls would pay. */
  text(): Promise<string> {
    const response = this.#response;
    return new Promise((resolve, reject) => {
      const parts: Buffer[] = [];
      let ended = false;
      const fail = (error: Error): void => reject(this.#failure(error));
      response.on("data", (part: Buffer) => parts.push(part));
      response.on("error", fail);
      response.on("end", () => {
        ended = true;
        resolve((parts.length === 1 ? parts[0]! : Buffer.concat(parts)).toString());
      });
      response.on("close", () => {
        if (!ended) fail(closed());
      });
      // It may have been destroyed before anybody listened.
      if (response.closed) fail(response.errored ?? closed());
    });
  }

  async *chunks(): AsyncIterable<Uint8Array> {
    try {
      for await (const chunk of this.#response) yield chunk as Uint8Array;
    } catch (error) {
      throw this.#failure(error);
    }
  }

  #failure(error: unknown): unknown {
    return this.#ending.aborted ? this.#ending.reason : new ConnectionFailure(error, true);
  }
}

function closed(): Error {
  return new Error("the connection was closed");
}
