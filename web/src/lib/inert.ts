// Text from boxes is shown as it is, with nothing left in it that could change how other text looks.

/** C0 and C1 control characters except tab and line feed, and the characters that change the direction of text. */
const SPECIAL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g;

/** Replaces what has an effect but no shape by something to see: U+202E becomes `⟨U+202E⟩`, ESC becomes `␛`. */
export function visible(text: string): string {
  return text.replace(/\r\n/g, "\n").replace(SPECIAL, symbol);
}

/** The same on one line: for names, where a line break would be a trick too. */
export function visibleLine(text: string): string {
  return visible(text).replace(/[\n\t]/g, symbol);
}

function symbol(character: string): string {
  const code = character.charCodeAt(0);
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  if (code === 0x7f) return "\u2421";
  return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}
