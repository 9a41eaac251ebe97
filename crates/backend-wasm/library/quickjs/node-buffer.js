// Bytes that can be turned into text and back.

const { encode, decode } = globalThis.__host;
const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

const toBase64 = (bytes) => {
  let text = "";
  for (let i = 0; i < bytes.length; i += 3) {
    const [one, two = 0, three = 0] = bytes.subarray(i, i + 3);
    const bits = (one << 16) | (two << 8) | three;
    for (const shift of [18, 12, 6, 0]) text += DIGITS[(bits >> shift) & 63];
  }
  const missing = (3 - (bytes.length % 3)) % 3;
  return text.slice(0, text.length - missing) + "=".repeat(missing);
};

const fromBase64 = (text) => {
  const clean = text.replace(/-/g, "+").replace(/_/g, "/").replace(/[^A-Za-z0-9+/]/g, "");
  const bytes = [];
  for (let i = 0; i < clean.length; i += 4) {
    const part = clean.slice(i, i + 4);
    let bits = 0;
    for (const digit of part.padEnd(4, "A")) bits = (bits << 6) | DIGITS.indexOf(digit);
    bytes.push(...[bits >> 16, bits >> 8, bits].slice(0, part.length - 1).map((byte) => byte & 255));
  }
  return bytes;
};

export class Buffer extends Uint8Array {
  static from(value, encoding = "utf8") {
    if (typeof value !== "string") return new Buffer(value);
    if (encoding === "hex") return new Buffer((value.match(/[0-9a-f]{2}/gi) ?? []).map((pair) => parseInt(pair, 16)));
    if (encoding === "base64" || encoding === "base64url") return new Buffer(fromBase64(value));
    if (encoding === "latin1" || encoding === "binary") return new Buffer([...value].map((c) => c.charCodeAt(0)));
    return new Buffer(encode(value));
  }
  static alloc(size) { return new Buffer(size); }
  static isBuffer(value) { return value instanceof Buffer; }
  static byteLength(text) { return encode(String(text)).byteLength; }
  static concat(parts) {
    const whole = new Buffer(parts.reduce((sum, part) => sum + part.length, 0));
    parts.reduce((at, part) => (whole.set(part, at), at + part.length), 0);
    return whole;
  }
  toString(encoding = "utf8") {
    if (encoding === "hex") return Array.from(this, (byte) => byte.toString(16).padStart(2, "0")).join("");
    if (encoding === "base64") return toBase64(this);
    if (encoding === "latin1" || encoding === "binary") return Array.from(this, (b) => String.fromCharCode(b)).join("");
    return decode(this.buffer, this.byteOffset, this.byteLength);
  }
  equals(other) { return this.length === other.length && this.every((byte, i) => byte === other[i]); }
}

globalThis.btoa = (text) => Buffer.from(String(text), "latin1").toString("base64");
globalThis.atob = (text) => Buffer.from(String(text), "base64").toString("latin1");
export default { Buffer };
