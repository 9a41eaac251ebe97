/** The server's names are snake_case, those of TypeScript camelCase. Answers have no keys that a caller chose. */

export type CamelCase<S extends string> = S extends `${infer Head}_${infer Tail}` ? `${Head}${Capitalize<CamelCase<Tail>>}` : S;

/** A type of the server with its names in camelCase. */
export type Camel<T> = T extends (infer Item)[]
  ? Camel<Item>[]
  : T extends object
    ? { [K in keyof T as K extends string ? CamelCase<K> : K]: Camel<T[K]> }
    : T;

export function camelCase(name: string): string {
  return name.replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());
}

/** The names that answers had: there are a few dozen, and every result has most of them. */
const renamed = new Map<string, string>();
/** So that a server that makes names up does not fill our memory. */
const MOST_NAMES = 1000;

export function camel<T>(value: T): Camel<T> {
  if (Array.isArray(value)) return value.map(camel) as Camel<T>;
  if (value === null || typeof value !== "object") return value as Camel<T>;
  const copy: Record<string, unknown> = {};
  // No name becomes `__proto__`: a letter after an underscore is a capital.
  for (const [name, member] of Object.entries(value)) copy[camelName(name)] = camel(member);
  return copy as Camel<T>;
}

function camelName(name: string): string {
  const known = renamed.get(name);
  if (known !== undefined) return known;
  const found = camelCase(name);
  if (renamed.size < MOST_NAMES) renamed.set(name, found);
  return found;
}
