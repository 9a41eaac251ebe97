// Stands in for the model in the examples of docs/typescript.md: it runs a program, and says what the program printed.
import { MockLanguageModelV3, MockLanguageModelV4 } from "ai/test";

const code = "n, found = 1, []\nwhile len(found) < 100:\n    n += 1\n    if all(n % p for p in found): found.append(n)\nprint(n)";
const usage = {
  inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
  outputTokens: { total: 1, text: 1, reasoning: 0 },
};

function answer(prompt: unknown) {
  const seen = /exit code 0\\nstdout:\\n(\d+)/.exec(JSON.stringify(prompt))?.[1];
  const input = JSON.stringify({ language: "python", code });
  const call = { type: "tool-call", toolCallId: "call-1", toolName: "run_code", input } as const;
  const said = { type: "text", text: `The 100th prime number is ${seen}.` } as const;
  const unified = seen ? ("stop" as const) : ("tool-calls" as const);
  return { content: [seen ? said : call], finishReason: { unified, raw: undefined }, usage, warnings: [] };
}

export const model = new MockLanguageModelV4({ doGenerate: async ({ prompt }) => answer(prompt) });
/** Mastra wraps models of the AI SDK itself; its type is that of a model that it has wrapped. */
export const mastraModel = new MockLanguageModelV3({ doGenerate: async ({ prompt }) => answer(prompt) }) as never;
