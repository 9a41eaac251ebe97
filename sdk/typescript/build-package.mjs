#!/usr/bin/env node
// Builds the npm packages: build-package.mjs BINARY... OUTDIR
//
// OUTDIR then has belljar-VERSION.tgz, and for each BINARY a package that carries it, such as belljar-linux-x64-VERSION.tgz.
// The first one depends on the others optionally: npm installs the one that fits, and nothing runs at installation.
// VERSION is that of the workspace.
import { execFileSync } from "node:child_process";
import { chmodSync, cpSync, existsSync, mkdirSync, mkdtempSync, openSync, readFileSync, readSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const HERE = fileURLToPath(new URL(".", import.meta.url));
const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const LICENSE = join(ROOT, "LICENSE");

/** The names that Node has for the machines of ELF's header. */
const MACHINES = { 62: "x64", 183: "arm64" };

main(process.argv.slice(2).map((path) => resolve(path)));

function main(paths) {
  if (paths.length < 2) fail("no binary, or no folder to write to", "build-package.mjs BINARY... OUTDIR");
  const binaries = paths.slice(0, -1);
  const out = paths.at(-1);
  const version = workspaceVersion();
  mkdirSync(out, { recursive: true });
  const stage = mkdtempSync(join(tmpdir(), "belljar-npm-"));
  try {
    const platforms = binaries.map((binary) => packPlatform(binary, version, stage, out));
    packLibrary(platforms, version, stage, out);
  } finally {
    rmSync(stage, { recursive: true, force: true });
  }
}

function workspaceVersion() {
  const manifest = readFileSync(join(ROOT, "Cargo.toml"), "utf8");
  const version = /^\[workspace\.package\]\n(?:[^[].*\n)*?version = "([^"]+)"/m.exec(manifest)?.[1];
  return version ?? fail("the workspace's Cargo.toml has no version", "see [workspace.package]");
}

/** The package that carries a binary. Returns its name. */
function packPlatform(binary, version, stage, out) {
  const cpu = machineOf(binary);
  const name = `@belljar/linux-${cpu}`;
  const folder = join(stage, cpu);
  mkdirSync(join(folder, "bin"), { recursive: true });
  cpSync(binary, join(folder, "bin", "belljar"));
  chmodSync(join(folder, "bin", "belljar"), 0o755);
  cpSync(LICENSE, join(folder, "LICENSE"));
  write(folder, "README.md", `The program of the package \`belljar\` for Linux on ${cpu}. Install \`belljar\`, not this.\n`);
  const about = `The program of belljar for Linux on ${cpu}`;
  write(folder, "package.json", manifest({ name, version, description: about, license: "Apache-2.0", os: ["linux"], cpu: [cpu], files: ["bin"], preferUnplugged: true }));
  pack(folder, out);
  return name;
}

function packLibrary(platforms, version, stage, out) {
  const folder = join(stage, "library");
  mkdirSync(folder);
  if (!existsSync(join(HERE, "node_modules"))) npm(["ci", "--silent", "--ignore-scripts"], HERE);
  run(process.execPath, [join(HERE, "scripts/types.mjs"), "--check"], HERE);
  // Not into dist, which a program or a test may be using.
  run(join(HERE, "node_modules/.bin/tsc"), ["-p", HERE, "--outDir", join(folder, "dist")], HERE);
  for (const part of ["bin", "README.md"]) cpSync(join(HERE, part), join(folder, part), { recursive: true });
  cpSync(LICENSE, join(folder, "LICENSE"));
  const { devDependencies, scripts, ...kept } = JSON.parse(readFileSync(join(HERE, "package.json"), "utf8"));
  const optionalDependencies = Object.fromEntries(platforms.map((name) => [name, version]));
  write(folder, "package.json", manifest({ ...kept, version, optionalDependencies }));
  pack(folder, out);
}

function machineOf(binary) {
  const header = Buffer.alloc(20);
  readSync(openSync(binary, "r"), header);
  const isElf = header.subarray(0, 4).toString("latin1") === "\x7fELF";
  return (isElf && MACHINES[header.readUInt16LE(18)]) || fail(`${binary} is not a program for Linux on x86-64 or aarch64`, "pass the binary of `make release`");
}

function manifest(fields) {
  return `${JSON.stringify(fields, null, 2)}\n`;
}

function write(folder, name, text) {
  writeFileSync(join(folder, name), text);
}

function pack(folder, out) {
  const made = npm(["pack", "--silent", "--ignore-scripts", "--pack-destination", out], folder);
  console.log(join(out, made.trim().split("\n").at(-1)));
}

function npm(words, folder) {
  return run("npm", words, folder);
}

function run(program, words, folder) {
  return execFileSync(program, words, { cwd: folder, encoding: "utf8", stdio: ["ignore", "pipe", "inherit"] });
}

function fail(message, hint) {
  console.error(`error: ${message}\nhint: ${hint}`);
  process.exit(1);
}
