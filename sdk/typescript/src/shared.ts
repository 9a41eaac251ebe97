import { Belljar } from "./client.js";

let client: Belljar | undefined;

/** The client that everything shares that was given none. It is made when it is first needed. */
export function sharedClient(): Belljar {
  return (client ??= new Belljar());
}
