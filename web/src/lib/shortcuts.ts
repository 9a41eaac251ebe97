// Shortcuts for the whole page. Those of one character work only outside of fields that take text.
import { useEffect, useRef } from "preact/hooks";

/** What keys do, such as `g r`, `?` or `Mod+Enter`. `Mod` is Control, or Command on a Mac. */
export type Shortcuts = Record<string, () => void>;

/** How long the second key of a sequence may take. */
const PAUSE_MS = 1500;

export function useShortcuts(shortcuts: Shortcuts): void {
  const latest = useRef(shortcuts);
  latest.current = shortcuts;
  useEffect(() => {
    let first = "";
    let pressed = 0;
    const listener = (event: KeyboardEvent) => {
      if (event.defaultPrevented || event.isComposing || ["Control", "Shift", "Alt", "Meta"].includes(event.key)) return;
      const key = nameOf(event);
      if (!key.startsWith("Mod+") && (takesText(event) || hasOpenDialog())) return;
      const sequence = first && event.timeStamp - pressed < PAUSE_MS ? `${first} ${key}` : key;
      first = key;
      pressed = event.timeStamp;
      const action = latest.current[sequence] ?? latest.current[key];
      if (!action) return;
      event.preventDefault();
      first = "";
      action();
    };
    addEventListener("keydown", listener);
    return () => removeEventListener("keydown", listener);
  }, []);
}

function nameOf(event: KeyboardEvent): string {
  const mod = event.ctrlKey || event.metaKey ? "Mod+" : "";
  return `${mod}${event.altKey ? "Alt+" : ""}${event.key}`;
}

function takesText(event: KeyboardEvent): boolean {
  const target = event.composedPath()[0];
  return (
    target instanceof HTMLInputElement ||
    target instanceof HTMLTextAreaElement ||
    target instanceof HTMLSelectElement ||
    (target instanceof HTMLElement && target.isContentEditable)
  );
}

function hasOpenDialog(): boolean {
  return document.querySelector("dialog[open]") !== null;
}
