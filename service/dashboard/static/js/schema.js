// The service's own description: forms are made from it, so that they offer what this service takes.
import { useEffect, useState } from "../vendor/preact.js";
import { get } from "./api.js";

let asked = null;

/** `components.schemas` of /openapi.json; null until it is there. */
export function useSchema() {
  const [schemas, setSchemas] = useState(null);
  useEffect(() => {
    let wanted = true;
    asked ??= get("openapi.json").then((document) => document.components.schemas);
    asked.then(
      (found) => wanted && setSchemas(found),
      () => {
        asked = null;
      },
    );
    return () => {
      wanted = false;
    };
  }, []);
  return schemas;
}
