// Paths, as text.

import * as os from "qjs:os";

export const sep = "/";
export const delimiter = ":";
export const isAbsolute = (path) => path.startsWith("/");

export function normalize(path) {
  const absolute = isAbsolute(path);
  const names = [];
  for (const name of path.split("/")) {
    if (name === "" || name === ".") continue;
    if (name !== "..") names.push(name);
    else if (names.length && names.at(-1) !== "..") names.pop();
    else if (!absolute) names.push("..");
  }
  const clean = names.join("/");
  return absolute ? `/${clean}` : clean || ".";
}

export const join = (...parts) => normalize(parts.filter(Boolean).join("/") || ".");

export function resolve(...parts) {
  let path = "";
  for (const part of parts.reverse()) {
    if (!part) continue;
    path = path ? `${part}/${path}` : part;
    if (isAbsolute(path)) return normalize(path);
  }
  return normalize(path ? `${os.getcwd()[0]}/${path}` : os.getcwd()[0]);
}

export function dirname(path) {
  const at = path.replace(/\/+$/, "").lastIndexOf("/");
  if (at < 0) return ".";
  return path.slice(0, at) || "/";
}

export function basename(path, ending = "") {
  const name = path.replace(/\/+$/, "").split("/").pop();
  return ending && name !== ending && name.endsWith(ending) ? name.slice(0, -ending.length) : name;
}

export function extname(path) {
  const name = basename(path);
  const at = name.lastIndexOf(".");
  return at > 0 ? name.slice(at) : "";
}

export function relative(from, to) {
  const [here, there] = [resolve(from), resolve(to)].map((path) => path.split("/").filter(Boolean));
  let same = 0;
  while (same < here.length && here[same] === there[same]) same++;
  return [...here.slice(same).map(() => ".."), ...there.slice(same)].join("/");
}

const path = { sep, delimiter, isAbsolute, normalize, join, resolve, dirname, basename, extname, relative };
path.posix = path;
export default path;
