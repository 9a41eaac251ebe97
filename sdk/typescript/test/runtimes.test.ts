import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { bun, deno, isolated, Server } from "./server.js";

let server: Server;
before(async () => {
  server = await Server.start();
});
after(() => server[Symbol.asyncDispose]());

const library = new URL("../../dist/index.js", import.meta.url).href;

/** What a program does that has nothing but `fetch`. It ends by itself. */
const program = (url: string) => `
import { Belljar, BelljarError, InvalidRequestError, ServerUnreachableError } from ${JSON.stringify(library)};
const client = new Belljar({ url: ${JSON.stringify(url)} });
const say = (...words) => console.log(words.join(" "));
const { stdout, files } = await client.run("sh", "cat in; echo made > out", { files: { in: new Uint8Array([104, 105]) }, collect: ["out"] });
say(stdout, files[0].text().trim());
for await (const event of client.stream("sh", "echo streamed")) say(event.type, event.text?.trim() ?? "");
say((await (await client.submit("sh", "echo submitted")).wait()).stdout.trim());
await client.run("klingon", "").catch((error) => say(error.name, error instanceof BelljarError, error.field));
await new Belljar({ url: "http://127.0.0.1:9", retryForMs: 0 }).run("sh", "").catch((error) => say(error instanceof ServerUnreachableError));
const abort = new AbortController();
let id;
try {
  for await (const event of client.stream("sh", "echo up; sleep 60", { timeoutMs: 60000, signal: abort.signal })) {
    if (event.type === "start") id = event.id;
    if (event.type === "stdout") abort.abort();
  }
} catch (error) {
  say(error.name);
}
say((await client.runs.attach(id).wait()).status);
`;

const EXPECTED = `hi made
start 
stdout streamed
end 
submitted
InvalidRequestError true language
true
AbortError
cancelled
`;

const runtimes: Record<string, string[]> = {
  bun: [bun, "run"],
  // Nothing is allowed but to talk to the server: neither files, nor the environment, nor other programs.
  deno: [deno(), "run", "--no-prompt", "--no-config", "--allow-net=127.0.0.1"],
  node: [process.execPath],
};

for (const [name, command] of Object.entries(runtimes)) {
  test(`${name} runs code on a server by its URL`, async () => {
    const file = join(server.folder, `${name}.mjs`);
    writeFileSync(file, program(server.url));
    const [path, ...words] = [...command, file];
    const env = { ...isolated(server.folder), NO_COLOR: "1", DENO_DIR: join(server.folder, "deno") };
    const child = spawn(path!, words, { cwd: server.folder, env, stdio: ["ignore", "pipe", "pipe"] });
    let out = "";
    let err = "";
    child.stdout.setEncoding("utf8").on("data", (text: string) => (out += text));
    child.stderr.setEncoding("utf8").on("data", (text: string) => (err += text));
    const [status] = await once(child, "close", { signal: AbortSignal.timeout(60_000) });
    assert.equal(out, EXPECTED, err);
    assert.equal(status, 0, err);
  });
}

test("a bundle for browsers has nothing of Node", async () => {
  const entry = join(fileURLToPath(new URL(".", import.meta.url)), "browser.mjs");
  writeFileSync(entry, 'export * from "belljar"; export * from "belljar/compat"; export * from "belljar/tools";');
  const out = join(server.folder, "browser.js");
  await promisify(execFile)(bun, ["build", "--target=browser", `--outfile=${out}`, entry], { env: isolated(server.folder) });
  const bundle = readFileSync(out, "utf8");
  assert.match(bundle, /class FetchTransport/);
  assert.match(bundle, /no server can be started from here/);
  assert.doesNotMatch(bundle, /node:|child_process|\bimport\s*\{/);
});
