import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { Belljar } from "belljar";
import { Server, until } from "./server.js";

const CALLS = 10_000;
const AT_ONCE = 16;
/** One in so many calls is a run, one a stream that is left, one a run that is aborted, one a refusal. */
const EACH = 100;

test("10,000 calls leave no descriptor, no process and no listener", { timeout: 120_000 }, async () => {
  await using server = await Server.start();
  const descriptors = () => readdirSync("/proc/self/fd").length;
  const children = () => readFileSync(`/proc/self/task/${process.pid}/children`, "utf8").trim();
  const signal = new AbortController().signal;
  const client = new Belljar({ url: server.url });
  await client.run("sh", "true", { signal });
  await client.close();
  const before = { descriptors: descriptors(), children: children() };

  await using used = new Belljar({ url: server.url });
  let next = 0;
  let runs = 0;
  const worker = async () => {
    for (let n = next++; n < CALLS; n = next++) {
      // Most calls are cheap for the server, so that the test is about the client.
      if (n % EACH === 0) {
        const { stdout } = await used.run("sh", "echo 1", { signal });
        assert.equal(stdout, "1\n");
        runs++;
      } else if (n % EACH === 1) {
        for await (const event of used.stream("sh", "echo 1", { signal })) if (event.type === "start") break;
      } else if (n % EACH === 2) await used.run("sh", "sleep 5", { signal: AbortSignal.timeout(5) }).catch(() => {});
      else if (n % EACH === 3) await used.run("nothing", "", { signal }).catch(() => {});
      else await used.runs.list({ limit: 1, signal });
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  assert.equal(runs, CALLS / EACH);
  assert.deepEqual(getEventListeners(signal, "abort"), []);
  await used.close();
  await until("the descriptors are as before", () => descriptors() <= before.descriptors);
  assert.equal(children(), before.children);
});
