/** What bundlers for browsers take instead of the modules that need Node. */
import { ServerUnreachableError } from "../errors.js";

export class NodeTransport {
  constructor() {
    throw noServer();
  }
}

export function locateBinary(): never {
  throw noServer();
}

export function runDirectly(): never {
  throw noServer();
}

function noServer(): ServerUnreachableError {
  return new ServerUnreachableError({
    code: "server_unreachable",
    message: "no server can be started from here",
    hint: "give the URL of a server: new Belljar({ url })",
  });
}
