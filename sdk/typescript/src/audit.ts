import { type Camel, camel } from "./case.js";
import { type Exchange, queryOf, type Request } from "./exchange.js";
import { type CallOptions, type Language, type PageOptions, refuseUnknown } from "./options.js";
import type * as wire from "./wire.js";

export type AuditList = Camel<wire.AuditList>;
export type AuditRecord = Camel<wire.AuditRecord>;
export type AuditVerdict = Camel<wire.AuditVerdict>;

export interface AuditSearchOptions extends PageOptions {
  language?: Language | undefined;
  status?: wire.RunStatus | undefined;
  caller?: string | undefined;
  /** The earliest and the latest time, such as `2026-11-18T00:00:00Z`. */
  from?: string | undefined;
  to?: string | undefined;
  /** Words of the code. */
  q?: string | undefined;
}

export class Audit {
  readonly #exchange: Exchange;

  /** @internal */
  constructor(exchange: Exchange) {
    this.#exchange = exchange;
  }

  /** The runs that match, newest first. */
  async search(options: AuditSearchOptions = {}): Promise<AuditList> {
    const { signal, ...query } = options;
    refuseUnknown("audit.search", query, ["language", "status", "caller", "from", "to", "q", "limit", "cursor"]);
    return camel((await this.#exchange.json<wire.AuditList>({ method: "GET", path: `/v1/audit${queryOf(query)}`, signal })).body);
  }

  /** Everything that is known about a run. */
  async get(id: string, options: CallOptions = {}): Promise<AuditRecord> {
    refuseUnknown("audit.get", options, ["signal"]);
    const path = `/v1/audit/${encodeURIComponent(id)}`;
    return camel((await this.#exchange.json<wire.AuditRecord>({ method: "GET", path, signal: options.signal })).body);
  }

  /** Whether the record is whole: nothing was changed, left out or put in. */
  async verify(options: CallOptions = {}): Promise<AuditVerdict> {
    refuseUnknown("audit.verify", options, ["signal"]);
    const call: Request = { method: "GET", path: "/v1/audit/verify", signal: options.signal };
    return camel((await this.#exchange.json<wire.AuditVerdict>(call)).body);
  }
}
