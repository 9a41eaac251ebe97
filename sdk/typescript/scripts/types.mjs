// Writes src/wire.ts: a type for every schema of openapi/belljar-v1.json. With --check it only says whether the file matches.
import { readFileSync, writeFileSync } from "node:fs";

const source = new URL("../../../openapi/belljar-v1.json", import.meta.url);
const target = new URL("../src/wire.ts", import.meta.url);

const PRIMITIVES = { string: "string", integer: "number", number: "number", boolean: "boolean", null: "null" };

function typeOf(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  const choice = schema.oneOf ?? schema.anyOf;
  if (choice) return choice.map(typeOf).join(" | ");
  return [schema.type ?? "unknown"].flat().map((name) => typeNamed(name, schema)).join(" | ");
}

function typeNamed(name, schema) {
  if (name === "array") return `Array<${typeOf(schema.items ?? {})}>`;
  if (name === "object") return objectType(schema);
  if (!(name in PRIMITIVES) && name !== "unknown") throw new Error(`no type for '${name}' of the OpenAPI description`);
  return PRIMITIVES[name] ?? "unknown";
}

function objectType(schema) {
  if (!schema.properties) return `Record<string, ${typeOf(schema.additionalProperties || {})}>`;
  const required = new Set(schema.required);
  const members = Object.entries(schema.properties).map(
    ([name, member]) => `  ${name}${required.has(name) ? "" : "?"}: ${typeOf(member)};\n`,
  );
  return `{\n${members.join("")}}`;
}

const { schemas } = JSON.parse(readFileSync(source, "utf8")).components;
const types = Object.entries(schemas).map(([name, schema]) => `export type ${name} = ${typeOf(schema)};\n`);
const header = "// Made from openapi/belljar-v1.json by `npm run types`. Do not edit.\n";
const text = [header, ...types].join("\n");

if (!process.argv.includes("--check")) {
  writeFileSync(target, text);
} else if (readFileSync(target, "utf8") !== text) {
  console.error("error: src/wire.ts does not match openapi/belljar-v1.json\nhint: npm run types");
  process.exit(1);
}
