import { render } from "preact";
import { useEffect, useState } from "preact/hooks";

import { session as sessions, whenSignedOut, type Problem, type Session } from "./api/client";
import { asProblem } from "./lib/load";
import { applyTheme, storedTheme } from "./lib/theme";
import { Login } from "./pages/Login";
import "./style.css";
import { ProblemNote } from "./ui/parts";
import { Shell } from "./ui/Shell";

function App() {
  const [session, setSession] = useState<Session | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const signOut = () => setSession((before) => before && { ...before, caller: null });

  useEffect(() => {
    whenSignedOut(signOut);
    sessions.show().then(setSession, (cause: unknown) => setProblem(asProblem(cause)));
  }, []);

  if (!session) return <ProblemNote problem={problem} />;
  if (session.caller === null) return <Login onLogin={setSession} />;
  return <Shell session={session} onLogout={signOut} />;
}

applyTheme(storedTheme());
const place = document.getElementById("app");
if (place) render(<App />, place);
