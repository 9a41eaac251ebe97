import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { after, before, test } from "node:test";
import { BelljarError } from "belljar";
import { codeExecute, codeRun } from "belljar/compat";
import { isolated, Server } from "./server.js";

let server: Server;

before(async () => {
  server = await Server.start();
  process.env["BELLJAR_URL"] = server.url;
});
after(() => server[Symbol.asyncDispose]());

test("importing it starts nothing", () => {
  const program = 'await import("belljar/compat"); console.log(process.getActiveResourcesInfo().filter((name) => /Process|Pipe|TCP/.test(name)))';
  const child = spawnSync(process.execPath, ["--input-type=module", "-e", program], {
    cwd: new URL("../..", import.meta.url),
    env: { ...isolated(server.folder), PATH: "" },
    encoding: "utf8",
    stdio: ["ignore", "pipe", "pipe"],
  });
  // What is left are the pipes of the process itself.
  assert.match(child.stdout, /^\[( 'PipeWrap',?)* ?\]\n$/, child.stderr);
});

test("codeRun answers the exit code and the output", async () => {
  assert.deepEqual(await codeRun("python", "print('hi')", 5000), { exit_code: 0, stdout: "hi\n", stderr: "" });
  assert.deepEqual(await codeRun("bash", "echo no >&2; exit 2"), { exit_code: 2, stdout: "", stderr: "no\n" });
  const slow = await codeRun("sh", "echo begun; sleep 60", 300);
  assert.equal(slow.exit_code, 124);
  assert.equal(slow.stdout, "begun\n");
  assert.match(slow.stderr, /Execution timed out/);
});

test("codeExecute answers the standard output", async () => {
  assert.equal(await codeExecute({ language: "python", code: "print(6 * 7)" }), "42\n");
  assert.equal(await codeExecute({ language: "sh", code: "echo out; exit 1" }), "out\n");
  await assert.rejects(codeExecute({ language: "klingon", code: "" }), BelljarError);
});

test("CODE_EXEC_SANDBOX chooses the backend", async () => {
  process.env["CODE_EXEC_SANDBOX"] = "docker";
  await assert.rejects(codeExecute({ language: "sh", code: "true" }), { code: "backend_unavailable" });
  process.env["CODE_EXEC_SANDBOX"] = "podman";
  await assert.rejects(codeExecute({ language: "sh", code: "true" }), { field: "CODE_EXEC_SANDBOX" });
  // A server that was not told to takes no run without a sandbox.
  process.env["CODE_EXEC_SANDBOX"] = "process";
  await assert.rejects(codeExecute({ language: "sh", code: "true" }), { code: "forbidden" });

  delete process.env["BELLJAR_URL"];
  for (const sandbox of ["process", "none"]) {
    process.env["CODE_EXEC_SANDBOX"] = sandbox;
    // Outside of a box, the host has its own name.
    const host = await codeExecute({ language: "sh", code: "hostname" });
    assert.notEqual(host, "belljar\n");
    assert.equal(await codeExecute({ language: "python", code: "print('ü' * 100_000)" }), `${"ü".repeat(100_000)}\n`);
    assert.equal((await codeRun("sh", "sleep 60", 300)).exit_code, 124);
    await assert.rejects(codeRun("klingon", ""), { code: "invalid_request", field: "language" });
  }
  delete process.env["CODE_EXEC_SANDBOX"];
  process.env["BELLJAR_URL"] = server.url;
  assert.equal(await codeExecute({ language: "sh", code: "hostname" }), "belljar\n");
});
