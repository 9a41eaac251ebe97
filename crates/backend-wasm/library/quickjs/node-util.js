// Values as text, as Node shows them.

const DEEP = 2;
const WIDE = 72;
const MANY = 100;

const quoted = (text) => `'${text.replace(/\\/g, "\\\\").replace(/'/g, "\\'").replace(/\n/g, "\\n")}'`;
const keyed = (key) => (typeof key === "symbol" ? `[${String(key)}]` : /^[A-Za-z_$][\w$]*$/.test(key) ? key : quoted(key));

const joined = (open, parts, close, indent) => {
  if (parts.length === 0) return open.trimEnd() + close;
  const line = `${open} ${parts.join(", ")} ${close}`;
  if (line.length <= WIDE && !line.includes("\n")) return line;
  return `${open}\n${indent}  ${parts.join(`,\n${indent}  `)}\n${indent}${close}`;
};

const shown = (value, depth, above, indent) => {
  if (typeof value === "string") return quoted(value);
  if (typeof value === "bigint") return `${value}n`;
  if (Object.is(value, -0)) return "-0";
  if (typeof value === "function") {
    const kind = /^class\b/.test(Function.prototype.toString.call(value)) ? "class" : "Function";
    return kind === "class" ? `[class ${value.name}]` : `[Function: ${value.name || "(anonymous)"}]`.replace(": (", " (");
  }
  if (typeof value !== "object" || value === null) return String(value);
  if (above.includes(value)) return "[Circular *1]";
  if (value instanceof Error) return `${value}\n${value.stack ?? ""}`.trimEnd();
  if (value instanceof Date) return isNaN(value) ? "Invalid Date" : value.toISOString();
  if (value instanceof RegExp) return String(value);
  if (value instanceof Promise) return "Promise { <pending> }";
  const name = value.constructor?.name;
  if (depth < 0) return Array.isArray(value) ? "[Array]" : `[${name ?? "Object: null prototype"}]`;
  const inner = (item) => shown(item, depth - 1, [...above, value], `${indent}  `);
  const most = (items) => {
    const parts = items.slice(0, MANY);
    if (items.length > MANY) parts.push(`... ${items.length - MANY} more items`);
    return parts;
  };
  const own = Reflect.ownKeys(value).filter((key) => Object.getOwnPropertyDescriptor(value, key).enumerable);
  const fields = (keys) => keys.map((key) => `${keyed(key)}: ${inner(value[key])}`);
  if (Array.isArray(value)) {
    const named = own.filter((key) => typeof key === "symbol" || !/^\d+$/.test(key));
    return joined("[", [...most(Array.from(value, inner)), ...fields(named)], "]", indent);
  }
  if (ArrayBuffer.isView(value) && value.length !== undefined) {
    return joined(`${name}(${value.length}) [`, most(Array.from(value, inner)), "]", indent);
  }
  if (value instanceof Map) {
    const parts = Array.from(value, ([key, item]) => `${inner(key)} => ${inner(item)}`);
    return joined(`Map(${value.size}) {`, most(parts), "}", indent);
  }
  if (value instanceof Set) return joined(`Set(${value.size}) {`, most(Array.from(value, inner)), "}", indent);
  const prefix = name === undefined ? "[Object: null prototype] " : name === "Object" ? "" : `${name} `;
  return joined(`${prefix}{`, fields(own), "}", indent);
};

export const inspect = (value, options) => shown(value, options?.depth === null ? Infinity : options?.depth ?? DEEP, [], "");

const plain = (value) => (typeof value === "string" ? value : inspect(value));

export function format(...words) {
  if (typeof words[0] !== "string") return words.map(plain).join(" ");
  const [text, ...rest] = words;
  const filled = text.replace(/%[sdifjoO%]/g, (mark) => {
    if (mark === "%%") return rest.length || words.length > 1 ? "%" : mark;
    if (rest.length === 0) return mark;
    const value = rest.shift();
    switch (mark) {
      case "%s": return typeof value === "object" && value !== null ? inspect(value, { depth: 0 }) : String(value);
      case "%d": return String(Number(value));
      case "%i": return String(parseInt(value));
      case "%f": return String(parseFloat(value));
      case "%j": return JSON.stringify(value);
      default: return inspect(value);
    }
  });
  return [filled, ...rest.map(plain)].join(" ");
}

export const promisify = (act) => (...args) =>
  new Promise((resolve, reject) => act(...args, (error, value) => (error ? reject(error) : resolve(value))));

export default { inspect, format, promisify };
