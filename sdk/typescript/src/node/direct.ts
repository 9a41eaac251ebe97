import { spawn } from "node:child_process";
import { errorOfAnswer, ServerUnreachableError } from "../errors.js";
import { type Result, resultOf, type WireResult } from "../result.js";

export interface DirectRun {
  language: string;
  code: string;
  backend: string;
  timeoutMs: number | undefined;
}

/** Belljar itself failed, or would not run it: then it prints an error object instead of a result. */
const RUN_FAILED = 125;

/** Runs code with `belljar run`, without a server: servers do not take `process` and `none` unless they are told to. */
export function runDirectly(binary: string, run: DirectRun): Promise<Result> {
  const words = ["run", `--language=${run.language}`, `--backend=${run.backend}`, "--json", "--quiet"];
  if (run.timeoutMs !== undefined) words.push(`--timeout=${run.timeoutMs}ms`);
  return new Promise((resolve, reject) => {
    const child = spawn(binary, [...words, "-"], { stdio: ["pipe", "pipe", "pipe"] });
    let out = "";
    let err = "";
    child.stdout.setEncoding("utf8").on("data", (text: string) => (out += text));
    child.stderr.setEncoding("utf8").on("data", (text: string) => (err += text));
    child.once("error", (error) => reject(failed(binary, error.message)));
    child.once("close", (status, signal) => {
      const answer = parsed(out);
      if (answer && "status" in answer) resolve(resultOf(answer));
      else if (answer && status === RUN_FAILED) reject(errorOfAnswer(0, out, {}));
      else reject(failed(binary, err.trim() || `it ended with ${signal ?? status}`));
    });
    // A child that ends early does not read: it says why on stdout.
    child.stdin.on("error", () => {});
    child.stdin.end(run.code);
  });
}

function parsed(text: string): WireResult | { error: unknown } | undefined {
  try {
    return JSON.parse(text) as WireResult | { error: unknown };
  } catch {
    return undefined;
  }
}

function failed(binary: string, reason: string): ServerUnreachableError {
  return new ServerUnreachableError({
    code: "server_unreachable",
    message: `cannot run code with ${binary}: ${reason}`,
    hint: `run '${binary} doctor' to see what is missing`,
  });
}
