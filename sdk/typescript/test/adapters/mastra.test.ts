import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Agent } from "@mastra/core/agent";
import { MockLanguageModelV3 } from "ai/test";
import { Belljar, type Result } from "belljar";
import { belljarTool } from "belljar/mastra";
import { Server } from "../server.js";

let server: Server;
let client: Belljar;
before(async () => {
  server = await Server.start();
  client = new Belljar({ url: server.url });
});
after(() => server[Symbol.asyncDispose]());

type Generated = Extract<NonNullable<ConstructorParameters<typeof MockLanguageModelV3>[0]>["doGenerate"], unknown[]>[number];

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

test("an agent calls the tool and reads its result", async () => {
  const model = new MockLanguageModelV3({ doGenerate: [calling({ language: "python", code: "print(6 * 7)" }), saying("It is 42.")] });
  const run_code = belljarTool({ client });
  // Mastra wraps models of the AI SDK itself; its type is that of a model that it has wrapped.
  const agent = new Agent({ id: "analyst", name: "analyst", instructions: "Compute.", model: model as never, tools: { run_code } });
  const { text } = await agent.generate("What is 6 * 7?");
  assert.equal(text, "It is 42.");
  const offered = model.doGenerateCalls[0]?.tools?.[0];
  assert.ok(offered?.type === "function" && offered.name === "run_code");
  assert.match(JSON.stringify(offered.inputSchema), /"required":\["language","code"\]/);
  assert.match(JSON.stringify(model.doGenerateCalls[1]?.prompt.at(-1)), /exit code 0\\nstdout:\\n42/);
});

test("the tool can be called by itself", async () => {
  const tool = belljarTool({ client, languages: ["sh"] });
  const result = (await tool.execute!({ language: "sh", code: "echo hi" }, {} as never)) as Result;
  assert.equal(result.stdout, "hi\n");
});
