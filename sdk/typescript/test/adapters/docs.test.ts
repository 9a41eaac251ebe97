import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { binary, isolated, stopServersIn } from "../server.js";

// Every ts block of docs/typescript.md is compiled and run, and the text block below it is compared with what it prints.

const call = promisify(execFile);
const root = fileURLToPath(new URL("../../..", import.meta.url));
const page = resolve(root, "../../docs/typescript.md");
const folder = mkdtempSync(join(tmpdir(), "belljar-ts-"));
// Within the package, so that its own name and those of the frameworks are found.
const work = join(root, "build/docs");

interface Example {
  line: number;
  code: string;
  expected: string;
}

const examples = examplesIn(readFileSync(page, "utf8"));

before(async () => {
  rmSync(work, { recursive: true, force: true });
  mkdirSync(work, { recursive: true });
  cpSync(join(root, "test/docs/model.ts"), join(work, "model.ts"));
  for (const { line, code } of examples) writeFileSync(join(work, `line-${line}.ts`), code);
  const compilerOptions = { rootDir: ".", outDir: "out", declaration: false };
  writeFileSync(join(work, "tsconfig.json"), JSON.stringify({ extends: "../../tsconfig.json", compilerOptions, include: ["*.ts"] }));
  await call(join(root, "node_modules/.bin/tsc"), ["-p", work]).catch((error: { stdout: string }) => assert.fail(error.stdout));
});
after(async () => {
  await stopServersIn(folder);
  rmSync(folder, { recursive: true, force: true });
});

test("the page has examples", () => assert.ok(examples.length > 10, String(examples.length)));

for (const { line, expected } of examples) {
  test(`docs/typescript.md:${line} prints what the page shows`, async () => {
    const env = { ...isolated(folder), BELLJAR_BINARY: binary, NO_COLOR: "1", MASTRA_TELEMETRY_DISABLED: "1" };
    const { stdout } = await call(process.execPath, [join(work, `out/line-${line}.js`)], { env, cwd: folder, timeout: 60_000 });
    assert.match(stdout, patternOf(expected), `the page shows:\n${expected}\nthe program printed:\n${stdout}`);
  });
}

/** A ts block with the text block that follows it, and a text block with the file that it names. */
function examplesIn(text: string): Example[] {
  const found: Example[] = [];
  let code: { line: number; text: string } | undefined;
  let named: string | undefined;
  for (const { line, before, language, body } of blocksIn(text)) {
    named = /<!-- output of: (\S+) -->/.exec(before)?.[1];
    if (language === "ts") {
      assert.equal(code, undefined, `docs/typescript.md:${code?.line}: no output is shown below the block`);
      assert.match(before, /<!-- not run: ci\/sdk\/typescript runs /, `docs/typescript.md:${line}: ci/docs has to leave it to us`);
      code = { line, text: body };
    } else if (language === "text" && named) {
      found.push({ line, code: readFileSync(resolve(dirname(page), named), "utf8"), expected: body });
    } else if (language === "text") {
      assert.ok(code, `docs/typescript.md:${line}: no program prints this`);
      found.push({ line: code.line, code: code.text, expected: body });
      code = undefined;
    }
  }
  assert.equal(code, undefined, `docs/typescript.md:${code?.line}: no output is shown below the block`);
  return found;
}

/** The fenced blocks, each with the comment in the line above it. */
function blocksIn(text: string): { line: number; before: string; language: string; body: string }[] {
  const blocks = [];
  const lines = text.split("\n");
  for (let at = 0; at < lines.length; at++) {
    const language = /^```(\w+)$/.exec(lines[at]!)?.[1];
    if (!language) continue;
    const end = lines.indexOf("```", at + 1);
    blocks.push({ line: at + 1, before: lines[at - 1] ?? "", language, body: `${lines.slice(at + 1, end).join("\n")}\n` });
    at = end;
  }
  return blocks;
}

/** `...` stands for anything within a line; a line of nothing but `...` for any number of lines. */
function patternOf(expected: string): RegExp {
  const lines = expected.trimEnd().split("\n").map((line) => {
    if (line === "...") return "(?:.*\\n)*?";
    return `${line.split("...").map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join(".*")}\\n`;
  });
  return new RegExp(`^${lines.join("")}\\n*$`);
}
