/** A tool for LangChain.js (the package `@langchain/core`). */
import { DynamicStructuredTool } from "@langchain/core/tools";
import type { Result } from "./result.js";
import { type CodeToolInput, type CodeToolOptions, type ObjectSchema, codeTool } from "./tools.js";

export type BelljarTool = DynamicStructuredTool<ObjectSchema, CodeToolInput, CodeToolInput, [string, Result]>;

/** A tool with which a model runs code. The model gets a text; the whole result is the message's `artifact`. */
export function belljarTool(options: CodeToolOptions = {}): BelljarTool {
  const code = codeTool(options);
  return new DynamicStructuredTool({
    name: code.name,
    description: code.description,
    schema: code.parameters,
    responseFormat: "content_and_artifact",
    func: async (input: CodeToolInput, _manager, config): Promise<[string, Result]> => {
      const result = await code.run(input, { signal: config?.signal });
      return [code.text(result), result];
    },
  });
}
