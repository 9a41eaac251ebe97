import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { generateText, stepCountIs } from "ai";
import { MockLanguageModelV4 } from "ai/test";
import { Belljar } from "belljar";
import { belljarTool } from "belljar/ai-sdk";
import { Server, until } from "../server.js";

let server: Server;
let client: Belljar;
before(async () => {
  server = await Server.start();
  client = new Belljar({ url: server.url });
});
after(() => server[Symbol.asyncDispose]());

type Generated = Extract<NonNullable<ConstructorParameters<typeof MockLanguageModelV4>[0]>["doGenerate"], unknown[]>[number];

const usage = {
  inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
  outputTokens: { total: 1, text: 1, reasoning: 0 },
};

function calling(input: object): Generated {
  const call = { type: "tool-call", toolCallId: "call-1", toolName: "run_code", input: JSON.stringify(input) } as const;
  return { content: [call], finishReason: { unified: "tool-calls", raw: undefined }, usage, warnings: [] };
}

function saying(text: string): Generated {
  return { content: [{ type: "text", text }], finishReason: { unified: "stop", raw: undefined }, usage, warnings: [] };
}

test("a model calls the tool and reads its result", async () => {
  const model = new MockLanguageModelV4({ doGenerate: [calling({ language: "python", code: "print(6 * 7)" }), saying("It is 42.")] });
  const { text, steps } = await generateText({
    model,
    tools: { run_code: belljarTool({ client }) },
    stopWhen: stepCountIs(3),
    prompt: "What is 6 * 7?",
  });
  assert.equal(text, "It is 42.");
  const offered = model.doGenerateCalls[0]?.tools?.[0];
  assert.ok(offered?.type === "function" && offered.name === "run_code");
  assert.deepEqual(offered.inputSchema["required"], ["language", "code"]);
  const read = model.doGenerateCalls[1]?.prompt.at(-1);
  assert.match(JSON.stringify(read), /"value":"exit code 0\\nstdout:\\n42"/);
  // The program has all of it.
  const result = steps[0]?.toolResults[0];
  assert.ok(result?.type === "tool-result" && !result.dynamic);
  assert.equal(result.output.isolation.waived.length, 0);
  assert.equal(result.output.stdout, "42\n");
});

test("a refusal is an error of the tool, which the model reads", async () => {
  const model = new MockLanguageModelV4({ doGenerate: [calling({ language: "perl", code: "1" }), saying("Sorry.")] });
  const { text } = await generateText({ model, tools: { run_code: belljarTool({ client }) }, stopWhen: stepCountIs(3), prompt: "Go" });
  assert.equal(text, "Sorry.");
  assert.match(JSON.stringify(model.doGenerateCalls[1]?.prompt.at(-1)), /'perl' is not offered/);
});

test("aborting the generation cancels the run", async () => {
  const abort = new AbortController();
  const model = new MockLanguageModelV4({ doGenerate: [calling({ language: "bash", code: "sleep 60" }), saying("Never.")] });
  const tools = { run_code: belljarTool({ client, run: { timeoutMs: 60_000 } }) };
  const generating = generateText({ model, tools, stopWhen: stepCountIs(3), prompt: "Go", abortSignal: abort.signal });
  const outcome = generating.then(
    (value) => value.text,
    () => "rejected",
  );
  const running = async () => (await client.runs.list({ status: "running", language: "bash" })).runs[0];
  await until("the run is running", async () => (await running()) !== undefined);
  const { id } = (await running())!;
  abort.abort();
  assert.equal((await client.runs.attach(id).wait()).status, "cancelled");
  assert.notEqual(await outcome, "Never.");
});
