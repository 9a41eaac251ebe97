// One run on a page: started here, or followed.
import { useEffect, useRef, useState } from "preact/hooks";

import { Problem, runs } from "../api/client";
import type { ServerEvent } from "../api/events";
import type { ErrorDetail, NetworkActivity, RunRequest, RunResult, RunStarted } from "../api/schema";
import { Transcript } from "../ui/Output";
import { asProblem } from "./load";

/** The most events about the network on the page. */
const MOST_EVENTS = 200;

export interface RunView {
  phase: "idle" | "waiting" | "running" | "ended";
  id: string | null;
  started: RunStarted | null;
  note: string | null;
  /** The approval that the run waits for. */
  approval: string | null;
  transcript: Transcript;
  /** What the program did with its network, the last of it. */
  network: NetworkActivity[];
  result: RunResult | null;
  problem: Problem | null;
}

function fresh(phase: RunView["phase"]): RunView {
  const [transcript, network] = [new Transcript(), []];
  return { phase, id: null, started: null, note: null, approval: null, transcript, network, result: null, problem: null };
}

/** What an event changes, besides the transcript. */
function changed(event: ServerEvent, before: RunView): Partial<RunView> {
  switch (event.name) {
    case "awaiting_approval":
      return { phase: "waiting", id: event.data.id, approval: event.data.approval_id ?? null };
    case "pull":
      return { note: `Pulling the image ${event.data.image}` };
    case "start":
      return { phase: "running", id: event.data.id, started: event.data, note: null, approval: null };
    case "network":
      return { network: [...before.network, event.data].slice(-MOST_EVENTS) };
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
    const change = (changes: (before: RunView) => Partial<RunView>) => {
      if (!controller.signal.aborted) setView((before) => ({ ...before, ...changes(before) }));
    };
    const update = (changes: Partial<RunView>) => change(() => changes);
    try {
      const { id, events } = await open(controller.signal);
      update({ id });
      for await (const event of events) {
        if (event.name === "stdout" || event.name === "stderr") transcript.append(event.name, event.data.text);
        else change((before) => changed(event, before));
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
