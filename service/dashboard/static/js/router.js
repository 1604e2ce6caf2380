// Routes in the address's fragment: `#/jobs`, `#/jobs/ID/plan`, `#/new`. No address contains an API key or a query's text.
import { useEffect, useState } from "../vendor/preact.js";

/** Returns the route of a fragment: `{parts: ["jobs", ID, "plan"], parameters: {…}}`. */
export function parseRoute(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  return {
    parts: path.split("/").filter(Boolean).map(decodeURIComponent),
    parameters: Object.fromEntries(new URLSearchParams(query)),
  };
}

/** Returns the address of a page. */
export function address(parts, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value)).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${query ? `?${query}` : ""}`;
}

/** Goes to a page. With `replace`, it replaces the current page in the browser's history. */
export function go(to, { replace = false } = {}) {
  if (replace) location.replace(to);
  else location.hash = to;
}

/** Returns the current route, also after it changes. */
export function useRoute() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const onHashChange = () => setHash(location.hash);
    addEventListener("hashchange", onHashChange);
    return () => removeEventListener("hashchange", onHashChange);
  }, []);
  return parseOrNotFound(hash);
}

function parseOrNotFound(hash) {
  try {
    return parseRoute(hash);
  } catch {
    return { parts: ["not-found"], parameters: {} };
  }
}
