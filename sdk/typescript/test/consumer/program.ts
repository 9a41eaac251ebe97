// A program of somebody who has installed the package. test/package.test.ts compiles and runs it there.
import { Belljar, BelljarError, BusyError, type Result, run, type RunEvent, type RunOptions } from "belljar";
import { type CodeRunResult, codeExecute, codeRun } from "belljar/compat";
import { codeTool } from "belljar/tools";

const options: RunOptions = { timeoutMs: 5000, memory: "128M", files: { "in.txt": "hello" }, collect: ["*.txt"], network: "none" };
const result: Result = await run("python", "print(open('in.txt').read())", options);
console.log(result.stdout.trim(), result.exitCode, result.usage.wallMs > 0, result.isolation.kept.length, result.files?.[0]?.text());

{
  await using client = new Belljar();
  await using stream = client.stream("sh", "echo streamed");
  for await (const event of stream) console.log(described(event));
  const error: unknown = await client.run("klingon", "").catch((error: unknown) => error);
  if (error instanceof BelljarError && !(error instanceof BusyError)) console.log(error.name, error.code, error.field);
}

const short: CodeRunResult = await codeRun("sh", "exit 3", 1000);
console.log(short.exit_code, await codeExecute({ language: "sh", code: "echo compat" }));
console.log(codeTool().anthropic.input_schema.required.join());

function described(event: RunEvent): string {
  switch (event.type) {
    case "stdout":
    case "stderr":
      return `${event.type} ${event.text.trim()}`;
    case "end":
      return `end ${event.result.status}`;
    default:
      return event.type;
  }
}

/** Never called: what the compiler has to refuse. */
export async function mistakes(): Promise<void> {
  // @ts-expect-error: there is no such option
  await run("sh", "true", { timeout: 1 });
  // @ts-expect-error: not a size
  await run("sh", "true", { memory: 256 });
  // @ts-expect-error: not a backend
  await run("sh", "true", { backend: "podman" });
  // @ts-expect-error: the server's name of it
  result.exit_code;
  // @ts-expect-error: there is no such option
  new Belljar({ token: "x" });
}
