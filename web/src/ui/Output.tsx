import { useEffect, useRef } from "preact/hooks";

import { visible } from "../lib/inert";

export type Stream = "stdout" | "stderr";

/** The most characters on the page: browsers slow down with more. The result has the rest. */
const MOST_SHOWN = 1_000_000;

/** What a program has written, in the order of its arrival. */
export class Transcript {
  readonly pieces: Array<{ stream: Stream; text: string }> = [];
  omitted = 0;
  private shown = 0;
  private listener: (() => void) | null = null;

  append(stream: Stream, text: string): void {
    const room = Math.max(MOST_SHOWN - this.shown, 0);
    this.omitted += Math.max(text.length - room, 0);
    this.shown += Math.min(text.length, room);
    if (room > 0) this.pieces.push({ stream, text: text.slice(0, room) });
    this.listener?.();
  }

  listen(listener: () => void): () => void {
    this.listener = listener;
    return () => {
      this.listener = null;
    };
  }
}

/** Only ever adds text nodes: nothing in the output is markup. */
export function Output({ transcript }: { transcript: Transcript }) {
  const place = useRef<HTMLPreElement>(null);
  useEffect(() => {
    const { current } = place;
    if (!current) return undefined;
    current.textContent = "";
    let next = 0;
    const write = () => {
      const atEnd = current.scrollHeight - current.scrollTop - current.clientHeight < 40;
      for (; next < transcript.pieces.length; next += 1) add(current, transcript.pieces[next]!);
      if (atEnd) current.scrollTop = current.scrollHeight;
      current.dataset["omitted"] = transcript.omitted > 0 ? `${transcript.omitted} more characters are not shown` : "";
    };
    write();
    return transcript.listen(write);
  }, [transcript]);
  return <pre class="output" ref={place} dir="ltr" tabIndex={0} role="log" aria-label="Output" />;
}

function add(place: HTMLElement, { stream, text }: { stream: Stream; text: string }): void {
  const last = place.lastElementChild;
  if (last?.className === stream) {
    last.append(visible(text));
    return;
  }
  const part = document.createElement("span");
  part.className = stream;
  part.append(visible(text));
  place.append(part);
}
