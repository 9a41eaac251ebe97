/** A tool for the AI SDK (the package `ai`). */
import { jsonSchema, type Tool, tool } from "ai";
import type { Result } from "./result.js";
import { type CodeToolInput, type CodeToolOptions, codeTool } from "./tools.js";

/** A tool with which a model runs code. The program gets the whole result, the model a text. */
export function belljarTool(options: CodeToolOptions = {}): Tool<CodeToolInput, Result> {
  const code = codeTool(options);
  return tool({
    description: code.description,
    inputSchema: jsonSchema<CodeToolInput>(code.parameters),
    execute: (input, { abortSignal }): Promise<Result> => code.run(input, { signal: abortSignal }),
    toModelOutput: ({ output }) => ({ type: "text", value: code.text(output) }),
  });
}
