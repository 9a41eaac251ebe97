// A model solves a task by running code: the loop around a model with tools, without a framework.
//
// The model here is a script, so that the example runs anywhere. Replace `ask` with a call of your provider's client, such as
// `anthropic.messages.create({ model, max_tokens: 1000, messages, tools: [tool.anthropic] })`.
import { codeTool } from "belljar/tools";

type ToolUse = { type: "tool_use"; id: string; name: string; input: unknown };
type ToolResult = { type: "tool_result"; tool_use_id: string; content: string; is_error: boolean };
type Message = { role: "user" | "assistant"; content: string | (ToolUse | ToolResult)[] };

const tool = codeTool({
  languages: ["python"],
  run: { timeoutMs: 5000, files: { "sales.csv": "month,amount\nJanuary,120\nFebruary,80\nMarch,175\n" } },
});

const messages: Message[] = [{ role: "user", content: "In which month did sales.csv have the highest amount?" }];
for (let turn = 0; turn < 10; turn++) {
  const answer = await ask(messages);
  messages.push({ role: "assistant", content: answer });
  if (typeof answer === "string") break;
  const results: ToolResult[] = [];
  for (const use of answer) results.push(await tool.answerAnthropic(use));
  messages.push({ role: "user", content: results });
}
for (const { role, content } of messages) {
  for (const part of typeof content === "string" ? [content] : content) console.log(`${role}: ${shown(part)}`);
}

/** The script: a first try that fails, a second one that works, and what the model makes of it. */
async function ask(history: Message[]): Promise<string | ToolUse[]> {
  const uses = history.filter((message) => message.role === "assistant").length;
  const programs = [
    "import csv\nprint(max(csv.DictReader(open('sales.csv')), key=lambda row: int(row['sales']))['month'])",
    "import csv\nprint(max(csv.DictReader(open('sales.csv')), key=lambda row: int(row['amount']))['month'])",
  ];
  const code = programs[uses];
  if (code !== undefined) return [{ type: "tool_use", id: `toolu_${uses}`, name: "run_code", input: { language: "python", code } }];
  const last = history.at(-1)?.content;
  const seen = Array.isArray(last) && last[0]?.type === "tool_result" ? last[0].content : "";
  return `It was ${seen.split("\n").at(-1)}.`;
}

function shown(part: string | ToolUse | ToolResult): string {
  if (typeof part === "string") return part;
  return part.type === "tool_use" ? `${part.name} ${part.id}` : part.content.split("\n")[0]!;
}
