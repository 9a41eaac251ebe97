/** A tool for Mastra (the package `@mastra/core`). */
import { createTool, type Tool } from "@mastra/core/tools";
import type { Result } from "./result.js";
import { type CodeToolInput, type CodeToolOptions, codeTool } from "./tools.js";

/** A tool with which an agent runs code. The program gets the whole result, the model a text. */
export function belljarTool(options: CodeToolOptions = {}): Tool<CodeToolInput, Result> {
  const code = codeTool(options);
  return createTool({
    id: code.name,
    description: code.description,
    inputSchema: code.parameters,
    execute: (input, context) => code.run(input as CodeToolInput, { signal: context?.abortSignal }),
    toModelOutput: (output) => ({ type: "text", value: code.text(output as Result) }),
  }) as unknown as Tool<CodeToolInput, Result>;
}
