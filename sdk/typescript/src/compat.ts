/**
 * The shapes of older tools, so that code for them needs only another import. Importing this starts nothing: a server is
 * looked for when code is run.
 */
import { environment } from "./environment.js";
import { invalid, type Language } from "./options.js";
import type { Result } from "./result.js";
import { sharedClient } from "./shared.js";
import type { BackendChoice } from "./wire.js";

export interface CodeRunResult {
  exit_code: number;
  stdout: string;
  stderr: string;
}

/** Runs code. A program that fails, or that runs out of time (124), has a result, too. */
export async function codeRun(language: Language, code: string, timeoutMs?: number): Promise<CodeRunResult> {
  const { exitCode, stdout, stderr } = await runAsEnvironmentSays(language, code, timeoutMs);
  return { exit_code: exitCode, stdout, stderr };
}

export interface CodeExecuteInput {
  language: Language;
  code: string;
}

/** Runs code and answers what it wrote to standard output. */
export async function codeExecute({ language, code }: CodeExecuteInput): Promise<string> {
  return (await runAsEnvironmentSays(language, code)).stdout;
}

const SANDBOXES = ["docker", "process", "none"];

async function runAsEnvironmentSays(language: Language, code: string, timeoutMs?: number): Promise<Result> {
  const sandbox = environment("CODE_EXEC_SANDBOX");
  if (sandbox !== undefined && !SANDBOXES.includes(sandbox)) {
    throw invalid("CODE_EXEC_SANDBOX", `CODE_EXEC_SANDBOX is '${sandbox}'`, `write one of these: ${SANDBOXES.join(", ")}`);
  }
  // The name of Belljar's own goes first, as on the command line.
  const backend = environment("BELLJAR_BACKEND") ?? sandbox;
  if ((backend === "process" || backend === "none") && environment("BELLJAR_URL") === undefined) {
    const [{ runDirectly }, { locateBinary }] = await Promise.all([import("./node/direct.js"), import("./node/server.js")]);
    return runDirectly(locateBinary(undefined), { language, code, backend, timeoutMs });
  }
  return sharedClient().run(language, code, { timeoutMs, backend: backend as BackendChoice | undefined });
}
