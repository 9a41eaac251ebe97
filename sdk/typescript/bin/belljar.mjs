#!/usr/bin/env node
// Runs the program of the package for this platform in place of this one, as far as Node can do that.
import { spawn } from "node:child_process";
import { packagedBinary, platformPackage } from "../dist/node/server.js";

const RUN_FAILED = 125;
const FORWARDED = ["SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"];

const binary = process.env.BELLJAR_BINARY || packagedBinary();
if (!binary) {
  console.error(`error: there is no belljar for this platform: the package ${platformPackage()} is not installed`);
  console.error("hint: Belljar's sandbox needs Linux; there, install belljar without --omit=optional");
  process.exit(RUN_FAILED);
}

const words = process.argv.slice(2);
// Node 22.15 and later can become another program. Earlier ones stay, as its parent.
if (process.execve) process.execve(binary, [binary, ...words], process.env);

const child = spawn(binary, words, { stdio: "inherit" });
for (const signal of FORWARDED) process.on(signal, () => child.kill(signal));
// Ctrl-C reaches the child by itself: it is in the same group. We wait for what it makes of it.
process.on("SIGINT", () => {});
child.on("error", (error) => {
  console.error(`error: cannot start ${binary}: ${error.message}`);
  process.exit(RUN_FAILED);
});
child.on("exit", (status, signal) => {
  if (signal === null) process.exit(status);
  for (const name of [...FORWARDED, "SIGINT"]) process.removeAllListeners(name);
  process.kill(process.pid, signal);
});
