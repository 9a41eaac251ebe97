import { toBase64 } from "./bytes.js";
import { camelCase } from "./case.js";
import { InvalidRequestError } from "./errors.js";
import type * as wire from "./wire.js";

/** A language by its name or an alias. `languages()` lists what the server has. */
export type Language = wire.LanguageName | wire.LanguageAlias | (string & {});

/** A number of bytes with a unit, in powers of 1024: `"256M"`. */
export type Size = `${number}${"K" | "M" | "G"}`;

/** A file to put into the working directory before the program starts. */
export type InputFile = { path: string; executable?: boolean } & (
  | { content: string | Uint8Array }
  /** A file that an earlier run collected. */
  | { fromRun: string; fromPath?: string }
  /** A file that was uploaded: its id. */
  | { upload: string }
);

/** What can be asked of a run. What is left out has the server's default. */
export interface RunOptions {
  /** Wall-clock time for the program and everything that it starts. 10 s by default. */
  timeoutMs?: number | undefined;
  /** Wall-clock time for the compiler. 30 s by default. */
  compileTimeoutMs?: number | undefined;
  /** CPU time for everything that the run starts. Not limited by default. */
  cpuMs?: number | undefined;
  /** Memory and swap together. 256 MB by default. */
  memoryBytes?: number | undefined;
  /** The same as `memoryBytes`, with a unit: `"256M"`. */
  memory?: Size | undefined;
  /** Memory for the compiler. 512 MB by default. */
  compileMemoryBytes?: number | undefined;
  /** How many CPUs the run may use; 0.5 is half of one. 1 by default. */
  cpus?: number | undefined;
  /** Processes and threads at a time. 50 by default. */
  pids?: number | undefined;
  /** Everything that the program can write to files. 64 MB by default. */
  diskBytes?: number | undefined;
  /** The same as `diskBytes`, with a unit. */
  disk?: Size | undefined;
  /** How much of stdout, and how much of stderr, is kept. 1 MB by default. */
  outputBytes?: number | undefined;

  /** What the program reads from standard input. */
  stdin?: string | undefined;
  /** Arguments of the program. */
  args?: readonly string[] | undefined;
  /** Environment variables of the program. */
  env?: Readonly<Record<string, string>> | undefined;
  /** Files for the working directory: a list, or an object from path to content. */
  files?: readonly InputFile[] | Readonly<Record<string, string | Uint8Array>> | undefined;
  /** Files to bring back after the run, as glob patterns. */
  collect?: readonly string[] | undefined;
  /** Python: whether what matplotlib's `show` would have shown comes back in `files`. */
  plots?: boolean | undefined;
  /** Whether a program that lacks a package gets a line on stderr that says how to get it. */
  hints?: boolean | undefined;
  /** Whether the result also has the output byte for byte. */
  outputBase64?: boolean | undefined;

  /** What the program can reach over the network: `"none"` by default. */
  network?: wire.NetworkAccess | undefined;
  /** Hosts whose secrets the server adds to the program's requests, outside of the box. */
  secrets?: readonly string[] | undefined;
  /** What isolates the run: `"auto"` by default. */
  backend?: wire.BackendChoice | undefined;
  /** The OCI image to run in. */
  image?: string | undefined;
  /** A directory on the server to show at `/work`. */
  workspace?: string | undefined;
  /** Whether the program can write to a layer over the workspace, which is gone afterwards. */
  writable?: boolean | undefined;
  /** Whether the result says what the program did to a writable workspace. */
  changes?: boolean | undefined;
  /** Guarantees to do without if the backend cannot keep them. */
  waive?: readonly wire.GuaranteeName[] | undefined;
  /** The only modules that the code may import. */
  allowedImports?: readonly string[] | undefined;

  /** Cancels the run when it is aborted. */
  signal?: AbortSignal | undefined;
  /** Runs once, however often a request with this key is sent. Every run has a key of its own if this is left out. */
  idempotencyKey?: string | undefined;
}

export interface CallOptions {
  /** Ends the call when it is aborted. */
  signal?: AbortSignal | undefined;
}

export interface PageOptions extends CallOptions {
  /** The size of a page, from 1 to 200. */
  limit?: number | undefined;
  /** `nextCursor` of the page before. */
  cursor?: string | undefined;
}

type Limit = keyof wire.Limits;
type Field = Exclude<keyof wire.RunRequest, "language" | "code" | "limits" | "files">;
type Place = { limit: Limit } | { size: Limit } | { field: Field } | "files" | "call";

/** Where each option goes in the request. */
const PLACES = {
  timeoutMs: { limit: "timeout_ms" },
  compileTimeoutMs: { limit: "compile_timeout_ms" },
  cpuMs: { limit: "cpu_ms" },
  memoryBytes: { limit: "memory_bytes" },
  memory: { size: "memory_bytes" },
  compileMemoryBytes: { limit: "compile_memory_bytes" },
  cpus: { limit: "cpus" },
  pids: { limit: "pids" },
  diskBytes: { limit: "disk_bytes" },
  disk: { size: "disk_bytes" },
  outputBytes: { limit: "output_bytes" },
  stdin: { field: "stdin" },
  args: { field: "args" },
  env: { field: "env" },
  files: "files",
  collect: { field: "collect" },
  plots: { field: "plots" },
  hints: { field: "hints" },
  outputBase64: { field: "output_base64" },
  network: { field: "network" },
  secrets: { field: "secrets" },
  backend: { field: "backend" },
  image: { field: "image" },
  workspace: { field: "workspace" },
  writable: { field: "writable" },
  changes: { field: "changes" },
  waive: { field: "waive" },
  allowedImports: { field: "allowed_imports" },
  signal: "call",
  idempotencyKey: "call",
} as const satisfies Record<keyof RunOptions, Place>;

/** A field of the request that no option sets would be an error of the compiler here: what is assigned is not `true`. */
type Placed = (typeof PLACES)[keyof RunOptions];
type Forgotten = Exclude<Field, Extract<Placed, { field: Field }>["field"]> | Exclude<Limit, Extract<Placed, { limit: Limit }>["limit"]>;
true satisfies [Forgotten] extends [never] ? true : Forgotten;

/** The names of all options. */
export const OPTIONS: readonly string[] = Object.keys(PLACES);

/** The request that the server gets for a run. */
export function requestOf(language: Language, code: string, options: RunOptions): wire.RunRequest {
  refuseUnknown("run", options, OPTIONS);
  if (typeof language !== "string") throw invalid("language", "the language has to be a string", 'write "python"');
  if (typeof code !== "string") throw invalid("code", "the code has to be a string", "pass the text of the program, not a path");
  // A list would be a batch, whose answer is not a result.
  if (options.stdin !== undefined && typeof options.stdin !== "string") {
    throw invalid("stdin", "stdin has to be a string", "runBatch takes many inputs");
  }

  const request: Record<string, unknown> = { language, code };
  const limits: Partial<Record<Limit, number>> = {};
  for (const [name, value] of Object.entries(options)) {
    const place: Place = PLACES[name as keyof RunOptions];
    if (value === undefined || place === "call") continue;
    if (place === "files") request["files"] = filesOf(value);
    else if ("field" in place) request[place.field] = value;
    else {
      const limit = "limit" in place ? place.limit : place.size;
      if (limits[limit] !== undefined) throw invalid(name, `'${name}' says the same as another option`, "give one of the two");
      limits[limit] = "limit" in place ? value : bytesOf(name, value);
    }
  }
  if (Object.keys(limits).length > 0) request["limits"] = limits;
  return request as wire.RunRequest;
}

/** An option that nothing reads is a mistake: it must not pass silently. */
export function refuseUnknown(what: string, options: object, known: readonly string[]): void {
  if (options === null || typeof options !== "object") {
    throw invalid(undefined, `the options of ${what} have to be an object`, `such as { ${known[0]}: … }`);
  }
  for (const name of Object.keys(options)) {
    if (known.includes(name)) continue;
    const meant = nearest(name, known);
    const hint = meant ? `did you mean '${meant}'?` : `${what} takes: ${known.join(", ")}`;
    throw invalid(name, `${what} has no option '${name}'`, hint);
  }
}

function nearest(name: string, known: readonly string[]): string | undefined {
  const wanted = camelCase(name).toLowerCase();
  return known.find((one) => one.toLowerCase() === wanted) ?? known.find((one) => one.toLowerCase().startsWith(wanted));
}

const UNITS: Record<string, number> = { K: 1024, M: 1024 ** 2, G: 1024 ** 3 };

function bytesOf(name: string, size: unknown): number {
  const [, number, unit] = /^(\d+(?:\.\d+)?)([KMG])$/.exec(String(size)) ?? [];
  if (number === undefined || unit === undefined) {
    throw invalid(name, `'${size}' is not a size`, 'write a number and a unit, such as "256M"; the option with Bytes takes numbers');
  }
  return Math.round(Number(number) * UNITS[unit]!);
}

function filesOf(files: NonNullable<RunOptions["files"]>): wire.InputFile[] {
  if (Array.isArray(files)) return files.map(fileOf);
  return Object.entries(files as Record<string, string | Uint8Array>).map(([path, content]) => fileOf({ path, content }));
}

const FILE_FIELDS = ["path", "content", "executable", "fromRun", "fromPath", "upload"];

function fileOf(file: InputFile): wire.InputFile {
  refuseUnknown("a file", file, FILE_FIELDS);
  const { path } = file;
  const executable = file.executable === undefined ? {} : { executable: file.executable };
  if ("upload" in file) return { path, upload: file.upload, ...executable };
  if ("fromRun" in file) {
    return { path, from_run: file.fromRun, ...(file.fromPath === undefined ? {} : { from_path: file.fromPath }), ...executable };
  }
  if (typeof file.content === "string") return { path, content: file.content, ...executable };
  if (file.content instanceof Uint8Array) return { path, content_base64: toBase64(file.content), ...executable };
  throw invalid("files", `the file '${path}' has no content`, "give content as a string or a Uint8Array, or fromRun, or upload");
}

export function invalid(field: string | undefined, message: string, hint: string): InvalidRequestError {
  return new InvalidRequestError({ code: "invalid_request", message, hint, field });
}
