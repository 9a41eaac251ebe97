import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

/** The program under test. */
export const binary = process.env["BELLJAR_BINARY"] ?? missing("BELLJAR_BINARY");

const programs = fileURLToPath(new URL("../../node_modules", import.meta.url));
/** Not .bin/bun, which works only after a script of its package has run at installation. */
export const bun = join(programs, `@oven/bun-linux-${process.arch === "arm64" ? "aarch64" : "x64"}/bin/bun`);
export const deno = (): string => process.env["BELLJAR_TEST_DENO"] ?? missing("BELLJAR_TEST_DENO");

function missing(name: string): never {
  throw new Error(`${name} names no program; ci/sdk/typescript sets it`);
}

/** An environment in which nothing of the user's own is read or written. */
export function isolated(folder: string): NodeJS.ProcessEnv {
  const kept = Object.entries(process.env).filter(([name]) => !/^(BELLJAR_|XDG_|CODE_EXEC_)/.test(name));
  return {
    ...Object.fromEntries(kept),
    HOME: folder,
    BELLJAR_STATE_DIR: join(folder, "state"),
    XDG_RUNTIME_DIR: folder,
    DOCKER_HOST: "unix:///nonexistent/docker.sock",
  };
}

/** A real server on a free port of the loopback interface, with a configuration of its own. */
export class Server implements AsyncDisposable {
  readonly url: string;
  readonly folder: string;
  readonly #process: ChildProcess;

  private constructor(url: string, folder: string, process: ChildProcess) {
    this.url = url;
    this.folder = folder;
    this.#process = process;
  }

  static async start(configuration = "", port = 0): Promise<Server> {
    const folder = mkdtempSync(join(tmpdir(), "belljar-ts-"));
    const file = join(folder, "belljar.toml");
    writeFileSync(file, configuration);
    const child = spawn(binary, ["serve", "--listen", `127.0.0.1:${port}`, "--config", file], {
      env: isolated(folder),
      stdio: ["ignore", "ignore", "pipe"],
    });
    let log = "";
    const url = await new Promise<string>((resolve, reject) => {
      const fail = (): void => {
        rmSync(folder, { recursive: true, force: true });
        reject(new Error(`the server did not start:\n${log}`));
      };
      child.once("exit", fail);
      child.stderr.setEncoding("utf8").on("data", (text: string) => {
        log += text;
        const found = /listening on (http:\S+)\n/.exec(log)?.[1];
        if (!found) return;
        child.off("exit", fail);
        resolve(found);
      });
    });
    return new Server(url, folder, child);
  }

  get port(): number {
    return Number(new URL(this.url).port);
  }

  get pid(): number {
    return this.#process.pid!;
  }

  async stop(signal: NodeJS.Signals = "SIGTERM"): Promise<void> {
    if (this.#process.exitCode !== null || this.#process.signalCode !== null) return;
    const exit = once(this.#process, "exit");
    this.#process.kill(signal);
    await exit;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** Waits until something is so. Says what did not come about if it takes too long. */
export async function until(what: string, check: () => boolean | Promise<boolean>, withinMs = 30_000): Promise<void> {
  const deadline = performance.now() + withinMs;
  while (!(await check())) {
    if (performance.now() > deadline) throw new Error(`not within ${withinMs} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** The background servers whose sockets are in a folder. As root, a server has a small parent, which is the one meant. */
export function serversIn(folder: string): number[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => read(`/proc/${pid}/cmdline`).includes(`unix:${folder}/`))
    .filter((pid, _, all) => !all.includes(/^PPid:\s*(\d+)$/m.exec(read(`/proc/${pid}/status`))?.[1] ?? ""))
    .map(Number);
}

export async function stopServersIn(folder: string): Promise<void> {
  for (const pid of serversIn(folder)) process.kill(pid, "SIGTERM");
  await until("the servers have stopped", () => serversIn(folder).length === 0);
}

/** A file, or nothing if the process that it describes has ended. */
function read(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}
