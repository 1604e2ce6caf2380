// Drafts of jobs, stored in this tab: one of a new job, and one for each job that is being edited as new.
import { session } from "./storage.js";

const NAME = "evenkeel.draft";
const nameOf = (from) => (from ? `${NAME}.${from}` : NAME);

/** Returns the stored draft or null. `from` is the id of the job that it was copied from, or undefined. */
export function readDraft(from) {
  try {
    const draft = JSON.parse(session.get(nameOf(from)) ?? "null");
    return draft !== null && shapeError(draft) === "" ? draft : null;
  } catch {
    return null;
  }
}

/** Stores a draft. */
export function saveDraft(from, spec) {
  session.set(nameOf(from), JSON.stringify(spec));
}

/** Deletes a draft, after it was submitted. */
export function deleteDraft(from) {
  session.remove(nameOf(from));
}

/** Deletes all drafts: the next person to sign in may be someone else. */
export function deleteDrafts() {
  for (const name of session.names(NAME)) session.remove(name);
}

/** Says which part of a job has a shape that the form cannot show; empty if none has. The service checks everything else. */
export function shapeError(spec) {
  if (!isObject(spec)) return "A job must be an object: { … }";
  if (!isObject(spec.tables ?? {})) return "`tables` must be an object that maps names to tables";
  const invalid = Object.keys(spec.tables ?? {}).find((name) => !isObject(spec.tables[name]));
  if (invalid !== undefined) return `Table ${invalid} must be an object: { "path": …, … }`;
  const part = ["settings", "limits", "sink"].find((name) => !isObject(spec[name] ?? {}));
  if (part) return `\`${part}\` must be an object: { … }`;
  const text = ["sql", "name", "mode"].find((name) => typeof (spec[name] ?? "") !== "string");
  return text ? `\`${text}\` must be a string` : "";
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
