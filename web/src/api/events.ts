// Server-sent events of a run, read from the body of a response: EventSource can neither POST nor report an error object.
import type * as Schema from "./schema";

export type ServerEvent =
  | { name: "awaiting_approval"; data: Schema.RunState }
  | { name: "pull"; data: Schema.ImagePull }
  | { name: "start"; data: Schema.RunStarted }
  | { name: "network"; data: Schema.NetworkActivity }
  | { name: "stdout" | "stderr"; data: Schema.OutputText }
  | { name: "end"; data: Schema.RunResult }
  | { name: "error"; data: Schema.Error };

export async function* readEvents(response: Response): AsyncGenerator<ServerEvent> {
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop() ?? "";
      for (const block of blocks) {
        const event = parseEvent(block);
        if (event) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** One event, or nothing if the block is a comment that only keeps the connection open. */
export function parseEvent(block: string): ServerEvent | null {
  let name = "";
  const data: string[] = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  return name && data.length > 0 ? ({ name, data: JSON.parse(data.join("\n")) } as ServerEvent) : null;
}
