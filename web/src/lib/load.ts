import { useCallback, useEffect, useRef, useState } from "preact/hooks";

import { Problem } from "../api/client";

export interface Loaded<T> {
  value: T | null;
  problem: Problem | null;
  reload: () => void;
}

/** Fetches something when the page opens and when `key` changes, and again every so often if `every` says so. */
export function useLoaded<T>(fetcher: () => Promise<T>, key: string, every?: number): Loaded<T> {
  const [state, setState] = useState<{ key: string; value: T | null; problem: Problem | null }>(
    { key, value: null, problem: null },
  );
  const latest = useRef(fetcher);
  latest.current = fetcher;
  const current = useRef(key);
  current.current = key;

  const load = useCallback(async () => {
    const asked = current.current;
    try {
      const value = await latest.current();
      if (asked === current.current) setState({ key: asked, value, problem: null });
    } catch (cause) {
      if (asked === current.current) setState((before) => ({ ...before, key: asked, problem: asProblem(cause) }));
    }
  }, []);

  useEffect(() => {
    void load();
    if (!every) return undefined;
    const timer = setInterval(() => {
      if (!document.hidden) void load();
    }, every);
    return () => clearInterval(timer);
  }, [key, every, load]);

  return { value: state.value, problem: state.problem, reload: () => void load() };
}

export function asProblem(cause: unknown): Problem {
  if (cause instanceof Problem) return cause;
  const message = cause instanceof Error ? cause.message : String(cause);
  return new Problem(0, "unknown", message, "reload the page, and try again");
}
