import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { Belljar, ServerUnreachableError } from "belljar";
import { binary, bun, deno, isolated, serversIn, stopServersIn, until } from "./server.js";

const folder = mkdtempSync(join(tmpdir(), "belljar-ts-"));
Object.assign(process.env, isolated(folder), { BELLJAR_BINARY: binary });

const servers = (): number[] => serversIn(folder);

after(async () => {
  await stopServersIn(folder);
  rmSync(folder, { recursive: true, force: true });
});

test("many first calls at once start one server, which all clients share", async () => {
  const clients = [new Belljar(), new Belljar()];
  assert.deepEqual(servers(), [], "making a client starts nothing");
  const calls = clients.flatMap((client) => Array.from({ length: 8 }, (_, n) => client.run("sh", `echo ${n}`)));
  const results = await Promise.all(calls);
  assert.deepEqual(results.map((result) => result.stdout), [..."0123456701234567"].map((n) => `${n}\n`));
  assert.equal(servers().length, 1);
  await Promise.all(clients.map((client) => client.close()));
});

test("another process finds the same server, and exits when it has nothing to do", async () => {
  const [server] = servers();
  const program = 'import { run } from "belljar"; console.log((await run("sh", "echo ran")).stdout.trim());';
  assert.equal(await outputOf(process.execPath, "--input-type=module", "-e", program), "ran\n");
  assert.deepEqual(servers(), [server]);
});

test("Bun finds the same server, and Deno says that it needs a URL", async () => {
  const [server] = servers();
  const library = new URL("../../dist/index.js", import.meta.url).href;
  const file = join(folder, "program.mjs");
  writeFileSync(
    file,
    `import { Belljar } from ${JSON.stringify(library)};
    const client = new Belljar();
    try {
      console.log((await client.run("sh", "echo ran")).stdout.trim());
      for await (const event of client.stream("sh", "echo up; sleep 60", { timeoutMs: 60000 })) if (event.type === "stdout") break;
      const aborted = client.run("sh", "sleep 60", { timeoutMs: 60000, signal: AbortSignal.timeout(200) });
      console.log(await aborted.catch((error) => error.name));
    } catch (error) {
      console.log(error.name, error.field);
    }`,
  );
  assert.equal(await outputOf(bun, "run", file), "ran\nTimeoutError\n");
  assert.deepEqual(servers(), [server]);
  assert.equal(await outputOf(deno(), "run", "--no-prompt", "--no-config", "--allow-all", file), "InvalidRequestError url\n");
});

test("a stream and a submitted run go over the socket", async () => {
  await using client = new Belljar();
  let text = "";
  for await (const event of client.stream("sh", "echo one; echo two")) if (event.type === "stdout") text += event.text;
  assert.equal(text, "one\ntwo\n");
  assert.equal((await (await client.submit("sh", "echo three")).wait()).stdout, "three\n");
});

test("a server killed during a run gives the typed error, and the next call works", async () => {
  await using client = new Belljar();
  await client.run("sh", "true");
  const [server] = servers();
  const running = assert.rejects(client.run("sh", "sleep 60", { timeoutMs: 60_000 }), ServerUnreachableError);
  await until("the run is running", async () => (await client.runs.list({ status: "running" })).runs.length > 0);
  process.kill(server!, "SIGKILL");
  await running;
  assert.equal((await client.run("sh", "echo again")).stdout, "again\n");
  // The helpers of the killed server outlive it for as long as they need to remove what it ran.
  await until("only the new server is left", () => servers().length === 1);
  assert.notEqual(servers()[0], server);
});

test("a server that is gone between two calls is not noticed", async () => {
  await using one = new Belljar();
  await using other = new Belljar();
  await Promise.all([one.run("sh", "true"), other.run("sh", "true")]);
  const [server] = servers();
  process.kill(server!, "SIGTERM");
  await until("the server has stopped", () => servers().length === 0);
  const results = await Promise.all([one, other, one, other].map((client) => client.run("sh", "echo here")));
  assert.deepEqual(results.map((result) => result.stdout), Array(4).fill("here\n"));
  assert.equal(servers().length, 1);
});

test("without a program to start, the error says what to do", async () => {
  await assert.rejects(new Belljar({ binary: "/nonexistent/belljar" }).run("sh", "true"), (error) => {
    assert.ok(error instanceof ServerUnreachableError);
    assert.match(error.message, /cannot start a server with \/nonexistent\/belljar/);
    assert.match(error.hint!, /BELLJAR_URL/);
    return true;
  });
  await assert.rejects(new Belljar({ binary: "/bin/false" }).run("sh", "true"), /cannot start a server with \/bin\/false: it ended with 1/);
  const { PATH } = process.env;
  delete process.env["BELLJAR_BINARY"];
  process.env["PATH"] = folder;
  await assert.rejects(new Belljar().run("sh", "true"), { name: "ServerUnreachableError", message: /there is no program belljar/ });
  // As on a Mac.
  const platform = Object.getOwnPropertyDescriptor(process, "platform")!;
  Object.defineProperty(process, "platform", { value: "darwin" });
  await assert.rejects(new Belljar().run("sh", "true"), { message: /needs Linux, and this is darwin/, hint: /BELLJAR_URL/ });
  Object.defineProperty(process, "platform", platform);
  Object.assign(process.env, { PATH, BELLJAR_BINARY: binary });
});

/** What a program prints that ends by itself. */
async function outputOf(path: string, ...words: string[]): Promise<string> {
  const env = { ...process.env, NO_COLOR: "1", DENO_DIR: join(folder, "deno") };
  const child = spawn(path, words, { cwd: new URL("../..", import.meta.url), env, stdio: ["ignore", "pipe", "inherit"] });
  let out = "";
  child.stdout.setEncoding("utf8").on("data", (text: string) => (out += text));
  const [code] = await once(child, "close", { signal: AbortSignal.timeout(30_000) });
  assert.equal(code, 0);
  return out;
}
