import type { NetworkActivity, NetworkDenied } from "../api/schema";
import { bytes } from "../lib/format";
import { visibleLine } from "../lib/inert";

const TONES: Record<string, string> = { allowed: "good", closed: "plain", failed: "busy", refused: "bad", omitted: "plain" };

/** What a program does with its network, in the order in which it happens. */
export function Connections({ events }: { events: NetworkActivity[] }) {
  if (events.length === 0) return null;
  return (
    <details open>
      <summary>Connections</summary>
      <div class="scroll connections" tabIndex={0} role="region" aria-label="Connections, a table">
        <table>
          <thead>
            <tr>
              <th scope="col">Host</th>
              <th scope="col">Port</th>
              <th scope="col">What happened</th>
              <th scope="col">Sent</th>
              <th scope="col">Received</th>
              <th scope="col">Times</th>
            </tr>
          </thead>
          <tbody>
            {events.map((event, at) => (
              <Row key={at} event={event} />
            ))}
          </tbody>
        </table>
      </div>
    </details>
  );
}

function Row({ event }: { event: NetworkActivity }) {
  return (
    <tr>
      <td>
        <bdi>{event.action === "omitted" ? "others" : visibleLine(event.host)}</bdi>
      </td>
      <td>{event.port ?? "–"}</td>
      <td>
        <span class={`badge ${TONES[event.action] ?? "plain"}`}>{visibleLine(event.action)}</span> {visibleLine(event.reason ?? "")}
      </td>
      <td>{bytes(event.up_bytes)}</td>
      <td>{bytes(event.down_bytes)}</td>
      <td>{event.count}</td>
    </tr>
  );
}

/** What a program tried to reach in vain. */
export function Denied({ denied }: { denied: NetworkDenied[] }) {
  if (denied.length === 0) return null;
  return (
    <section aria-label="Refused by the network">
      <h3>Refused by the network</h3>
      <ul class="denied">
        {denied.map(({ host, port, reason, count }, at) => (
          <li key={at}>
            <bdi>{visibleLine(host)}</bdi>
            {port !== null && `, port ${port}`}: {visibleLine(reason)} {count > 1 && <span class="faint">{count} times</span>}
          </li>
        ))}
      </ul>
    </section>
  );
}
