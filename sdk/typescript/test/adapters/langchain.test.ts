import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { BaseChatModel } from "@langchain/core/language_models/chat_models";
import { AIMessage, type BaseMessage, HumanMessage, ToolMessage } from "@langchain/core/messages";
import type { ChatResult } from "@langchain/core/outputs";
import { convertToOpenAITool } from "@langchain/core/utils/function_calling";
import { Belljar, type Result } from "belljar";
import { belljarTool } from "belljar/langchain";
import { Server, until } from "../server.js";

let server: Server;
let client: Belljar;
before(async () => {
  server = await Server.start();
  client = new Belljar({ url: server.url });
});
after(() => server[Symbol.asyncDispose]());

/** Stands in for a model: says what it was told to, one message after the other. */
class ScriptedModel extends BaseChatModel {
  readonly #script: AIMessage[];

  constructor(script: AIMessage[]) {
    super({});
    this.#script = script;
  }

  _llmType(): string {
    return "scripted";
  }

  async _generate(_: BaseMessage[]): Promise<ChatResult> {
    const message = this.#script.shift();
    assert.ok(message, "the script is over");
    return { generations: [{ text: "", message }] };
  }
}

test("a call of a model is answered by a message with the text and the result", async () => {
  const tool = belljarTool({ client });
  const call = { id: "call-1", name: "run_code", args: { language: "python", code: "print(6 * 7)" }, type: "tool_call" } as const;
  const model = new ScriptedModel([new AIMessage({ content: "", tool_calls: [call] }), new AIMessage("It is 42.")]);

  const messages: BaseMessage[] = [new HumanMessage("What is 6 * 7?")];
  for (;;) {
    const answer = await model.invoke(messages);
    messages.push(answer);
    if (!answer.tool_calls?.length) break;
    for (const one of answer.tool_calls) messages.push((await tool.invoke({ ...one, type: "tool_call" })) as ToolMessage);
  }
  const read = messages[2];
  assert.ok(read instanceof ToolMessage);
  assert.equal(read.content, "exit code 0\nstdout:\n42");
  assert.equal(read.tool_call_id, "call-1");
  assert.equal((read.artifact as Result).stdout, "42\n");
  assert.equal(messages[3]?.content, "It is 42.");
});

test("the tool describes itself to providers, and refuses what its schema does not allow", async () => {
  const tool = belljarTool({ client, name: "code_run", languages: ["sh"] });
  const { function: described } = convertToOpenAITool(tool);
  assert.equal(described.name, "code_run");
  assert.deepEqual((described.parameters as { required: string[] }).required, ["language", "code"]);
  assert.equal(await tool.invoke({ language: "sh", code: "exit 3" }), "exit code 3");
  await assert.rejects(tool.invoke({ language: "python", code: "1" }));
});

test("aborting the call cancels the run", async () => {
  const tool = belljarTool({ client, languages: ["zsh"], run: { timeoutMs: 60_000 } });
  const abort = new AbortController();
  const rejected = assert.rejects(tool.invoke({ language: "zsh", code: "sleep 60" }, { signal: abort.signal }));
  const running = async () => (await client.runs.list({ status: "running", language: "zsh" })).runs[0];
  await until("the run is running", async () => (await running()) !== undefined);
  const { id } = (await running())!;
  abort.abort();
  await rejected;
  assert.equal((await client.runs.attach(id).wait()).status, "cancelled");
});
