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

export function camel<T>(value: T): Camel<T> {
  if (Array.isArray(value)) return value.map(camel) as Camel<T>;
  if (value === null || typeof value !== "object") return value as Camel<T>;
  return Object.fromEntries(Object.entries(value).map(([name, member]) => [camelCase(name), camel(member)])) as Camel<T>;
}
