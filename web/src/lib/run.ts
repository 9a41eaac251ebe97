// One run on a page: started here, or followed.
import { useEffect, useRef, useState } from "preact/hooks";

import { Problem, runs } from "../api/client";
import type { ServerEvent } from "../api/events";
import type { ErrorDetail, RunRequest, RunResult, RunStarted } from "../api/schema";
import { Transcript } from "../ui/Output";
import { asProblem } from "./load";

export interface RunView {
  phase: "idle" | "waiting" | "running" | "ended";
  id: string | null;
  started: RunStarted | null;
  note: string | null;
  /** The approval that the run waits for. */
  approval: string | null;
  transcript: Transcript;
  result: RunResult | null;
  problem: Problem | null;
}

function fresh(phase: RunView["phase"]): RunView {
  return { phase, id: null, started: null, note: null, approval: null, transcript: new Transcript(), result: null, problem: null };
}

/** What an event changes, besides the transcript. */
function changed(event: ServerEvent): Partial<RunView> {
  switch (event.name) {
    case "awaiting_approval":
      return { phase: "waiting", id: event.data.id, approval: event.data.approval_id ?? null };
    case "pull":
      return { note: `Pulling the image ${event.data.image}` };
    case "start":
      return { phase: "running", id: event.data.id, started: event.data, note: null, approval: null };
    case "end":
      return { phase: "ended", result: event.data };
    case "error":
      return { phase: "ended", problem: problemOf(event.data.error) };
    default:
      return {};
  }
}

function problemOf({ code, message, hint, field }: ErrorDetail): Problem {
  return new Problem(0, code, message, hint, field ?? null);
}

export interface RunControl {
  view: RunView;
  start: (request: RunRequest) => void;
  follow: (id: string) => void;
  cancel: () => void;
}

export function useRun(): RunControl {
  const [view, setView] = useState(() => fresh("idle"));
  const leaving = useRef<AbortController | null>(null);
  // Whoever leaves the page gives up the run that it started.
  useEffect(() => () => leaving.current?.abort(), []);

  const watch = async (open: (signal: AbortSignal) => Promise<{ id: string; events: AsyncIterable<ServerEvent> }>) => {
    leaving.current?.abort();
    const controller = new AbortController();
    leaving.current = controller;
    const { transcript, ...rest } = fresh("waiting");
    setView({ transcript, ...rest });
    const update = (change: Partial<RunView>) => {
      if (!controller.signal.aborted) setView((before) => ({ ...before, ...change }));
    };
    try {
      const { id, events } = await open(controller.signal);
      update({ id });
      for await (const event of events) {
        if (event.name === "stdout" || event.name === "stderr") transcript.append(event.name, event.data.text);
        else update(changed(event));
      }
      update({ phase: "ended" });
    } catch (cause) {
      update({ phase: "ended", problem: asProblem(cause) });
    }
  };

  return {
    view,
    start: (request) => void watch((signal) => runs.start(request, signal)),
    follow: (id) => void watch(async (signal) => ({ id, events: await runs.follow(id, signal) })),
    cancel: () => {
      if (view.id && view.phase !== "ended") {
        runs.cancel(view.id).catch((cause: unknown) => setView((before) => ({ ...before, problem: asProblem(cause) })));
      }
    },
  };
}
