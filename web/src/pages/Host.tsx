import { host } from "../api/client";
import type { Backend } from "../api/schema";
import { visibleLine } from "../lib/inert";
import { useLoaded } from "../lib/load";
import { ProblemNote } from "../ui/parts";

/** What this server can run, and what it can guarantee: `belljar languages` and `belljar doctor`. */
export function Host() {
  const backends = useLoaded(host.backends, "backends");
  const languages = useLoaded(host.languages, "languages");
  return (
    <section aria-labelledby="host-title">
      <h2 id="host-title">Languages and host</h2>
      <ProblemNote problem={backends.problem ?? languages.problem} />
      {backends.value && (
        <>
          <p>
            A run that names no backend goes to <strong>{backends.value.default ?? "none"}</strong>.
          </p>
          <div class="cards">
            {backends.value.backends.map((backend) => (
              <BackendCard key={backend.name} backend={backend} />
            ))}
          </div>
        </>
      )}
      {languages.value && (
        <div class="scroll" tabIndex={0} role="region" aria-label="Languages, a table">
          <table>
            <thead>
              <tr>
                <th scope="col">Language</th>
                <th scope="col">Runtime</th>
                <th scope="col">Location</th>
                <th scope="col">Aliases</th>
              </tr>
            </thead>
            <tbody>
              {languages.value.languages.map((language) => (
                <tr key={language.name}>
                  <th scope="row">{language.name}</th>
                  <td>{language.available ? visibleLine(language.runtime ?? "") : <Missing hint={language.hint} />}</td>
                  <td>
                    <code>{visibleLine(language.location ?? "–")}</code>
                  </td>
                  <td>{language.aliases.join(", ") || "–"}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

function Missing({ hint }: { hint: string | null }) {
  return (
    <>
      <span class="badge bad">not installed</span> {hint && visibleLine(hint)}
    </>
  );
}

function BackendCard({ backend }: { backend: Backend }) {
  return (
    <section class="card" aria-label={backend.name}>
      <h3>
        {backend.name} <span class={`badge ${backend.ready ? "good" : "bad"}`}>{backend.ready ? "ready" : "not ready"}</span>
      </h3>
      {backend.reason && <p>{visibleLine(backend.reason)}</p>}
      {backend.hint && <p class="faint">{visibleLine(backend.hint)}</p>}
      {backend.guarantees.length > 0 && (
        <details>
          <summary>Guarantees</summary>
          <ul class="plain">
            {backend.guarantees.map((guarantee) => (
              <li key={guarantee.name}>
                <span class={`badge ${guarantee.kept ? "good" : "bad"}`}>{guarantee.name}</span>{" "}
                {visibleLine([guarantee.how, guarantee.why, guarantee.fix].filter(Boolean).join("; "))}
              </li>
            ))}
          </ul>
        </details>
      )}
    </section>
  );
}
