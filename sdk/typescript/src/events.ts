import { type Camel, camel } from "./case.js";
import { errorOf } from "./errors.js";
import { type Result, resultOf, type WireResult } from "./result.js";
import type * as wire from "./wire.js";

/** What happens during a run. The last event is `end`. */
export type RunEvent =
  | ({ type: "awaiting_approval" } & Camel<wire.RunState>)
  | ({ type: "pull" } & Camel<wire.ImagePull>)
  | ({ type: "start" } & Camel<wire.RunStarted>)
  | ({ type: "stage" } & Camel<wire.StageStarted>)
  | ({ type: "network" } & Camel<wire.NetworkActivity>)
  | { type: "stdout"; text: string }
  | { type: "stderr"; text: string }
  | { type: "end"; result: Result };

const PLAIN = ["awaiting_approval", "pull", "start", "stage", "network", "stdout", "stderr"];

/** The events in a body of server-sent events. An `error` event is thrown. Events that a newer server may have are left out. */
export async function* eventsIn(body: AsyncIterable<Uint8Array>): AsyncGenerator<RunEvent, void, undefined> {
  for await (const { event, data } of messagesIn(body)) {
    if (event === "end") yield { type: "end", result: resultOf(JSON.parse(data) as WireResult) };
    else if (event === "error") throw errorOf(JSON.parse(data).error);
    else if (PLAIN.includes(event)) yield { type: event, ...camel(JSON.parse(data)) } as RunEvent;
  }
}

/** The messages of a stream of server-sent events, as the HTML standard describes them. */
async function* messagesIn(body: AsyncIterable<Uint8Array>): AsyncGenerator<{ event: string; data: string }> {
  let event = "";
  let data: string[] = [];
  for await (const line of linesIn(body)) {
    if (line === "") {
      if (data.length > 0) yield { event, data: data.join("\n") };
      event = "";
      data = [];
      continue;
    }
    // A line that begins with a colon is a comment: the server's heartbeat.
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") event = value;
    else if (field === "data") data.push(value);
  }
}

async function* linesIn(body: AsyncIterable<Uint8Array>): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  // A long line comes in many pieces: they are put together once, when its end is there.
  let begun: string[] = [];
  for await (const chunk of body) {
    const parts = decoder.decode(chunk, { stream: true }).split("\n");
    for (const part of parts.slice(0, -1)) {
      const line = [...begun, part].join("");
      begun = [];
      yield line.endsWith("\r") ? line.slice(0, -1) : line;
    }
    begun.push(parts[parts.length - 1]!);
  }
}
