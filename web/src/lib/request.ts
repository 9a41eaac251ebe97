// The form of the playground, and the request that it stands for.
import type { BackendChoice, InputFile, Limits, NetworkAccess, RunRequest } from "../api/schema";

export interface Form {
  language: string;
  code: string;
  stdin: string;
  args: string;
  env: string;
  collect: string;
  network: string;
  backend: string;
  timeout: string;
  memory: string;
  cpus: string;
  pids: string;
  disk: string;
  files: AttachedFile[];
}

export interface AttachedFile {
  path: string;
  size: number;
  base64: string;
}

export const EMPTY: Form = {
  language: "python",
  code: "",
  stdin: "",
  args: "",
  env: "",
  collect: "*",
  network: "none",
  backend: "auto",
  timeout: "",
  memory: "",
  cpus: "",
  pids: "",
  disk: "",
  files: [],
};

const MIB = 1 << 20;

export function requestOf(form: Form): RunRequest {
  const collect = form.collect.split(/[\s,]+/).filter(Boolean);
  const args = form.args.split("\n").filter(Boolean);
  return {
    language: form.language as RunRequest["language"],
    code: form.code,
    hints: true,
    ...(form.language === "python" ? { plots: true } : {}),
    ...(form.stdin ? { stdin: form.stdin } : {}),
    ...(args.length ? { args } : {}),
    ...(form.env.trim() ? { env: variables(form.env) } : {}),
    ...(collect.length ? { collect } : {}),
    ...(form.network === "none" ? {} : { network: networkOf(form.network) }),
    ...(form.backend === "auto" ? {} : { backend: form.backend as BackendChoice }),
    ...(form.files.length ? { files: form.files.map(inputFile) } : {}),
    limits: limitsOf(form),
  };
}

/** As people write lists, with spaces. */
function networkOf(text: string): NetworkAccess {
  if (!text.startsWith("allow:")) return text as NetworkAccess;
  const hosts = text.slice("allow:".length).split(/[\s,]+/);
  return `allow:${hosts.filter(Boolean).join(",")}` as NetworkAccess;
}

function limitsOf(form: Form): Limits {
  const limit = (name: keyof Limits, text: string, factor: number): Limits =>
    text.trim() === "" ? {} : { [name]: name === "cpus" ? Number(text) : Math.round(Number(text) * factor) };
  return {
    ...limit("timeout_ms", form.timeout, 1000),
    ...limit("memory_bytes", form.memory, MIB),
    ...limit("cpus", form.cpus, 1),
    ...limit("pids", form.pids, 1),
    ...limit("disk_bytes", form.disk, MIB),
  };
}

function variables(text: string): Record<string, string> {
  const pairs = text.split("\n").filter((line) => line.includes("="));
  return Object.fromEntries(pairs.map((line) => [line.slice(0, line.indexOf("=")).trim(), line.slice(line.indexOf("=") + 1)]));
}

function inputFile({ path, base64 }: AttachedFile): InputFile {
  return { path, content_base64: base64 };
}

/** A file that somebody chose, as base64. */
export async function attach(file: File): Promise<AttachedFile> {
  const content = new Uint8Array(await file.arrayBuffer());
  let binary = "";
  for (const byte of content) binary += String.fromCharCode(byte);
  return { path: file.name, size: file.size, base64: btoa(binary) };
}
