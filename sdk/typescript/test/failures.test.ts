import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createServer, type Server as HttpServer } from "node:http";
import { type AddressInfo, connect, createServer as createTcpServer } from "node:net";
import { test } from "node:test";
import * as sdk from "belljar";
import { Belljar, BelljarError, BusyError, ServerUnreachableError } from "belljar";
import { isolated, Server, until } from "./server.js";

const KEY = "bj_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const KEY_SHA256 = "0e195a88c3414e9aaeebd30d3a7d082126cfa2c9b17c5d2c28ea7d5f96c997c0";

test("each refusal of a real server has its class", async () => {
  await using server = await Server.start(`
    [server]
    max-body = "1M"
    [[keys]]
    name = "ci"
    sha256 = "${KEY_SHA256}"
    [keys.allow]
    languages = ["sh"]
    backends = ["native", "docker"]
  `);
  await using client = new Belljar({ url: server.url, apiKey: KEY });
  assert.equal((await client.run("sh", "echo 1")).stdout, "1\n");
  await assert.rejects(new Belljar({ url: server.url, apiKey: "" }).run("sh", "true"), sdk.UnauthorizedError);
  await assert.rejects(client.run("python", "1"), sdk.ForbiddenError);
  await assert.rejects(client.run("sh", "true", { cpus: -1 }), sdk.InvalidRequestError);
  await assert.rejects(client.runs.attach("run_01M7NZVYEKADT3YK8N8TBSVTD4").wait(), sdk.NotFoundError);
  await assert.rejects(client.run("sh", "x".repeat(2_000_000)), sdk.TooLargeError);
  await assert.rejects(client.run("sh", "true", { backend: "docker" }), sdk.BackendUnavailableError);
  const error = await client.run("python", "1").catch((error: BelljarError) => error);
  assert.ok(error instanceof BelljarError);
  assert.equal(error.code, "forbidden");
  assert.equal(error.status, 403);
  assert.equal(error.field, "language");
  assert.equal(error.name, "ForbiddenError");
  assert.ok(error.hint);
});

test("BELLJAR_API_KEY is the key", async () => {
  await using server = await Server.start(`[[keys]]\nname = "ci"\nsha256 = "${KEY_SHA256}"\n`);
  process.env["BELLJAR_API_KEY"] = KEY;
  try {
    assert.equal((await new Belljar({ url: server.url }).run("sh", "echo 1")).stdout, "1\n");
  } finally {
    delete process.env["BELLJAR_API_KEY"];
  }
});

test("every code that a server can send has its class, and what a proxy sends is an error, too", async () => {
  let answer = { status: 200, body: "" };
  await using fake = await listen(createServer((_, response) => void response.writeHead(answer.status).end(answer.body)));
  const client = new Belljar({ url: fake.url, retryForMs: 0 });
  const names: [number, string, string][] = [
    [400, "invalid_request", "InvalidRequestError"],
    [401, "unauthorized", "UnauthorizedError"],
    [403, "forbidden", "ForbiddenError"],
    [404, "not_found", "NotFoundError"],
    [409, "conflict", "ConflictError"],
    [413, "too_large", "TooLargeError"],
    [429, "busy", "BusyError"],
    [500, "internal", "InternalError"],
    [501, "guarantee_unmet", "GuaranteeUnmetError"],
    [503, "backend_unavailable", "BackendUnavailableError"],
    [418, "of_tomorrow", "BelljarError"],
  ];
  for (const [status, code, name] of names) {
    answer = { status, body: JSON.stringify({ error: { code, message: "no", hint: "do" } }) };
    const error = await client.run("sh", "true").catch((error: unknown) => error);
    assert.ok(error instanceof BelljarError, code);
    assert.deepEqual([error.name, error.code, error.message, error.hint, error.status], [name, code, "no", "do", status]);
    assert.equal(error.constructor, sdk[name as "BelljarError"]);
  }
  answer = { status: 502, body: "<html>Bad Gateway</html>" };
  await assert.rejects(client.run("sh", "true"), { name: "ServerUnreachableError", status: 502 });
});

test("events that a newer server may have are passed over", async () => {
  const events = 'event: news\ndata: {"a": 1}\n\nevent: stdout\ndata: {"text": "x"}\n\nevent: end\ndata: {"status": "exited"}\n\n';
  const head = { "content-type": "text/event-stream" };
  await using fake = await listen(createServer((_, response) => void response.writeHead(200, head).end(events)));
  const heard: string[] = [];
  for await (const event of new Belljar({ url: fake.url, retryForMs: 0 }).stream("sh", "true")) heard.push(event.type);
  assert.deepEqual(heard, ["stdout", "end"]);
});

test("calls wait while the server is busy, and no longer than they may", async () => {
  await using server = await Server.start("[server]\nslots = 1\nqueue = 1\n");
  await using patient = new Belljar({ url: server.url });
  await using impatient = new Belljar({ url: server.url, retryForMs: 0 });
  await using observer = new Belljar({ url: server.url });

  const codes = Array.from({ length: 6 }, (_, n) => `sleep 0.2; echo ${n}`);
  const refused = await Promise.allSettled(codes.map((code) => impatient.run("sh", code)));
  const reasons = refused.flatMap((one) => (one.status === "rejected" ? [one.reason as unknown] : []));
  assert.ok(reasons.length > 0, "six at once fit into one slot and a queue of one");
  for (const reason of reasons) assert.ok(reason instanceof BusyError && reason.retryAfterMs! > 0);

  const results = await Promise.all(codes.map((code) => patient.run("sh", code)));
  assert.deepEqual(results.map((result) => result.stdout), codes.map((_, n) => `${n}\n`));

  const blockers = await Promise.all([1, 2].map(() => observer.submit("sh", "sleep 60", { timeoutMs: 60_000 })));
  const some = new Belljar({ url: server.url, retryForMs: 1500 });
  await assert.rejects(some.run("sh", "true"), BusyError);
  const abort = new AbortController();
  const waiting = patient.run("sh", "true", { signal: abort.signal });
  abort.abort();
  await assert.rejects(waiting, { name: "AbortError" });
  await Promise.all(blockers.map((run) => run.cancel()));
});

test("a request whose answer was lost is sent again, and its code runs once", async () => {
  await using server = await Server.start();
  await using proxy = await swallowingProxy(server.port);
  for (const using of [undefined, fetch]) {
    proxy.swallow = 1;
    await using client = new Belljar({ url: proxy.url, fetch: using });
    const before = (await client.runs.list()).runs.length;
    proxy.swallow = 1;
    const result = await client.run("sh", "echo once");
    assert.equal(result.stdout, "once\n");
    assert.equal(proxy.swallow, 0, "the proxy lost no answer");
    assert.equal((await client.runs.list()).runs.length, before + 1);
  }
});

test("a server killed during a run gives the typed error, and the next call works", async () => {
  let server = await Server.start();
  const { port } = server;
  for (const using of [undefined, fetch]) {
    await using client = new Belljar({ url: server.url, fetch: using });
    assert.equal((await client.run("sh", "echo before")).stdout, "before\n");
    const running = client.run("sh", "sleep 60", { timeoutMs: 60_000 });
    const rejected = assert.rejects(running, (error) => {
      assert.ok(error instanceof ServerUnreachableError);
      assert.equal(error.code, "server_unreachable");
      return true;
    });
    await until("the run is running", async () => (await client.runs.list({ status: "running" })).runs.length > 0);
    let seen = false;
    const streaming = (async () => {
      for await (const event of client.stream("sh", "echo up; sleep 60", { timeoutMs: 60_000 })) if (event.type === "stdout") seen = true;
    })();
    const streamRejected = assert.rejects(streaming, ServerUnreachableError);
    await until("the stream is running", () => seen);
    await server.stop("SIGKILL");
    await Promise.all([rejected, streamRejected]);
    await assert.rejects(client.run("sh", "true"), ServerUnreachableError);
    await server[Symbol.asyncDispose]();
    server = await startAgain(port);
    assert.equal((await client.run("sh", "echo after")).stdout, "after\n");
  }
  await server[Symbol.asyncDispose]();
});

test("a process that does nothing else exits, although its connection is still open", async () => {
  await using server = await Server.start('[server]\nheader-timeout = "1h"\n');
  for (const options of ["{ url }", "{ url, fetch }"]) {
    const program = `
      import { Belljar } from "belljar";
      const url = ${JSON.stringify(server.url)};
      console.log((await new Belljar(${options}).run("sh", "echo ran")).stdout.trim());`;
    const child = spawn(process.execPath, ["--input-type=module", "-e", program], {
      cwd: new URL("../..", import.meta.url),
      env: isolated(server.folder),
      stdio: ["ignore", "pipe", "inherit"],
    });
    let out = "";
    child.stdout.setEncoding("utf8").on("data", (text: string) => (out += text));
    const [code] = await once(child, "close", { signal: AbortSignal.timeout(20_000) });
    assert.deepEqual([code, out], [0, "ran\n"]);
  }
});

test("a person decides, and the run that waits for it goes on or not", async () => {
  await using server = await Server.start('[policy]\npreset = "standard"\n[approvals]\nwait = "0s"\n');
  await using client = new Belljar({ url: server.url });
  const code = "import ctypes; print(ctypes.sizeof(ctypes.c_long))";
  const pending = async () => {
    await until("an approval is pending", async () => (await client.approvals.list({ status: "pending" })).approvals.length > 0);
    return (await client.approvals.list({ status: "pending" })).approvals[0]!.id;
  };

  const approved = client.run("python", code);
  const first = await pending();
  assert.equal((await client.approvals.get(first)).code, code);
  assert.equal((await client.approvals.approve(first, { reason: "fine" })).status, "approved");
  const result = await approved;
  assert.equal(result.stdout, "8\n");
  assert.equal(result.decision?.approvalId, first);

  const denied = client.run("python", `${code} # again`);
  await client.approvals.deny(await pending(), { reason: "not this one" });
  const refusal = await denied;
  assert.equal(refusal.status, "denied");
  assert.equal(refusal.exitCode, 126);
  assert.match(refusal.stderr, /not this one/);

  const abort = new AbortController();
  const aborted = client.run("python", `${code} # and again`, { signal: abort.signal });
  await until("it waits", async () => (await client.runs.list({ status: "awaiting_approval" })).runs.length > 0);
  const { id } = (await client.runs.list({ status: "awaiting_approval" })).runs[0]!;
  abort.abort();
  await assert.rejects(aborted, { name: "AbortError" });
  assert.equal((await client.runs.attach(id).wait()).status, "cancelled");
});

test("a decision that is remembered can be taken back", async () => {
  await using server = await Server.start('[policy]\npreset = "standard"\n[approvals]\nwait = "0s"\nremember = "1h"\n');
  await using client = new Belljar({ url: server.url });
  const code = "import ctypes; print(1)";
  const pending = async () => (await client.approvals.list({ status: "pending" })).approvals[0]?.id;
  const first = client.run("python", code);
  await until("the run waits", async () => (await pending()) !== undefined);
  const id = (await pending())!;
  await client.approvals.approve(id, { rememberS: 600 });
  assert.equal((await first).stdout, "1\n");
  assert.equal((await client.run("python", code)).stdout, "1\n");
  assert.deepEqual((await client.approvals.list({ remembered: true })).approvals.map((one) => one.id), [id]);
  assert.match((await client.approvals.revoke(id, { reason: "no more" })).decision?.reason ?? "", /no more/);
  assert.deepEqual((await client.approvals.list({ remembered: true })).approvals, []);
  const again = client.run("python", code, { signal: AbortSignal.timeout(60_000) });
  await until("the run waits again", async () => (await pending()) !== undefined);
  await client.approvals.deny((await pending())!);
  assert.equal((await again).status, "denied");
});

test("the record of all runs can be searched and verified", async () => {
  await using server = await Server.start("[audit]\nenabled = true\n");
  await using client = new Belljar({ url: server.url });
  const { id } = await client.run("sh", "echo recorded; exit 3");
  await until("the run is recorded", async () => (await client.audit.search({ language: "sh" })).records.length > 0);
  const { records, nextCursor } = await client.audit.search({ status: "exited", q: "recorded", limit: 10 });
  assert.equal(records[0]?.exitCode, 3);
  assert.equal(nextCursor, null);
  const record = await client.audit.get(records[0].id);
  assert.equal(record.id, id);
  assert.equal((await client.audit.verify()).ok, true);
  assert.deepEqual((await client.audit.search({ language: "python" })).records, []);
});

/** A server of the test's own, on a free port. */
async function listen(server: HttpServer): Promise<{ url: string } & AsyncDisposable> {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return { url, [Symbol.asyncDispose]: async () => void server.close().closeAllConnections() };
}

/** A proxy that lets a POST through and cuts the connection when its answer comes, `swallow` times. */
async function swallowingProxy(port: number): Promise<{ url: string; swallow: number } & AsyncDisposable> {
  const server = createTcpServer((near) => {
    const far = connect(port, "127.0.0.1");
    let posted = false;
    near.on("data", (data) => {
      posted ||= data.toString("latin1").startsWith("POST");
      far.write(data);
    });
    far.on("data", (data) => {
      if (posted && state.swallow > 0) {
        state.swallow--;
        near.resetAndDestroy();
        far.destroy();
      } else near.write(data);
    });
    near.on("error", () => far.destroy()).on("close", () => far.destroy());
    far.on("error", () => near.destroy()).on("close", () => near.destroy());
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const state = { url, swallow: 0, [Symbol.asyncDispose]: async () => void server.close() };
  return state;
}

/** The port is free again as soon as the kernel has ended the processes of the server. */
async function startAgain(port: number): Promise<Server> {
  let server: Server | undefined;
  await until("the port is free again", async () => (server = await Server.start("", port).catch(() => undefined)) !== undefined);
  return server!;
}
