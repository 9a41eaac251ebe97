/** A variable of the environment, where there is one. An empty one is like none; Deno may not let us read it. */
export function environment(name: string): string | undefined {
  try {
    return globalThis.process?.env?.[name] || undefined;
  } catch {
    return undefined;
  }
}
