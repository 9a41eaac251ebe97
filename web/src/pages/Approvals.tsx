import { useState } from "preact/hooks";

import { approvals, type Problem } from "../api/client";
import type { Approval as Details } from "../api/schema";
import { moment } from "../lib/format";
import { visible, visibleLine } from "../lib/inert";
import { asProblem, useLoaded } from "../lib/load";
import { hrefOf } from "../lib/route";
import { Editor } from "../ui/Editor";
import { Facts, Field, FindingList, ProblemNote, Status } from "../ui/parts";

const EVERY_MS = 2000;
const STATUSES = ["pending", "approved", "denied", "expired", "cancelled"];

/** Runs that wait for somebody to decide. */
export function Approvals() {
  const [status, setStatus] = useState("pending");
  const { value, problem } = useLoaded(() => approvals.list(status), status, EVERY_MS);
  return (
    <section aria-labelledby="approvals-title">
      <h2 id="approvals-title">Approvals</h2>
      <div class="bar">
        <Field label="Status">
          <select value={status} onChange={(event) => setStatus(event.currentTarget.value)}>
            {STATUSES.map((name) => (
              <option key={name} value={name}>
                {name}
              </option>
            ))}
          </select>
        </Field>
      </div>
      <ProblemNote problem={problem} />
      {value && value.approvals.length === 0 && <p class="faint">Nothing is {status}.</p>}
      {value && value.approvals.length > 0 && (
        <div class="scroll" tabIndex={0} role="region" aria-label="Approvals, a table">
          <table>
            <thead>
              <tr>
                {["Approval", "Status", "Caller", "Language", "Why", "Until", "Code"].map((name) => (
                  <th scope="col" key={name}>
                    {name}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {value.approvals.map((approval) => (
                <tr key={approval.id}>
                  <td>
                    <a href={hrefOf("approvals", approval.id)}>
                      <code>{approval.id}</code>
                    </a>
                  </td>
                  <td>
                    <Status status={approval.status} />
                  </td>
                  <td>{visibleLine(approval.caller)}</td>
                  <td>{visibleLine(approval.language)}</td>
                  <td>{visibleLine(approval.policy.reason ?? "")}</td>
                  <td>{moment(approval.expires_at)}</td>
                  <td>
                    <pre class="excerpt">{visible(approval.code)}</pre>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

/** One of them, with its code, what was found in it, and what one can decide. */
export function Approval({ id, decides }: { id: string; decides: boolean }) {
  const { value, problem, reload } = useLoaded(() => approvals.find(id), id, EVERY_MS);
  return (
    <section aria-labelledby="approval-title">
      <h2 id="approval-title">Approval</h2>
      <p>
        <a href={hrefOf("approvals")}>All approvals</a>
      </p>
      <ProblemNote problem={problem} />
      {value && (
        <>
          <p role="status">
            <Status status={value.status} /> <code>{value.id}</code>
          </p>
          <p>
            <strong>{visibleLine(value.policy.reason ?? "")}</strong> <code>{visibleLine(value.policy.rule ?? "")}</code>
          </p>
          <Editor key={id} label="Code" language={value.language} code={value.code} findings={value.findings} />
          <FindingList findings={value.findings} />
          <Carried approval={value} />
          <Facts facts={factsOf(value)} />
          {decides && value.status === "pending" && <Decide id={id} onDecided={reload} />}
          {decides && isRemembered(value) && <Revoke id={id} onRevoked={reload} />}
        </>
      )}
    </section>
  );
}

/** What comes with the code: standard input and files, as text or by their size. */
function Carried({ approval }: { approval: Details }) {
  const { stdin, files = [] } = approval.request;
  const parts = [...(stdin ? [{ ...stdin, path: "standard input" }] : []), ...files];
  return (
    <>
      {parts.map(({ path = "", size, text }) => (
        <section key={path} aria-label={visibleLine(path)}>
          <h3>
            <bdi>{visibleLine(path)}</bdi>
          </h3>
          {text === null || text === undefined ? (
            <p class="faint">
              {size === null || size === undefined ? "A stream, which comes only while the code runs." : `Not shown: ${size} bytes that are not text, or too many.`}
            </p>
          ) : (
            <Editor label={visibleLine(path)} language="" code={text} findings={approval.findings} within={path} />
          )}
        </section>
      ))}
    </>
  );
}

function isRemembered({ decision }: Details): boolean {
  const until = decision?.remembered_until;
  return until !== null && until !== undefined && Date.parse(until) > Date.now();
}

function Revoke({ id, onRevoked }: { id: string; onRevoked: () => void }) {
  const [problem, setProblem] = useState<Problem | null>(null);
  const revoke = async () => {
    try {
      await approvals.decide(id, "revoke", {});
      setProblem(null);
    } catch (cause) {
      setProblem(asProblem(cause));
    }
    onRevoked();
  };
  return (
    <div class="card" role="group" aria-label="Remembered decision">
      <button type="button" class="danger" onClick={() => void revoke()}>
        Revoke
      </button>
      <ProblemNote problem={problem} />
    </div>
  );
}

function factsOf({ caller, surface, peer, created_at, expires_at, request, digest, decision }: Details): Array<[string, string]> {
  const list = (items: string[] = []) => visibleLine(items.join(", ") || "none");
  const facts: Array<[string, string]> = [
    ["Caller", visibleLine(caller)],
    ["Through", visibleLine([surface, peer].filter(Boolean).join(" from "))],
    ["Asked", moment(created_at)],
    ["Until", moment(expires_at)],
    ["Network", visibleLine(request.network ?? "none")],
    ["Secrets of", list(request.secrets)],
    ["Backend", visibleLine(request.backend ?? "auto")],
    ["Arguments", list(request.args)],
    ["Variables", list(request.env)],
    ["Workspace", visibleLine(request.workspace ?? "none")],
    ["Guarantees waived", list(request.waive)],
    ["Digest", digest.slice(0, 16)],
  ];
  if (decision) {
    facts.push(["Decided by", visibleLine(decision.by)], ["Reason", visibleLine(decision.reason ?? "none")]);
    if (decision.remembered_until) facts.push(["Remembered until", moment(decision.remembered_until)]);
  }
  return facts;
}

const MEMORY: Array<[string, string]> = [
  ["0", "this time only"],
  ["3600", "for an hour"],
  ["86400", "for a day"],
];

function Decide({ id, onDecided }: { id: string; onDecided: () => void }) {
  const [reason, setReason] = useState("");
  const [remember, setRemember] = useState("0");
  const [problem, setProblem] = useState<Problem | null>(null);
  const decide = async (decision: "approve" | "deny") => {
    const seconds = Number(remember);
    try {
      await approvals.decide(id, decision, { ...(reason ? { reason } : {}), ...(seconds ? { remember_s: seconds } : {}) });
      setProblem(null);
    } catch (cause) {
      setProblem(asProblem(cause));
    }
    onDecided();
  };
  return (
    <div class="card" role="group" aria-label="Decision">
      <div class="bar">
        <Field label="Reason">
          <input type="text" value={reason} maxLength={2000} onInput={(event) => setReason(event.currentTarget.value)} />
        </Field>
        <Field label="Remember">
          <select value={remember} onChange={(event) => setRemember(event.currentTarget.value)}>
            {MEMORY.map(([value, text]) => (
              <option key={value} value={value}>
                {text}
              </option>
            ))}
          </select>
        </Field>
        <button type="button" class="primary" onClick={() => void decide("approve")}>
          Approve
        </button>
        <button type="button" class="danger" onClick={() => void decide("deny")}>
          Deny
        </button>
      </div>
      <ProblemNote problem={problem} />
    </div>
  );
}
