/** What is to happen when a signal is aborted. Many calls may share one: Node warns about a signal with many listeners. */
const linked = new WeakMap<AbortSignal, Set<() => void>>();

/** Calls `act` when the signal is aborted, at once if it has been. Returns how to stop listening. */
export function onAbort(signal: AbortSignal | undefined, act: () => void): () => void {
  if (!signal) return () => {};
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

export function pause(ms: number, signal: AbortSignal): Promise<void> {
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
