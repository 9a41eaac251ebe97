import { useState } from "preact/hooks";

import { session, type Problem, type Session } from "../api/client";
import { asProblem } from "../lib/load";
import { Field, ProblemNote } from "../ui/parts";

/** The key goes to the server once; the browser keeps a cookie that the page cannot read. */
export function Login({ onLogin }: { onLogin: (session: Session) => void }) {
  const [key, setKey] = useState("");
  const [problem, setProblem] = useState<Problem | null>(null);
  const submit = async (event: Event) => {
    event.preventDefault();
    try {
      const begun = await session.begin(key.trim());
      setKey("");
      onLogin(begun);
    } catch (cause) {
      setProblem(asProblem(cause));
    }
  };
  return (
    <main class="login">
      <form onSubmit={(event) => void submit(event)}>
        <h1>Belljar</h1>
        <Field label="Key">
          <input
            type="password"
            autocomplete="off"
            spellcheck={false}
            required
            autofocus
            value={key}
            onInput={(event) => setKey(event.currentTarget.value)}
          />
        </Field>
        <button type="submit" class="primary">
          Log in
        </button>
        <ProblemNote problem={problem} />
        <p class="faint">
          <code>belljar key new</code> makes a key. The browser does not keep it.
        </p>
      </form>
    </main>
  );
}
