// The API key and its caller. The key is only in this tab's session storage, never in an address.
import { createContext, useContext } from "../vendor/preact.js";
import { session } from "./storage.js";

const NAME = "evenkeel.key";

/** Returns the key of this tab, or an empty string. */
export const key = () => session.get(NAME) ?? "";

/** Stores a key for this tab; an empty string deletes it. */
export function storeKey(text) {
  if (text) session.set(NAME, text);
  else session.remove(NAME);
}

/** Whether the key can be sent in a header. */
export const isValidKey = (text) => /^[\x21-\x7e]+$/.test(text);

/** The caller as in `GET /v1/me`: the tenant and the scopes of the key. */
export const CallerContext = createContext({ tenant: "", scopes: [] });

/** Returns the caller, with `maySubmit` and `isAdmin` by its scopes. */
export function useCaller() {
  const caller = useContext(CallerContext);
  return { ...caller, maySubmit: caller.scopes.includes("submit"), isAdmin: caller.scopes.includes("admin") };
}
