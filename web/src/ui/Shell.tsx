import { useEffect, useRef, useState } from "preact/hooks";

import { session as sessions, type Session } from "../api/client";
import { dropDraft } from "../lib/draft";
import { go, hrefOf, useRoute } from "../lib/route";
import { useShortcuts, type Shortcuts } from "../lib/shortcuts";
import { applyTheme, nextTheme, storedTheme } from "../lib/theme";
import { PAGES, type Page } from "../pages/list";
import { Help } from "./Help";

/** The frame around every page: where one can go, and who one is. */
export function Shell({ session, onLogout }: { session: Session; onLogout: () => void }) {
  const [theme, setTheme] = useState(storedTheme);
  const [help, setHelp] = useState(false);
  const route = useRoute();
  const main = useRef<HTMLElement>(null);
  const pages = PAGES.filter((page) => page.isOffered(session));
  const current = pages.find((page) => page.name === route.page) ?? pages[0]!;

  const changeTheme = () => {
    const next = nextTheme(theme);
    applyTheme(next);
    setTheme(next);
  };
  const logOut = async () => {
    dropDraft();
    await sessions.end().catch(() => {});
    onLogout();
  };
  useShortcuts({ ...pageShortcuts(pages), "?": () => setHelp(true), t: changeTheme, "/": () => focusSearch(main.current) });
  useEffect(() => {
    document.title = `${current.title} · Belljar`;
  }, [current.title]);

  return (
    <>
      <a class="skip" href="#main" onClick={(event) => skip(event, main.current)}>
        Skip to the page
      </a>
      <header>
        <h1>Belljar</h1>
        <nav aria-label="Pages">
          <ul>
            {pages.map((page) => (
              <li key={page.name}>
                <a href={hrefOf(page.name)} aria-current={page === current ? "page" : undefined}>
                  {page.title}
                </a>
              </li>
            ))}
          </ul>
        </nav>
        <div class="tools">
          <button type="button" class="small" onClick={changeTheme} aria-label={`Colours: ${theme}`}>
            {theme}
          </button>
          <button type="button" class="small" onClick={() => setHelp(true)} aria-label="Keyboard shortcuts">
            ?
          </button>
          {session.login && (
            <button type="button" class="small" onClick={() => void logOut()}>
              Log out {session.caller}
            </button>
          )}
        </div>
      </header>
      <main id="main" ref={main} tabIndex={-1}>
        {current.render(route.id, session)}
      </main>
      <Help open={help} pages={pages} onClose={() => setHelp(false)} />
    </>
  );
}

function pageShortcuts(pages: Page[]): Shortcuts {
  return Object.fromEntries(pages.map((page) => [`g ${page.key}`, () => go(page.name)]));
}

/** The address after `#` names a page, so that the link must not change it. */
function skip(event: Event, main: HTMLElement | null): void {
  event.preventDefault();
  main?.focus();
}

function focusSearch(main: HTMLElement | null): void {
  main?.querySelector<HTMLElement>("input[type=search], select")?.focus();
}
