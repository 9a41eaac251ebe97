// The address of a page is the part after `#`, so that the server has one path for all of them.
import { useEffect, useState } from "preact/hooks";

export interface Route {
  page: string;
  id: string | null;
}

export function parseRoute(hash: string): Route {
  const [page, id] = hash.replace(/^#\/?/, "").split("/");
  return { page: page || "playground", id: id ? decodeId(id) : null };
}

function decodeId(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function hrefOf(page: string, id?: string): string {
  return id === undefined ? `#/${page}` : `#/${page}/${encodeURIComponent(id)}`;
}

export function go(page: string): void {
  location.hash = hrefOf(page);
}

export function useRoute(): Route {
  const [route, setRoute] = useState(() => parseRoute(location.hash));
  useEffect(() => {
    const update = () => setRoute(parseRoute(location.hash));
    // It may have changed before anybody listened.
    update();
    addEventListener("hashchange", update);
    return () => removeEventListener("hashchange", update);
  }, []);
  return route;
}
