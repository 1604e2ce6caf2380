// Addresses behind the `#`: `#/jobs`, `#/jobs/ID/plan`, `#/new`. No address holds a key or a query's text.
import { useEffect, useState } from "../vendor/preact.js";

/** The parts of the address and its parameters: `{parts: ["jobs", ID, "plan"], parameters: {…}}`. */
export function read(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  return {
    parts: path.split("/").filter(Boolean).map(decodeURIComponent),
    parameters: Object.fromEntries(new URLSearchParams(query)),
  };
}

/** The address of a page. */
export function address(parts, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value)).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${query ? `?${query}` : ""}`;
}

/** Goes to a page; with `replace`, the one at hand is no step of the way back. */
export function go(to, { replace = false } = {}) {
  if (replace) location.replace(to);
  else location.hash = to;
}

/** The route as it changes. */
export function useRoute() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = () => setHash(location.hash);
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return safely(hash);
}

function safely(hash) {
  try {
    return read(hash);
  } catch {
    return { parts: ["not-found"], parameters: {} };
  }
}
