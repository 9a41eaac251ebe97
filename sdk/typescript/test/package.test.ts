import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { binary, isolated, stopServersIn } from "./server.js";

const call = promisify(execFile);
const root = fileURLToPath(new URL("../..", import.meta.url));
const folder = mkdtempSync(join(tmpdir(), "belljar-ts-"));
const packages = join(folder, "packages");
const project = join(folder, "project");
// The program comes from the package alone.
const env: NodeJS.ProcessEnv = { ...isolated(folder), npm_config_cache: join(folder, "npm"), PATH: process.env["PATH"] };
const bin = join(project, "node_modules/.bin/belljar");

before(async () => {
  mkdirSync(project);
  writeFileSync(join(project, "package.json"), JSON.stringify({ private: true, type: "module" }));
  await call("node", [join(root, "build-package.mjs"), binary, packages], { env });
  const files = readdirSync(packages).map((name) => join(packages, name));
  // Offline: whatever it needs, it has.
  await call("npm", ["install", "--offline", "--no-audit", "--no-fund", ...files], { cwd: project, env });
});
after(async () => {
  await stopServersIn(folder);
  rmSync(folder, { recursive: true, force: true });
});

test("there is one package for everybody and one that carries the program", () => {
  const version = /^version = "(.*)"$/m.exec(readFileSync(join(root, "../../Cargo.toml"), "utf8"))?.[1];
  const platform = `linux-${process.arch}`;
  assert.deepEqual(readdirSync(packages).sort(), [`belljar-${version}.tgz`, `belljar-${platform}-${version}.tgz`].sort());
  const described = (name: string) => JSON.parse(readFileSync(join(project, "node_modules", name, "package.json"), "utf8"));
  const main = described("belljar");
  assert.equal(main.version, version);
  assert.deepEqual(main.optionalDependencies, { [`@belljar/${platform}`]: version });
  assert.equal(main.dependencies, undefined);
  assert.equal(main.devDependencies, undefined);
  // Nothing runs at installation.
  assert.equal(main.scripts, undefined);
  const carrier = described(`@belljar/${platform}`);
  assert.deepEqual([carrier.os, carrier.cpu, carrier.scripts], [["linux"], [process.arch], undefined]);
});

test("the command of the package is the program", async () => {
  const { stdout } = await call(bin, ["--version"], { env });
  assert.match(stdout, /^belljar \d/);
  assert.equal((await call(bin, ["run", "python", "-c", "print(6 * 7)"], { env })).stdout, "42\n");
  await assert.rejects(call(bin, ["run", "sh", "-c", "exit 7"], { env }), { code: 7 });
  const piped = spawn(bin, ["run", "sh", "--stdin", "-", "-c", "cat"], { env, stdio: ["pipe", "pipe", "inherit"] });
  piped.stdin.end("through\n");
  let out = "";
  piped.stdout.setEncoding("utf8").on("data", (text: string) => (out += text));
  await once(piped, "close");
  assert.equal(out, "through\n");
});

test("a signal reaches the program, and its end is seen", async () => {
  const child = spawn(bin, ["serve", "--listen", "127.0.0.1:0"], { env, stdio: ["ignore", "ignore", "pipe"] });
  let log = "";
  await new Promise<void>((resolve) => {
    child.stderr.setEncoding("utf8").on("data", (text: string) => {
      log += text;
      if (log.includes("listening on http")) resolve();
    });
  });
  child.kill("SIGTERM");
  const [code] = await once(child, "exit", { signal: AbortSignal.timeout(20_000) });
  assert.equal(code, 0, log);
});

const EXPECTED = `hello 0 true 8 hello
start
stdout streamed
end exited
InvalidRequestError invalid_request language
3 compat

language,code
`;

for (const [name, resolution] of Object.entries({
  nodenext: { module: "NodeNext", moduleResolution: "NodeNext", lib: ["ES2022", "ESNext.Disposable"], types: ["node"] },
  bundler: { module: "ESNext", moduleResolution: "Bundler", lib: ["ES2022", "ESNext.Disposable", "DOM", "DOM.AsyncIterable"], types: [] },
})) {
  test(`a strict program compiles with ${name} and runs`, async () => {
    const source = join(project, name);
    mkdirSync(source);
    cpSync(join(root, "test/consumer/program.ts"), join(source, "program.ts"));
    const compilerOptions = {
      ...resolution,
      target: "ES2022",
      strict: true,
      exactOptionalPropertyTypes: true,
      // The declarations of the package are checked, too.
      skipLibCheck: false,
      typeRoots: [join(root, "node_modules/@types")],
      outDir: "out",
      rootDir: ".",
    };
    writeFileSync(join(source, "tsconfig.json"), JSON.stringify({ compilerOptions, files: ["program.ts"] }));
    await call(join(root, "node_modules/.bin/tsc"), ["-p", source], { env }).catch((error: { stdout: string }) => assert.fail(error.stdout));
    const { stdout } = await call("node", [join(source, "out/program.js")], { env });
    assert.equal(stdout, EXPECTED);
  });
}
