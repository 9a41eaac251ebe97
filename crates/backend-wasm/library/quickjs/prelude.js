// The world that code for Node expects, as far as there is one here: no processes, no sockets, no threads.

import * as std from "qjs:std";
import * as os from "qjs:os";
import { Buffer } from "node:buffer";
import * as buffer from "node:buffer";
import fs from "node:fs";
import promises from "node:fs/promises";
import path from "node:path";
import process from "node:process";
import system from "node:os";
import util from "node:util";

const { compile, encode, decode } = globalThis.__host;

const builtins = { buffer, fs, "fs/promises": promises, os: system, path, process, util };

const write = (file, words) => {
  file.puts(util.format(...words) + "\n");
  file.flush();
};
const out = (...words) => write(std.out, words);
const err = (...words) => write(std.err, words);
globalThis.console = { log: out, info: out, debug: out, dir: (value) => out(value), error: err, warn: err, trace: err };

Object.assign(globalThis, {
  Buffer,
  global: globalThis,
  process,
  setTimeout: (act, time = 0, ...args) => os.setTimeout(() => act(...args), time),
  setInterval: (act, time = 0, ...args) => os.setInterval(() => act(...args), time),
  setImmediate: (act, ...args) => os.setTimeout(() => act(...args), 0),
  clearTimeout: (timer) => timer && os.clearTimeout(timer),
  clearInterval: (timer) => timer && os.clearInterval(timer),
  clearImmediate: (timer) => timer && os.clearTimeout(timer),
  TextEncoder: class TextEncoder {
    encode(text = "") { return new Uint8Array(encode(String(text))); }
  },
  TextDecoder: class TextDecoder {
    decode(bytes = new Uint8Array()) {
      const view = ArrayBuffer.isView(bytes) ? bytes : new Uint8Array(bytes);
      return decode(view.buffer, view.byteOffset, view.byteLength);
    }
  },
});
if (!globalThis.structuredClone) globalThis.structuredClone = (value) => JSON.parse(JSON.stringify(value));

const loaded = {};

// The file that a name stands for, with the endings and the index that Node tries.
const locate = (name, from) => {
  const wanted = path.resolve(path.dirname(from), name);
  const found = [wanted, `${wanted}.js`, `${wanted}.json`, `${wanted}.cjs`, `${wanted}/index.js`].find((file) => {
    const [stat, error] = os.stat(file);
    return !error && (stat.mode & os.S_IFMT) === os.S_IFREG;
  });
  if (found) return found;
  throw Object.assign(new Error(`Cannot find module '${name}'`), { code: "MODULE_NOT_FOUND" });
};

const load = (file) => {
  if (loaded[file]) return loaded[file].exports;
  const module = (loaded[file] = { exports: {}, filename: file, id: file });
  const text = fs.readFileSync(file, "utf8");
  if (file.endsWith(".json")) return (module.exports = JSON.parse(text));
  const own = requireFrom(file);
  if (!requireFrom.main) requireFrom.main = module;
  own.main = requireFrom.main;
  const body = text.startsWith("#!") ? `//${text}` : text;
  const wrapped = `(function (exports, require, module, __filename, __dirname) {${body}\n})`;
  compile(wrapped, file).call(module.exports, module.exports, own, module, file, path.dirname(file));
  return module.exports;
};

const requireFrom = (file) => (name) => {
  const builtin = builtins[name.replace(/^node:/, "")];
  if (builtin) return builtin;
  if (!/^\.{0,2}\//.test(name)) {
    throw Object.assign(new Error(`Cannot find module '${name}'`), { code: "MODULE_NOT_FOUND" });
  }
  return load(locate(name, file));
};

const [script] = globalThis.__host.args;
delete globalThis.__host;
if (script.endsWith(".mjs")) await import(script);
else load(script);
