// Files, one call at a time.

import * as std from "qjs:std";
import * as os from "qjs:os";
import { Buffer } from "node:buffer";

const NAMES = new Map(Object.getOwnPropertyNames(std.Error).map((name) => [std.Error[name], name]));

const fail = (number, call, path) => {
  const code = NAMES.get(number) ?? `E${number}`;
  const message = `${code}: ${std.strerror(number).toLowerCase()}, ${call} '${path}'`;
  throw Object.assign(new Error(message), { code, errno: -number, syscall: call, path });
};

const check = (result, call, path) => (result < 0 ? fail(-result, call, path) : result);

const pair = ([value, error], call, path) => (error ? fail(error, call, path) : value);

const readAll = (fd) => {
  const parts = [];
  for (;;) {
    const part = new Buffer(1 << 16);
    const length = check(os.read(fd, part.buffer, 0, part.length), "read", fd);
    if (length === 0) return Buffer.concat(parts);
    parts.push(part.subarray(0, length));
  }
};

const encodingOf = (options) => (typeof options === "string" ? options : options?.encoding);

export function readFileSync(file, options) {
  const fd = typeof file === "number" ? file : check(os.open(String(file), os.O_RDONLY), "open", file);
  try {
    const bytes = readAll(fd);
    const encoding = encodingOf(options);
    return encoding ? bytes.toString(encoding) : bytes;
  } finally {
    if (fd !== file) os.close(fd);
  }
}

const put = (file, data, flags) => {
  const bytes = typeof data === "string" ? Buffer.from(data) : data;
  const fd = typeof file === "number" ? file : check(os.open(String(file), flags, 0o644), "open", file);
  try {
    let done = 0;
    while (done < bytes.byteLength) {
      done += check(os.write(fd, bytes.buffer, bytes.byteOffset + done, bytes.byteLength - done), "write", file);
    }
  } finally {
    if (fd !== file) os.close(fd);
  }
};

export const writeFileSync = (file, data, options) => {
  const appends = options?.flag === "a" ? os.O_APPEND : os.O_TRUNC;
  put(file, data, os.O_WRONLY | os.O_CREAT | appends);
};
export const appendFileSync = (file, data) => put(file, data, os.O_WRONLY | os.O_CREAT | os.O_APPEND);
export const writeSync = (fd, data) => (put(fd, data, 0), data.length);
export const unlinkSync = (path) => void check(os.remove(path), "unlink", path);
export const rmdirSync = (path) => void check(os.remove(path), "rmdir", path);
export const renameSync = (from, to) => void check(os.rename(from, to), "rename", from);
export const existsSync = (path) => os.stat(path)[1] === 0;

export function statSync(path) {
  const stat = pair(os.stat(path), "stat", path);
  const is = (kind) => () => (stat.mode & os.S_IFMT) === kind;
  return {
    ...stat,
    mtimeMs: stat.mtime,
    mtime: new Date(stat.mtime),
    isFile: is(os.S_IFREG),
    isDirectory: is(os.S_IFDIR),
    isSymbolicLink: () => false,
  };
}

export const readdirSync = (path) =>
  pair(os.readdir(path), "scandir", path).filter((name) => name !== "." && name !== "..").sort();

export function mkdirSync(path, options) {
  if (options?.recursive) {
    const above = path.replace(/\/+[^/]*\/*$/, "");
    if (above && above !== path && !existsSync(above)) mkdirSync(above, options);
    if (existsSync(path)) return;
  }
  check(os.mkdir(path, 0o755), "mkdir", path);
}

export function rmSync(path, options) {
  if (options?.force && !existsSync(path)) return;
  if (options?.recursive && statSync(path).isDirectory()) {
    readdirSync(path).forEach((name) => rmSync(`${path}/${name}`, options));
  }
  unlinkSync(path);
}

export const copyFileSync = (from, to) => writeFileSync(to, readFileSync(from));

const later = (act) => async (...args) => act(...args);

export const promises = {
  readFile: later(readFileSync),
  writeFile: later(writeFileSync),
  appendFile: later(appendFileSync),
  readdir: later(readdirSync),
  mkdir: later(mkdirSync),
  stat: later(statSync),
  unlink: later(unlinkSync),
  rename: later(renameSync),
  rm: later(rmSync),
};

const called = (act) => (...args) => {
  const done = args.pop();
  later(act)(...args).then((value) => done(null, value), done);
};
export const readFile = called(readFileSync);
export const writeFile = called(writeFileSync);

export default {
  readFileSync, writeFileSync, appendFileSync, writeSync, unlinkSync, rmdirSync, renameSync, existsSync, statSync,
  lstatSync: statSync, readdirSync, mkdirSync, rmSync, copyFileSync, promises, readFile, writeFile,
};
