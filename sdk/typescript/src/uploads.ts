import { type Camel, camel } from "./case.js";
import type { Exchange } from "./exchange.js";
import { type CallOptions, refuseUnknown } from "./options.js";
import type * as wire from "./wire.js";

export type Upload = Camel<wire.Upload>;

export class Uploads {
  readonly #exchange: Exchange;

  /** @internal */
  constructor(exchange: Exchange) {
    this.#exchange = exchange;
  }

  async list(options: CallOptions = {}): Promise<Upload[]> {
    refuseUnknown("uploads.list", options, ["signal"]);
    const { body } = await this.#exchange.json<wire.UploadList>({ method: "GET", path: "/v1/files", signal: options.signal });
    return camel(body.files);
  }

  /** Makes the server forget a file. */
  async delete(id: string, options: CallOptions = {}): Promise<void> {
    refuseUnknown("uploads.delete", options, ["signal"]);
    await this.#exchange.json({ method: "DELETE", path: `/v1/files/${encodeURIComponent(id)}`, signal: options.signal });
  }
}
