// A real server with a state folder of its own.
import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

export interface Belljar {
  url: string;
  folder: string;
  process: ChildProcess;
  /** Writes another configuration and makes the server read it. */
  reconfigure: (config: string) => void;
}

const READY = /listening on (http:\S+)\n/;

export async function serve(config: string): Promise<Belljar> {
  const binary = process.env["BELLJAR"];
  if (!binary) throw new Error("BELLJAR does not name the binary under test");
  const folder = mkdtempSync(join(tmpdir(), "belljar-console-"));
  const file = join(folder, "belljar.toml");
  writeFileSync(file, config);
  const child = spawn(binary, ["serve", "--listen", "127.0.0.1:0", "--config", file], {
    env: { ...process.env, BELLJAR_STATE_DIR: join(folder, "state") },
    stdio: ["ignore", "ignore", "pipe"],
  });
  const url = await new Promise<string>((resolve, reject) => {
    let log = "";
    child.stderr.setEncoding("utf8").on("data", (text: string) => {
      log = (log + text).slice(-100_000);
      const [, found] = READY.exec(log) ?? [];
      if (found) resolve(found);
    });
    child.once("exit", () => reject(new Error(`the server has ended:\n${log}`)));
  });
  const reconfigure = (changed: string) => {
    writeFileSync(file, changed);
    child.kill("SIGHUP");
  };
  return { url, folder, process: child, reconfigure };
}

export async function stop({ process: child, folder }: Belljar): Promise<void> {
  const ended = new Promise((resolve) => child.once("exit", resolve));
  child.kill("SIGTERM");
  await ended;
  rmSync(folder, { recursive: true, force: true });
}
