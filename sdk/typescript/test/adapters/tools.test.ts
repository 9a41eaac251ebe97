import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type Server as HttpServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import { Belljar } from "belljar";
import { codeTool } from "belljar/tools";
import OpenAI from "openai";
import { Server } from "../server.js";

let server: Server;
let client: Belljar;
before(async () => {
  server = await Server.start();
  client = new Belljar({ url: server.url });
});
after(() => server[Symbol.asyncDispose]());

const input = { language: "python", code: "print(6 * 7)" };
const ANSWER = "exit code 0\nstdout:\n42";

test("OpenAI's Chat Completions: the real client, a scripted model", async () => {
  const call = { id: "call-1", type: "function", function: { name: "run_code", arguments: JSON.stringify(input) } };
  await using model = await scripted([
    { id: "1", object: "chat.completion", choices: [{ index: 0, finish_reason: "tool_calls", message: { role: "assistant", content: null, tool_calls: [call] } }] },
    { id: "2", object: "chat.completion", choices: [{ index: 0, finish_reason: "stop", message: { role: "assistant", content: "It is 42." } }] },
  ]);
  const openai = new OpenAI({ apiKey: "none", baseURL: model.url });
  const tool = codeTool({ client });
  const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: "user", content: "What is 6 * 7?" }];
  for (;;) {
    const { choices } = await openai.chat.completions.create({ model: "scripted", messages, tools: [tool.openai] });
    const { message } = choices[0]!;
    messages.push(message);
    if (!message.tool_calls?.length) break;
    for (const one of message.tool_calls) if (one.type === "function") messages.push(await tool.answerOpenAI(one));
  }
  assert.deepEqual(messages[2], { role: "tool", tool_call_id: "call-1", content: ANSWER });
  assert.equal(model.requests[0].tools[0].function.name, "run_code");
  assert.equal(model.requests[1].messages[2].content, ANSWER);
});

test("OpenAI's Responses: the real client, a scripted model", async () => {
  const call = { type: "function_call", id: "fc-1", call_id: "call-1", name: "run_code", arguments: JSON.stringify(input), status: "completed" };
  const said = { type: "message", id: "m-1", role: "assistant", status: "completed", content: [{ type: "output_text", text: "It is 42.", annotations: [] }] };
  await using model = await scripted([
    { id: "1", object: "response", status: "completed", output: [call] },
    { id: "2", object: "response", status: "completed", output: [said] },
  ]);
  const openai = new OpenAI({ apiKey: "none", baseURL: model.url });
  const tool = codeTool({ client });
  const history: OpenAI.Responses.ResponseInput = [{ role: "user", content: "What is 6 * 7?" }];
  const first = await openai.responses.create({ model: "scripted", input: history, tools: [tool.openaiResponses] });
  for (const item of first.output) {
    if (item.type !== "function_call") continue;
    history.push(item, await tool.answerOpenAIResponses(item));
  }
  const second = await openai.responses.create({ model: "scripted", input: history, tools: [tool.openaiResponses] });
  assert.equal(second.output_text, "It is 42.");
  assert.deepEqual(model.requests[1].input.at(-1), { type: "function_call_output", call_id: "call-1", output: ANSWER });
});

test("Anthropic's Messages: the real client, a scripted model", async () => {
  const call = { type: "tool_use", id: "call-1", name: "run_code", input };
  const usage = { input_tokens: 1, output_tokens: 1 };
  await using model = await scripted([
    { id: "1", type: "message", role: "assistant", model: "scripted", content: [call], stop_reason: "tool_use", usage },
    { id: "2", type: "message", role: "assistant", model: "scripted", content: [{ type: "text", text: "It is 42." }], stop_reason: "end_turn", usage },
  ]);
  const anthropic = new Anthropic({ apiKey: "none", baseURL: model.url });
  const tool = codeTool({ client });
  const messages: Anthropic.MessageParam[] = [{ role: "user", content: "What is 6 * 7?" }];
  for (;;) {
    const answer = await anthropic.messages.create({ model: "scripted", max_tokens: 100, messages, tools: [tool.anthropic] });
    messages.push({ role: "assistant", content: answer.content });
    if (answer.stop_reason !== "tool_use") break;
    const results = [];
    for (const block of answer.content) if (block.type === "tool_use") results.push(await tool.answerAnthropic(block));
    messages.push({ role: "user", content: results });
  }
  assert.deepEqual(messages[2]?.content, [{ type: "tool_result", tool_use_id: "call-1", content: ANSWER, is_error: false }]);
  assert.deepEqual(model.requests[0].tools[0].input_schema.required, ["language", "code"]);
});

test("what a model says wrongly is answered with words that it can read", async () => {
  const tool = codeTool({ client, languages: ["sh"], maxCharacters: 20, run: { timeoutMs: 300 } });
  const ask = async (input: unknown, name = "run_code") => {
    const { content, is_error } = await tool.answerAnthropic({ id: "1", name, input });
    return `${is_error ? "failed: " : ""}${content}`;
  };
  assert.match(await ask({ language: "python", code: "1" }), /^failed: error: the language 'python' is not offered\nhint: /);
  assert.match(await ask({ language: "sh" }), /^failed: error: there is no code/);
  assert.match(await ask({ language: "sh", code: "true", network: "full" }), /^failed: error: run_code has no option 'network'/);
  assert.match(await ask("sh"), /^failed: error: /);
  assert.match(await ask({}, "rm"), /^failed: error: there is no tool 'rm'/);
  assert.equal(await ask({ language: "sh", code: "cat; exit 3", stdin: "in\n" }), "exit code 3\nstdout:\nin");
  assert.match(await ask({ language: "sh", code: "sleep 60" }), /^timed out \(exit code 124\)\nstderr:\n/);
  assert.match(await ask({ language: "sh", code: "kill -SEGV $$" }), /^killed by signal 11 \(exit code 139\)/);
  assert.match(await ask({ language: "sh", code: "seq 100" }), /^exit code 0\nstdout:\n1\n2\n3\n4\n5\n\n\[… 271 characters are missing …\]\n/);
  const call = { id: "1", function: { name: "run_code", arguments: "{" } };
  assert.match((await tool.answerOpenAI(call)).content, /^error: the arguments are not JSON/);
  // @ts-expect-error: there is no such option
  assert.throws(() => codeTool({ model: "x" }), /no option 'model'/);
});

/** Stands in for a provider: answers requests with what the model is to say, one after the other. */
async function scripted(answers: object[]): Promise<{ url: string; requests: any[] } & AsyncDisposable> {
  const requests: unknown[] = [];
  const provider: HttpServer = createServer(async (request, response) => {
    let body = "";
    for await (const chunk of request.setEncoding("utf8")) body += chunk;
    requests.push(JSON.parse(body));
    response.setHeader("content-type", "application/json").end(JSON.stringify(answers.shift()));
  });
  provider.listen(0, "127.0.0.1");
  await once(provider, "listening");
  const url = `http://127.0.0.1:${(provider.address() as AddressInfo).port}`;
  return { url, requests, [Symbol.asyncDispose]: async () => void provider.close().closeAllConnections() };
}
