// The public API over fetch: with the tab's key, problems as errors, and entity tags.
import { key } from "./session.js";

/** What the service refused, or that it could not be reached (status 0). `problem` is as RFC 9457 has it. */
export class ApiError extends Error {
  constructor(status, problem, retryAfterSeconds) {
    super(problem.detail ?? problem.title ?? "The request failed.");
    this.status = status;
    this.problem = problem;
    this.retryAfterSeconds = retryAfterSeconds;
  }

  get code() {
    return this.problem.code ?? "";
  }
}

const refused = new EventTarget();

/** Calls `handle` whenever a key is missing or holds no more. Returns what ends that. */
export function onKeyRefused(handle) {
  refused.addEventListener("refused", handle);
  return () => refused.removeEventListener("refused", handle);
}

/** The path with these parameters; empty ones are left out, lists are repeated. */
export function withQuery(path, parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== "" && one !== null && one !== undefined) query.append(name, one);
    }
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

/** A response of the service whose status is 2xx or 304. Throws ApiError for any other, and where none came. */
export async function send(method, path, { body, headers = {}, signal } = {}) {
  const shown = key();
  const all = { Accept: "application/json", ...headers };
  if (shown) all.Authorization = `Bearer ${shown}`;
  if (body !== undefined) all["Content-Type"] ??= "application/json";
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), {
      method,
      headers: all,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { title: "No answer", detail: "The service cannot be reached." }, 0);
  }
  if (response.ok || response.status === 304) return response;
  const problem = await problemOf(response);
  // An answer to a key that was shown before says nothing of the one that is shown now.
  if (response.status === 401 && shown === key()) refused.dispatchEvent(new Event("refused"));
  throw new ApiError(response.status, problem, Number(response.headers.get("Retry-After") ?? 0));
}

/** The JSON at `path`. */
export async function get(path, options) {
  return (await send("GET", path, options)).json();
}

/** As `get`, with integers beyond 2^53 as texts, where the browser tells how they were written. */
export async function getExactly(path, options) {
  return JSON.parse(await (await send("GET", path, options)).text(), exact);
}

function exact(_, value, context) {
  const isRounded = typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "");
  return isRounded ? context.source : value;
}

/** The JSON that a change was answered with, or null where there is none. */
export async function change(method, path, options) {
  const response = await send(method, path, options);
  return response.status === 204 ? null : response.json();
}

/** Asks with the entity tag of what is known: `{value, etag}`, the known one where nothing changed. */
export async function getUnlessKnown(path, known, options = {}) {
  const headers = { ...options.headers };
  if (known?.etag) headers["If-None-Match"] = known.etag;
  const response = await send("GET", path, { ...options, headers });
  if (response.status === 304) return known;
  return { value: await response.json(), etag: response.headers.get("ETag") };
}

async function problemOf(response) {
  try {
    return await response.json();
  } catch {
    return { title: response.statusText, detail: `The answer was ${response.status} ${response.statusText}.` };
  }
}
