// Prints the licenses of the packages whose code is in the console.
import { readFileSync, readdirSync } from "node:fs";

const root = new URL("../", import.meta.url);
const { packages } = JSON.parse(readFileSync(new URL("package-lock.json", root), "utf8"));
for (const [path, { dev, version }] of Object.entries(packages)) {
  if (path === "" || dev) continue;
  const folder = new URL(`${path}/`, root);
  const file = readdirSync(folder).find((name) => /^licen[sc]e/i.test(name));
  if (!file) throw new Error(`${path} has no license`);
  console.log(`${path.replace("node_modules/", "")} ${version}\n\n${readFileSync(new URL(file, folder), "utf8").trim()}\n\n`);
}
