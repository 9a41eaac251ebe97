// Writes src/api/schema.ts: a type for every schema of openapi/belljar-v1.json.
import { readFileSync, writeFileSync } from "node:fs";

const source = new URL("../../openapi/belljar-v1.json", import.meta.url);
const target = new URL("../src/api/schema.ts", import.meta.url);
const { schemas } = JSON.parse(readFileSync(source, "utf8")).components;

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

const types = Object.entries(schemas).map(([name, schema]) => `export type ${name} = ${typeOf(schema)};\n`);
const header = "// Made from openapi/belljar-v1.json by `npm run types`. Do not edit.\n";
writeFileSync(target, [header, ...types].join("\n"));
