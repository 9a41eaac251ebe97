/**
 * The end of one call before its time. It has what a call needs of an `AbortSignal`; making one of those and listening to it
 * costs as much as everything else that this package does for a call. Only `fetch` needs a real one.
 */
export class Ending {
  aborted = false;
  reason: unknown;
  readonly #acts = new Set<() => void>();

  abort(reason: unknown): void {
    if (this.aborted) return;
    this.aborted = true;
    this.reason = reason;
    for (const act of this.#acts) act();
  }

  throwIfAborted(): void {
    if (this.aborted) throw this.reason;
  }

  /** As `onAbort`. */
  listen(act: () => void): () => void {
    if (this.aborted) act();
    else this.#acts.add(act);
    return () => void this.#acts.delete(act);
  }

  /** The same as a signal. It is gone with this object: it does not outlive the call. */
  signal(): AbortSignal {
    const controller = new AbortController();
    this.listen(() => controller.abort(this.reason));
    return controller.signal;
  }
}

/** What is to happen when a signal is aborted. Many calls may share one: Node warns about a signal with many listeners. */
const linked = new WeakMap<AbortSignal, Set<() => void>>();

/** Calls `act` when the signal is aborted, at once if it has been. Returns how to stop listening. */
export function onAbort(signal: AbortSignal | Ending | undefined, act: () => void): () => void {
  if (!signal) return () => {};
  if (signal instanceof Ending) return signal.listen(act);
  if (signal.aborted) {
    act();
    return () => {};
  }
  const acts = linked.get(signal) ?? new Set();
  if (acts.size === 0) {
    linked.set(signal, acts);
    signal.addEventListener("abort", actOnAbort);
  }
  acts.add(act);
  return () => {
    acts.delete(act);
    if (acts.size === 0) signal.removeEventListener("abort", actOnAbort);
  };
}

function actOnAbort(this: AbortSignal): void {
  linked.get(this)?.forEach((act) => act());
}

export function pause(ms: number, signal: AbortSignal | Ending): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      unlink();
      resolve();
    }, ms);
    const unlink = onAbort(signal, () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}
