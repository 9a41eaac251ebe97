import type { InvalidRequestError } from "./errors.js";
import { invalid } from "./options.js";
import { FetchTransport, type Transport } from "./transport.js";

/** Which server a client talks to. Without a URL it is the one that the bundled binary finds or starts. */
export interface Target {
  url?: string | undefined;
  binary?: string | undefined;
  fetch?: typeof fetch | undefined;
}

/** The way to the server. It is looked for when it is first needed, so that making a client starts nothing. */
export interface Connection {
  transport(): Promise<Transport>;
  /** The server does not answer there any more. Returns whether another one may be found. */
  renew(failed: Transport): boolean;
  close(): void;
}

export function connectionTo(target: Target): Connection {
  return target.url === undefined ? new Bundled(target.binary) : new Fixed(urlOf(target.url), target.fetch);
}

class Fixed implements Connection {
  readonly #url: URL;
  readonly #fetch: typeof fetch | undefined;
  #transport: Promise<Transport> | undefined;

  constructor(url: URL, using: typeof fetch | undefined) {
    this.#url = url;
    this.#fetch = using;
  }

  transport(): Promise<Transport> {
    return (this.#transport ??= transportTo(this.#url, this.#fetch));
  }

  renew(): boolean {
    return false;
  }

  close(): void {
    closeLater(this.#transport);
  }
}

class Bundled implements Connection {
  readonly #named: string | undefined;
  #transport: Promise<Transport> | undefined;
  #current: Transport | undefined;
  #forget: (() => void) | undefined;

  constructor(named: string | undefined) {
    this.#named = named;
  }

  transport(): Promise<Transport> {
    if (!this.#transport) {
      this.#transport = this.#find();
      // A failure is not remembered: the next call tries again.
      this.#transport.catch(() => (this.#transport = undefined));
    }
    return this.#transport;
  }

  async #find(): Promise<Transport> {
    if (!hasSockets()) throw noSocket("no server can be started from here");
    const [{ NodeTransport }, server] = await Promise.all([import("./node/http.js"), import("./node/server.js")]);
    const binary = server.locateBinary(this.#named);
    const answer = server.socketOf(binary);
    const transport = new NodeTransport({ socket: await answer });
    this.#forget = () => server.forget(binary, answer);
    this.#current = transport;
    return transport;
  }

  renew(failed: Transport): boolean {
    // Of the calls that fail together, the first one gives up the connection. The others find the new one.
    if (this.#current === failed) {
      this.#forget?.();
      this.#current = undefined;
      this.#transport = undefined;
      failed.close();
    }
    return true;
  }

  close(): void {
    closeLater(this.#transport);
  }
}

function closeLater(transport: Promise<Transport> | undefined): void {
  transport?.then(
    (open) => open.close(),
    () => {},
  );
}

function urlOf(text: string): URL {
  if (URL.canParse(text)) {
    const url = new URL(text);
    if (["http:", "https:", "unix:"].includes(url.protocol)) return url;
  }
  throw invalid("url", `'${text}' is not the URL of a server`, "write http://HOST:PORT, https://HOST or unix:/PATH/TO/SOCKET");
}

async function transportTo(url: URL, using: typeof fetch | undefined): Promise<Transport> {
  if (url.protocol === "unix:") {
    if (!hasSockets()) throw noSocket("unix sockets need Node or Bun");
    const { NodeTransport } = await import("./node/http.js");
    return new NodeTransport({ socket: decodeURIComponent(url.pathname) });
  }
  if (using || !isNode()) return new FetchTransport(url, using);
  const { NodeTransport } = await import("./node/http.js");
  return new NodeTransport(url);
}

function noSocket(message: string): InvalidRequestError {
  return invalid("url", message, "give the URL of a server, with new Belljar({ url }) or BELLJAR_URL: http://HOST:PORT");
}

/** Whether Node's HTTP client is there, and closes connections when it is told to. Deno's does not. */
function hasSockets(): boolean {
  return typeof process !== "undefined" && process.versions?.node !== undefined && !("Deno" in globalThis);
}

/** Whether this is Node itself. */
function isNode(): boolean {
  return hasSockets() && !("Bun" in globalThis);
}
