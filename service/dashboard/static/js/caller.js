// Who uses the page, and what the key that is shown may do.
import { createContext, useContext } from "../vendor/preact.js";

export const CallerContext = createContext({ tenant: "", scopes: [] });

/** The caller as `GET /v1/me` tells, with what that comes to. */
export function useCaller() {
  const caller = useContext(CallerContext);
  return { ...caller, maySubmit: caller.scopes.includes("submit"), isAdmin: caller.scopes.includes("admin") };
}
