import { type Camel, camel } from "./case.js";
import { type Exchange, jsonCall, queryOf } from "./exchange.js";
import { type CallOptions, type PageOptions, refuseUnknown } from "./options.js";
import type * as wire from "./wire.js";

export type Approval = Camel<wire.Approval>;
export type ApprovalList = Camel<wire.ApprovalList>;

export interface ApprovalListOptions extends PageOptions {
  status?: wire.ApprovalStatus | undefined;
  /** Whether to list only those whose decision holds for further requests. */
  remembered?: boolean | undefined;
}

export interface RevokeOptions extends CallOptions {
  /** Why, for whoever asked for the run. */
  reason?: string | undefined;
}

export interface DecisionOptions extends RevokeOptions {
  /** For how many seconds the decision holds for the same request. */
  rememberS?: number | undefined;
}

export class Approvals {
  readonly #exchange: Exchange;

  /** @internal */
  constructor(exchange: Exchange) {
    this.#exchange = exchange;
  }

  /** What waits for a decision, and what was decided, newest first. */
  async list(options: ApprovalListOptions = {}): Promise<ApprovalList> {
    const { signal, ...query } = options;
    refuseUnknown("approvals.list", query, ["status", "remembered", "limit", "cursor"]);
    const { body } = await this.#exchange.json<wire.ApprovalList>({ method: "GET", path: `/v1/approvals${queryOf(query)}`, signal });
    return camel(body);
  }

  async get(id: string, options: CallOptions = {}): Promise<Approval> {
    refuseUnknown("approvals.get", options, ["signal"]);
    const { body } = await this.#exchange.json<wire.Approval>({ method: "GET", path: approvalPath(id), signal: options.signal });
    return camel(body);
  }

  /** Lets the run begin. */
  approve(id: string, options: DecisionOptions = {}): Promise<Approval> {
    return this.#decide(id, "approve", options);
  }

  /** Refuses the run. */
  deny(id: string, options: DecisionOptions = {}): Promise<Approval> {
    return this.#decide(id, "deny", options);
  }

  /** Takes back a decision that is remembered: the same run has to be asked for again. A run that has begun goes on. */
  async revoke(id: string, options: RevokeOptions = {}): Promise<Approval> {
    refuseUnknown("approvals.revoke", options, ["signal", "reason"]);
    const call = jsonCall("POST", `${approvalPath(id)}/revoke`, { reason: options.reason });
    return camel((await this.#exchange.json<wire.Approval>({ ...call, signal: options.signal })).body);
  }

  async #decide(id: string, verb: "approve" | "deny", options: DecisionOptions): Promise<Approval> {
    refuseUnknown(`approvals.${verb}`, options, ["signal", "reason", "rememberS"]);
    const ruling = { reason: options.reason, remember_s: options.rememberS };
    const call = jsonCall("POST", `${approvalPath(id)}/${verb}`, ruling);
    return camel((await this.#exchange.json<wire.Approval>({ ...call, signal: options.signal })).body);
  }
}

function approvalPath(id: string): string {
  return `/v1/approvals/${encodeURIComponent(id)}`;
}
