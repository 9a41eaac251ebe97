// Which files are pictures is decided by their content; a name can claim anything.
const SIGNATURES: Array<[string, number[]]> = [
  ["image/png", [0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]],
  ["image/jpeg", [0xff, 0xd8, 0xff]],
  ["image/gif", [0x47, 0x49, 0x46, 0x38]],
  ["image/webp", [0x52, 0x49, 0x46, 0x46]],
];
/** Larger ones can be downloaded. */
const MOST_BYTES = 8 << 20;

export function decode(base64: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

/** The type of a picture that an <img> can show, or nothing. */
export function pictureType(path: string, content: Uint8Array): string | null {
  if (content.length > MOST_BYTES) return null;
  const known = SIGNATURES.find(([, signature]) => signature.every((byte, at) => content[at] === byte));
  if (known) return known[0];
  const begins = new TextDecoder().decode(content.slice(0, 512)).trimStart();
  return /\.svg$/i.test(path) && /^<(\?xml|!--|!doctype svg|svg)/i.test(begins) ? "image/svg+xml" : null;
}

/** An address for an <img> alone: in an <img>, an SVG runs no script and fetches nothing, and browsers do not open it as a page. */
export function pictureAddress(type: string, base64: string): string {
  return `data:${type};base64,${base64}`;
}
