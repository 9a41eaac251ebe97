// The program itself.

import * as std from "qjs:std";
import * as os from "qjs:os";
import { Buffer } from "node:buffer";
import { readFileSync } from "node:fs";

const stream = (file, fd) => ({
  fd,
  isTTY: false,
  write(data) {
    file.puts(typeof data === "string" ? data : Buffer.from(data).toString());
    file.flush();
    return true;
  },
});

const began = Date.now();

const process = {
  argv: ["quickjs", ...globalThis.__host.args],
  env: std.getenviron(),
  platform: "wasi",
  arch: "wasm32",
  pid: 1,
  version: "",
  versions: { quickjs: "0.16.2" },
  exitCode: undefined,
  cwd: () => os.getcwd()[0],
  chdir: (path) => os.chdir(path),
  exit: (code = process.exitCode ?? 0) => std.exit(code),
  uptime: () => (Date.now() - began) / 1000,
  hrtime: Object.assign(
    () => { const now = os.now(); return [Math.floor(now / 1e6), Math.floor((now % 1e6) * 1e3)]; },
    { bigint: () => BigInt(Math.floor(os.now() * 1e3)) },
  ),
  memoryUsage: () => ({ rss: 0, heapTotal: 0, heapUsed: 0, external: 0 }),
  nextTick: (act, ...args) => queueMicrotask(() => act(...args)),
  on: () => process,
  once: () => process,
  stdout: stream(std.out, 1),
  stderr: stream(std.err, 2),
  stdin: {
    fd: 0,
    isTTY: false,
    async *[Symbol.asyncIterator]() { yield readFileSync(0); },
    setEncoding() {},
    on(event, act) {
      if (event === "data") os.setTimeout(() => act(readFileSync(0, "utf8")), 0);
      if (event === "end") os.setTimeout(act, 0);
      return this;
    },
  },
};

export default process;
export const { argv, env, platform, arch, cwd, exit, stdin, stdout, stderr, nextTick, hrtime } = process;
