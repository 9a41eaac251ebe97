// Draws /openapi.json. Everything goes in as text, never as markup.
"use strict";

const make = (name, text, children = []) => {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  element.append(...children);
  return element;
};

const resolve = (api, schema) =>
  schema && schema.$ref ? api.components.schemas[schema.$ref.split("/").pop()] : schema || {};

const kind = (schema) => {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.enum) return schema.enum.map((word) => JSON.stringify(word)).join(" | ");
  if (schema.oneOf) return schema.oneOf.map(kind).join(" | ");
  if (schema.type === "array") return `list of ${kind(schema.items || {})}`;
  return [schema.type || "anything"].flat().join(" or ");
};

const range = (schema) =>
  [["minimum", "at least"], ["maximum", "at most"], ["minLength", "length at least"], ["maxLength", "length at most"]]
    .filter(([name]) => schema[name] !== undefined)
    .map(([name, words]) => `${words} ${schema[name]}`)
    .join(", ");

const fields = (api, reference, depth = 0) => {
  const schema = resolve(api, reference);
  const table = make("table");
  for (const [name, property] of Object.entries(schema.properties || {})) {
    const needed = (schema.required || []).includes(name) ? "" : "optional";
    const words = [kind(property), range(property), needed].filter(Boolean).join("; ");
    const cell = make("td", words);
    if (property.description) cell.append(make("br"), property.description);
    const inner = property.items || (property.oneOf || []).find((one) => one.$ref) || property;
    if (inner.$ref && depth < 3) {
      cell.append(make("details", undefined, [make("summary", kind(inner)), fields(api, inner, depth + 1)]));
    }
    table.append(make("tr", undefined, [make("td", undefined, [make("code", name)]), cell]));
  }
  return table;
};

const content = (api, body) =>
  Object.entries((body && body.content) || {}).map(([type, media]) => {
    const schema = media.schema || {};
    const title = make("summary", `${type}: ${kind(schema)}`);
    return make("details", undefined, [title, fields(api, schema)]);
  });

const operation = (api, path, method, op) => {
  const title = make("h2", undefined, [make("span", method.toUpperCase()), make("code", path)]);
  title.firstChild.className = "method";
  const section = make("section", undefined, [title, make("p", op.summary || ""), make("p", op.description || "")]);
  if (op.parameters) {
    section.append(make("h3", "Parameters"));
    for (const parameter of op.parameters) {
      const words = `${parameter.name} (${parameter.in}${parameter.required ? "" : ", optional"}): `;
      section.append(make("p", words + (parameter.description || "")));
    }
  }
  if (op.requestBody) section.append(make("h3", "Body"), ...content(api, op.requestBody));
  section.append(make("h3", "Answers"));
  const answers = make("table");
  for (const [status, answer] of Object.entries(op.responses)) {
    const cell = make("td", answer.description, content(api, answer));
    answers.append(make("tr", undefined, [make("td", status), cell]));
  }
  section.append(answers);
  return section;
};

fetch("/openapi.json")
  .then((answer) => answer.json())
  .then((api) => {
    document.getElementById("about").textContent = api.info.description;
    const operations = document.getElementById("operations");
    for (const [path, methods] of Object.entries(api.paths)) {
      for (const [method, op] of Object.entries(methods)) operations.append(operation(api, path, method, op));
    }
  })
  .catch((cause) => {
    document.getElementById("about").textContent = `Cannot read /openapi.json: ${cause}`;
  });
