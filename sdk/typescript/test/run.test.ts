import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Belljar, CollectedFile, InvalidRequestError, type RunEvent, run } from "belljar";
import { Server, until } from "./server.js";

let server: Server;
let client: Belljar;

before(async () => {
  server = await Server.start('[server.allow]\nnetwork = "full"\n');
  client = new Belljar({ url: server.url });
});
after(async () => {
  await client.close();
  await server[Symbol.asyncDispose]();
});

test("a run has a result with the fields of the contract in camelCase", async () => {
  const result = await client.run("python", "print(6 * 7)");
  assert.equal(result.stdout, "42\n");
  assert.equal(result.status, "exited");
  assert.equal(result.exitCode, 0);
  assert.equal(result.timedOut, false);
  assert.equal(result.oomKilled, false);
  assert.equal(result.language, "python");
  assert.ok(result.usage.wallMs > 0);
  assert.ok(result.usage.memoryPeakBytes > 0);
  assert.ok(result.isolation.kept.includes("filesystem"));
  assert.deepEqual(result.isolation.waived, []);
  assert.deepEqual(result.findings, []);
  assert.equal(result.files, undefined);
  assert.deepEqual(Object.keys(result).filter((name) => name.includes("_")), []);
});

test("run() uses the server of BELLJAR_URL", async () => {
  process.env["BELLJAR_URL"] = server.url;
  assert.equal((await run("sh", "echo hello")).stdout, "hello\n");
});

test("a program that fails is a result", async () => {
  const result = await client.run("sh", "echo no >&2; exit 3");
  assert.equal(result.exitCode, 3);
  assert.equal(result.stderr, "no\n");
});

const REACHES = `import socket
for host, port in (("10.0.0.1", 80), ("other.invalid", 80)):
    try:
        socket.create_connection((host, port), 20)
        print("connected")
    except OSError as fault:
        print(type(fault).__name__)
`;

test("a network by hosts, and what it refused", async () => {
  const result = await client.run("python", REACHES, { network: "allow:*.example.org:443,93.184.216.0/24:53/udp" });
  assert.equal(result.stdout, "ConnectionRefusedError\ngaierror\n", result.stderr);
  assert.deepEqual(result.networkDenied?.[0], { host: "10.0.0.1", port: 80, reason: "a private address", count: 1 });
  assert.equal(result.networkDenied?.[1]?.port, null);
  assert.equal(result.usage.networkUpBytes, 0);
  const without = await client.run("python", REACHES);
  assert.equal(without.stdout, "OSError\ngaierror\n", without.stderr);
  assert.equal(without.networkDenied, undefined);
});

test("connections are told as they are made", async () => {
  const events: RunEvent[] = [];
  for await (const event of client.stream("python", REACHES, { network: "allow:example.org" })) events.push(event);
  const told = events.filter((event) => event.type === "network");
  const first = { type: "network", host: "10.0.0.1", port: 80, action: "refused", reason: "a private address", count: 1 };
  assert.deepEqual(told[0], first);
  assert.equal(events.at(-1)?.type, "end");
});

test("every way to give input reaches the program", async () => {
  const code = 'read line; echo "$line $1 $GREETING $(cat a.txt) $(cat b.bin) $(./c.sh)"';
  const result = await client.run("sh", code, {
    stdin: "in\n",
    args: ["arg"],
    env: { GREETING: "env" },
    files: [
      { path: "a.txt", content: "text" },
      { path: "b.bin", content: new Uint8Array([98, 121, 116, 101, 115]) },
      { path: "c.sh", content: "#!/bin/sh\necho script\n", executable: true },
    ],
  });
  assert.equal(result.stdout, "in arg env text bytes script\n", result.stderr);
});

test("files can be an object, and come back as bytes and text", async () => {
  const content = new Uint8Array(200_000).map((_, index) => index % 251);
  const result = await client.run("sh", "cp in.bin out.bin; echo ü > out.txt", { files: { "in.bin": content }, collect: ["out*"] });
  const files = result.files ?? [];
  assert.deepEqual(files.map((file) => [file.path, file.size]), [["out.bin", 200_000], ["out.txt", 3]]);
  assert.ok(files[0] instanceof CollectedFile);
  assert.deepEqual(files[0].bytes(), content);
  assert.equal(files[1]?.text(), "ü\n");
});

test("a batch has a result for each input", async () => {
  const inputs = Array.from({ length: 5 }, (_, n) => `${n}`);
  const results = await client.runBatch("sh", "read n; echo got $n; exit $n", inputs, { timeoutMs: 5000 });
  assert.deepEqual(
    results.map((one) => ("stdout" in one ? [one.stdout, one.exitCode] : one)),
    inputs.map((n) => [`got ${n}\n`, Number(n)]),
  );
  // @ts-expect-error: the inputs are an argument of their own
  await assert.rejects(client.runBatch("sh", "cat", ["1"], { stdin: "2" }), { field: "stdin" });
  await assert.rejects(client.runBatch("klingon", "", ["1"]), { field: "language" });
});

test("a file of an earlier run and an uploaded one go into a later run", async () => {
  const upload = await client.upload("uploaded");
  assert.equal(upload.size, 8);
  const first = await client.run("sh", "echo made > made.txt", { collect: ["made.txt"] });
  const second = await client.run("sh", "cat a b", {
    files: [
      { path: "a", upload: upload.id },
      { path: "b", fromRun: first.id, fromPath: "made.txt" },
    ],
  });
  assert.equal(second.stdout, "uploadedmade\n");
  assert.ok((await client.uploads.list()).some((file) => file.id === upload.id && file.expiresAt === upload.expiresAt));
  await client.uploads.delete(upload.id);
  assert.ok(!(await client.uploads.list()).some((file) => file.id === upload.id));
  await assert.rejects(client.uploads.delete(upload.id), { code: "not_found" });
});

test("limits end a run and say so", async () => {
  const slow = await client.run("sh", "sleep 60", { timeoutMs: 200 });
  assert.equal(slow.status, "timed_out");
  assert.equal(slow.exitCode, 124);
  assert.equal(slow.timedOut, true);
  const large = await client.run("python", "x = bytearray(10**9)", { memory: "32M" });
  assert.equal(large.status, "out_of_memory");
  assert.match(large.stderr, /Memory limit exceeded \(32M\)/);
  const same = await client.run("python", "x = bytearray(10**9)", { memoryBytes: 32 * 1024 ** 2 });
  assert.match(same.stderr, /\(32M\)/);
});

test("output comes byte for byte on request", async () => {
  const { stdoutBase64 } = await client.run("sh", "printf '\\377'", { outputBase64: true });
  assert.equal(stdoutBase64, "/w==");
});

test("an option that does not exist is refused, and the hint names the one that was meant", async () => {
  // @ts-expect-error: there is no such option
  const refused = client.run("python", "1", { timeout: 3 });
  await assert.rejects(refused, (error) => {
    assert.ok(error instanceof InvalidRequestError);
    assert.equal(error.field, "timeout");
    assert.match(error.hint ?? "", /timeoutMs/);
    return true;
  });
  // @ts-expect-error: snake case is the server's
  await assert.rejects(client.run("python", "1", { timeout_ms: 3 }), { hint: "did you mean 'timeoutMs'?" });
  // @ts-expect-error: there is no such option
  assert.throws(() => new Belljar({ key: "x" }), InvalidRequestError);
  // @ts-expect-error: there is no such option
  await assert.rejects(client.runs.list({ page: 1 }), InvalidRequestError);
  // @ts-expect-error: not a size
  await assert.rejects(client.run("python", "1", { memory: "lots" }), { field: "memory" });
  await assert.rejects(client.run("python", "1", { memory: "64M", memoryBytes: 1 }), InvalidRequestError);
  assert.throws(() => new Belljar({ url: "server" }), { field: "url" });
});

test("a stream tells what happens, and its last event has the result", async () => {
  const events: RunEvent[] = [];
  for await (const event of client.stream("sh", "echo one; sleep 0.1; echo zwölf >&2")) events.push(event);
  assert.deepEqual(events.map((event) => event.type), ["start", "stdout", "stderr", "end"]);
  const [start, out, err, end] = events;
  assert.ok(start?.type === "start" && start.language === "sh" && start.queueMs >= 0);
  assert.ok(out?.type === "stdout" && out.text === "one\n");
  assert.ok(err?.type === "stderr" && err.text === "zwölf\n");
  assert.ok(end?.type === "end" && end.result.exitCode === 0 && end.result.stdout === "one\n");
});

test("a stream carries much output unharmed", async () => {
  let text = "";
  let whole = "";
  const code = "import sys\nfor n in range(20000): sys.stdout.write(f'{n} ä€\\n')";
  for await (const event of client.stream("python", code, { outputBytes: 4_000_000 })) {
    if (event.type === "stdout") text += event.text;
    if (event.type === "end") whole = event.result.stdout;
  }
  assert.equal(whole.split("\n").length, 20001);
  assert.equal(text, whole);
});

test("leaving a stream cancels its run", async () => {
  let id = "";
  for await (const event of client.stream("sh", "echo up; sleep 60", { timeoutMs: 60_000 })) {
    if (event.type === "start") id = event.id;
    if (event.type === "stdout") break;
  }
  const result = await client.runs.attach(id).wait();
  assert.equal(result.status, "cancelled");
});

test("disposing of a stream cancels its run", async () => {
  let id = "";
  {
    await using stream = client.stream("sh", "echo up; sleep 60", { timeoutMs: 60_000 });
    const events = stream[Symbol.asyncIterator]();
    const { value } = await events.next();
    assert.ok(value?.type === "start");
    id = value.id;
  }
  assert.equal((await client.runs.attach(id).wait()).status, "cancelled");
});

test("a submitted run can be waited for, followed and listed", async () => {
  const handle = await client.submit("sh", "echo first; sleep 0.2; echo second");
  assert.match(handle.id, /^run_/);
  const seen: string[] = [];
  for await (const event of handle.events()) if (event.type === "stdout") seen.push(event.text);
  assert.equal(seen.join(""), "first\nsecond\n");
  const result = await handle.wait();
  assert.equal(result.id, handle.id);
  assert.equal(result.stdout, "first\nsecond\n");
  assert.equal(await handle.status(), "exited");
  assert.equal(await handle.cancel(), false);
  const { runs } = await client.runs.list({ limit: 1, language: "sh" });
  assert.equal(runs[0]?.id, handle.id);
  assert.equal(runs[0]?.exitCode, 0);
});

test("pages of runs follow one another", async () => {
  for (let n = 0; n < 3; n++) await client.run("sh", "true");
  const first = await client.runs.list({ limit: 2 });
  assert.ok(first.nextCursor);
  const second = await client.runs.list({ limit: 2, cursor: first.nextCursor });
  const ids = [...first.runs, ...second.runs].map((run) => run.id);
  assert.equal(new Set(ids).size, ids.length);
});

test("a submitted run is cancelled by its handle, by its signal and at the end of its scope", async () => {
  const options = { timeoutMs: 60_000 };
  const byHandle = await client.submit("sh", "sleep 60", options);
  assert.equal(await byHandle.cancel(), true);
  assert.equal((await byHandle.wait()).status, "cancelled");

  const abort = new AbortController();
  const bySignal = await client.submit("sh", "sleep 60", { ...options, signal: abort.signal });
  abort.abort();
  assert.equal((await bySignal.wait()).status, "cancelled");

  let id = "";
  {
    await using scoped = await client.submit("sh", "sleep 60", options);
    id = scoped.id;
  }
  assert.equal((await client.runs.attach(id).wait()).status, "cancelled");
});

test("aborting while a run is being submitted cancels it, too", async () => {
  for (const wait of [0, 1, 2, 4, 8, 16]) {
    const signal = AbortSignal.timeout(wait);
    await client.submit("perl", "sleep 60", { timeoutMs: 60_000, signal }).then(
      (handle) => until("the signal is aborted", () => signal.aborted).then(() => handle.wait()),
      (error: Error) => assert.equal(error.name, "TimeoutError"),
    );
  }
  const active = async () => (await client.runs.list({ language: "perl", limit: 200 })).runs.filter((run) => run.exitCode === null);
  await until("no run goes on", async () => (await active()).length === 0);
});

test("aborting a wait leaves the run alone", async () => {
  const handle = await client.submit("sh", "sleep 0.5; echo done");
  await assert.rejects(handle.wait({ signal: AbortSignal.timeout(50) }), { name: "TimeoutError" });
  assert.equal((await handle.wait()).stdout, "done\n");
});

test("aborting a run cancels it and rejects with the reason", async () => {
  const abort = new AbortController();
  const running = client.run("zsh", "sleep 60", { timeoutMs: 60_000, signal: abort.signal });
  const find = async () => (await client.runs.list({ language: "zsh", status: "running" })).runs[0];
  await until("the run is running", async () => (await find()) !== undefined);
  const id = (await find())!.id;
  const reason = new Error("the user left");
  abort.abort(reason);
  await assert.rejects(running, (error) => error === reason);
  assert.equal((await client.runs.attach(id).wait()).status, "cancelled");
  await assert.rejects(client.run("sh", "true", { signal: AbortSignal.abort() }), { name: "AbortError" });
});

test("closing a client ends its calls", async () => {
  await using closing = new Belljar({ url: server.url });
  const running = closing.run("ruby", "sleep 60", { timeoutMs: 60_000 });
  const rejected = assert.rejects(running, /closed/);
  await until("the run is running", async () => (await client.runs.list({ language: "ruby", status: "running" })).runs.length > 0);
  await closing.close();
  await rejected;
  await assert.rejects(closing.run("sh", "true"), InvalidRequestError);
});

test("a key makes a run happen once", async () => {
  const code = "import random; print(random.random())";
  const first = await client.run("python", code, { idempotencyKey: "order-17" });
  const second = await client.run("python", code, { idempotencyKey: "order-17" });
  assert.equal(second.id, first.id);
  assert.equal(second.stdout, first.stdout);
  const third = await client.run("python", code);
  assert.notEqual(third.stdout, first.stdout);
  await assert.rejects(client.run("python", "2", { idempotencyKey: "order-17" }), { code: "conflict", name: "ConflictError" });
});

test("the server describes itself", async () => {
  const languages = await client.languages();
  assert.ok(languages.some((language) => language.name === "python" && language.available && language.aliases.includes("py")));
  const backends = await client.backends();
  assert.equal(backends.default, "native");
  assert.ok(backends.backends.some((backend) => backend.name === "process" && backend.onlyByName));
  const pool = await client.pool();
  assert.ok(pool.enabled && pool.memoryLimitBytes > 0);
  const findings = await client.scan("python", "import os; os.system('id')");
  assert.equal(findings[0]?.rule, "python.process.spawn");
  assert.equal(findings[0]?.endLine, 1);
});

test("fetch does what Node's own client does", async () => {
  await using plain = new Belljar({ url: server.url, fetch });
  assert.equal((await plain.run("sh", "echo hi")).stdout, "hi\n");
  const types: string[] = [];
  for await (const event of plain.stream("sh", "echo hi")) types.push(event.type);
  assert.deepEqual(types, ["start", "stdout", "end"]);
  const abort = new AbortController();
  const running = plain.run("perl", "sleep 60", { timeoutMs: 60_000, signal: abort.signal });
  const find = async () => (await client.runs.list({ language: "perl", status: "running" })).runs[0];
  await until("the run is running", async () => (await find()) !== undefined);
  const id = (await find())!.id;
  abort.abort();
  await assert.rejects(running, { name: "AbortError" });
  assert.equal((await client.runs.attach(id).wait()).status, "cancelled");
});
