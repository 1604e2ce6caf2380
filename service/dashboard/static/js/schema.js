// The service's own description: forms are made from it, so that they offer what this service takes.
import { get } from "./api.js";
import { usePolled } from "./polling.js";

let known = null;

/** `components.schemas` of /openapi.json; null until it is there. It is asked for once. */
export function useSchema() {
  const { value } = usePolled(async (_, signal) => (known ??= (await get("openapi.json", { signal, cache: "default" })).components.schemas), 0, "schema");
  return value ?? known;
}
