import { fromBase64 } from "./bytes.js";
import { type Camel, camel } from "./case.js";
import type * as wire from "./wire.js";

export type Usage = Camel<wire.Usage>;
export type Isolation = Camel<wire.Isolation>;
export type Finding = Camel<wire.Finding>;
export type NetworkDenied = Camel<wire.NetworkDenied>;
export type CompileResult = Camel<wire.CompileResult>;
export type Changes = Camel<wire.Changes>;
export type Decision = Camel<wire.Decision>;

/** A file that a run brought back. */
export class CollectedFile {
  /** Where the file was, relative to the working directory. */
  readonly path: string;
  /** The size of its content, in bytes. */
  readonly size: number;
  /** Its content in base64. */
  readonly contentBase64: string;

  constructor(file: Camel<wire.CollectedFile>) {
    this.path = file.path;
    this.size = file.size;
    this.contentBase64 = file.contentBase64;
  }

  /** Its content. */
  bytes(): Uint8Array<ArrayBuffer> {
    return fromBase64(this.contentBase64);
  }

  /** Its content as text. Bytes that are not UTF-8 are replaced. */
  text(): string {
    return new TextDecoder().decode(this.bytes());
  }
}

/** What a run came to. A program that failed has one, too. */
export interface Result {
  /** The identifier of the run. */
  id: string;
  /** How the run ended. */
  status: wire.ResultStatus;
  /** The program's exit code: 124 if it timed out, 126 if it was denied, 137 if it ran out of memory, 128 plus the signal's number. */
  exitCode: number;
  /** The number of the signal that ended the program, or `null`. */
  signal: number | null;
  /** What the program wrote to standard output. Bytes that are not UTF-8 are replaced. */
  stdout: string;
  /** What the program wrote to standard error, and a line of Belljar's own if a limit ended it. */
  stderr: string;
  /** Standard output byte for byte. Only with `outputBase64`. */
  stdoutBase64?: string;
  /** Standard error byte for byte. Only with `outputBase64`. */
  stderrBase64?: string;
  /** Whether the middle of standard output is missing, because it exceeded `outputBytes`. */
  stdoutTruncated: boolean;
  /** Whether the middle of standard error is missing. */
  stderrTruncated: boolean;
  /** Whether a limit on time ended the program. */
  timedOut: boolean;
  /** Whether the limit on memory ended the program. */
  oomKilled: boolean;
  /** What the program used. */
  usage: Usage;
  /** What the compiler did, if the language is compiled, or `null`. */
  compile: CompileResult | null;
  /** What ended the run: the program, or its compiler. */
  stage: wire.StageName;
  /** Where the sandbox came from. */
  start: wire.StartKind;
  language: wire.LanguageName;
  /** What ran the code, such as `CPython 3.11.7`. */
  runtime: string;
  /** Why the run started cold although the server has a warm pool, or `null`. */
  coldReason: string | null;
  backend: wire.BackendName;
  /** The image that the code ran in, or `null` if the backend does not use images. */
  image: string | null;
  network: wire.NetworkAccess;
  /** What the program tried to reach in vain, the first ones. Only if it had a network that Belljar watches. */
  networkDenied?: NetworkDenied[];
  /** The guarantees that were kept, and those that the run did without. */
  isolation: Isolation;
  /** The files that `collect` asked for, and with `plots` the figures. */
  files?: CollectedFile[];
  /** What the program did to its workspace. Only with `changes`. */
  changes?: Changes;
  /** What was decided about the run before it could begin. Only if there is a policy. */
  decision?: Decision;
  /** What a scan of the code found. */
  findings: Finding[];
}

/** A field of the server's results that is missing above would be an error of the compiler here. */
type Forgotten = Exclude<keyof Camel<wire.RunResult>, keyof Result>;
true satisfies [Forgotten] extends [never] ? true : Forgotten;

/** A result as the server writes it: every ending has the same fields. */
export type WireResult = wire.RunResult;

export function resultOf(answer: WireResult): Result {
  const { files, ...rest } = answer;
  const result: Result = camel(rest);
  if (files) result.files = files.map((file) => new CollectedFile(camel(file)));
  return result;
}
