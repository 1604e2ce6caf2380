// Jobs that are being written, kept in this tab: a new one, and those that begin with an earlier job.
import { session } from "./storage.js";

const NAME = "evenkeel.draft";
const nameOf = (from) => (from ? `${NAME}.${from}` : NAME);

/** The draft that was kept, or null; `from` is the id of the job that it began with. */
export function draftOf(from) {
  try {
    const kept = JSON.parse(session.get(nameOf(from)) ?? "null");
    return kept !== null && misshapen(kept) === "" ? kept : null;
  } catch {
    return null;
  }
}

/** Keeps a draft. */
export function keepDraft(from, spec) {
  session.set(nameOf(from), JSON.stringify(spec));
}

/** Forgets a draft that was submitted. */
export function dropDraft(from) {
  session.remove(nameOf(from));
}

/** Forgets all of them: whoever comes next may be somebody else. */
export function dropDrafts() {
  for (const name of session.names(NAME)) session.remove(name);
}

/** What of a job's shape the forms cannot show, or an empty string; all else is the service's to judge. */
export function misshapen(spec) {
  if (!isObject(spec)) return "A job is an object: { … }";
  if (!isObject(spec.tables ?? {})) return "`tables` is an object: a table by its name";
  const odd = Object.keys(spec.tables ?? {}).find((name) => !isObject(spec.tables[name]));
  if (odd !== undefined) return `table ${odd} is an object: { "format": …, … }`;
  const part = ["settings", "limits", "sink"].find((name) => !isObject(spec[name] ?? {}));
  if (part) return `\`${part}\` is an object: { … }`;
  const text = ["sql", "name", "mode"].find((name) => typeof (spec[name] ?? "") !== "string");
  return text ? `\`${text}\` is a text` : "";
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
