import { spawn } from "node:child_process";
import { accessSync, closeSync, constants, openSync, readSync } from "node:fs";
import { createRequire } from "node:module";
import { delimiter, join } from "node:path";
import { environment } from "../environment.js";
import { ServerUnreachableError } from "../errors.js";

/**
 * The server of this user, which the bundled binary finds or starts: `belljar serve --background` prints its socket. Locks and
 * stale sockets are the binary's business. All clients of a process ask once for each binary.
 */
const sockets = new Map<string, Promise<string>>();

export function socketOf(binary: string): Promise<string> {
  let socket = sockets.get(binary);
  if (!socket) {
    socket = startServer(binary);
    sockets.set(binary, socket);
    // A failure is not remembered: what was missing may be there next time.
    socket.catch(() => sockets.delete(binary));
  }
  return socket;
}

/** The server that this answer named is gone. The next call asks the binary again, unless another one already has. */
export function forget(binary: string, answer: Promise<string>): void {
  if (sockets.get(binary) === answer) sockets.delete(binary);
}

/** How long a child that failed may take to hand over what it wrote, if something else holds its pipes. */
const LAST_WORDS_MS = 1000;

function startServer(binary: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const child = spawn(binary, ["serve", "--background"], { stdio: ["ignore", "pipe", "pipe"] });
    let out = "";
    let err = "";
    let timer: NodeJS.Timeout | undefined;
    const socket = (): string | undefined => /^listening on unix:(.+)\n/m.exec(out)?.[1];
    const end = (): void => {
      clearTimeout(timer);
      child.stdout.destroy();
      child.stderr.destroy();
    };
    // Not `close`: the server may hold the pipes of the child that started it for as long as it lives.
    const succeed = (): void => {
      const path = socket();
      if (child.exitCode !== 0 || path === undefined) return;
      end();
      resolve(path);
    };
    const fail = (): void => {
      end();
      const reason = /^error: (.*)$/m.exec(err)?.[1] ?? `it ended with ${child.signalCode ?? child.exitCode} and named no socket`;
      reject(cannotStart(binary, reason, /^hint: (.*)$/m.exec(err)?.[1]));
    };
    child.stdout.setEncoding("utf8").on("data", (text: string) => {
      out += text;
      succeed();
    });
    child.stderr.setEncoding("utf8").on("data", (text: string) => (err += text));
    child.once("error", (error) => {
      end();
      reject(cannotStart(binary, error.message, undefined, error));
    });
    child.once("exit", () => {
      timer = setTimeout(fail, LAST_WORDS_MS);
      succeed();
    });
    child.once("close", fail);
  });
}

function cannotStart(binary: string, reason: string, hint?: string, cause?: unknown): ServerUnreachableError {
  return new ServerUnreachableError({
    code: "server_unreachable",
    message: `cannot start a server with ${binary}: ${reason}`,
    hint: hint ?? `run '${binary} serve --background' to see more, or set BELLJAR_URL to the URL of a server`,
    cause,
  });
}

/** The program: the one that was named, else that of the package for this platform, else the one on the PATH. */
export function locateBinary(named: string | undefined): string {
  const found = named ?? environment("BELLJAR_BINARY") ?? packagedBinary() ?? binaryOnPath();
  if (found) return found;
  if (process.platform === "linux") {
    throw noBinary(
      `there is no program belljar: the package ${platformPackage()} is not installed, and there is none on the PATH`,
      "install belljar without --omit=optional, name the program with BELLJAR_BINARY, or set BELLJAR_URL to the URL of a server",
    );
  }
  throw noBinary(
    `Belljar's sandbox needs Linux, and this is ${process.platform}`,
    "run 'belljar serve' on a Linux machine, in WSL2 or in a virtual machine, and set BELLJAR_URL (and BELLJAR_API_KEY) to reach it",
  );
}

function noBinary(message: string, hint: string): ServerUnreachableError {
  return new ServerUnreachableError({ code: "server_unreachable", message, hint });
}

export function platformPackage(): string {
  return `@belljar/${process.platform}-${process.arch}`;
}

/** The program in the package for this platform, which npm installs beside ours if it can run here. */
export function packagedBinary(): string | undefined {
  try {
    return createRequire(import.meta.url).resolve(`${platformPackage()}/bin/belljar`);
  } catch {
    return undefined;
  }
}

function binaryOnPath(): string | undefined {
  const folders = (environment("PATH") ?? "").split(delimiter).filter(Boolean);
  return folders.map((folder) => join(folder, "belljar")).find(isProgram);
}

/** Scripts do not count: the packages for Node and for Python put one there that looks for the program itself. */
function isProgram(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    const file = openSync(path, "r");
    try {
      const start = Buffer.alloc(2);
      return readSync(file, start) === 2 && start.toString("latin1") !== "#!";
    } finally {
      closeSync(file);
    }
  } catch {
    return false;
  }
}
