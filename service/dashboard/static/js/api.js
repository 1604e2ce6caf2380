// The public API over fetch: with the tab's key, problems as errors, and entity tags.
import { key } from "./session.js";

const PATIENCE_SECONDS = 30;
const LONGEST_RETRY_SECONDS = 3600;
const TEXT_OR_NUMBER = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

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

/**
 * A response of the service whose status is 2xx or 304. Throws ApiError for any other, and where none came; within
 * `seconds`, where that is given, its body included.
 */
export async function send(method, path, { body, headers = {}, signal, seconds, cache = "no-store" } = {}) {
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
      signal: limited(signal, seconds),
      cache,
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
  throw new ApiError(response.status, problem, retryAfterSeconds(response.headers.get("Retry-After")));
}

/** The JSON at `path`. */
export async function get(path, options) {
  return (await send("GET", path, { seconds: PATIENCE_SECONDS, ...options })).json();
}

/** As `get`, with integers beyond 2^53 as the texts that they were written as. */
export async function getExactly(path, options) {
  return exactly(await (await send("GET", path, options)).text());
}

/** What a text of JSON says, where a browser's numbers have not all integers. */
export function exactly(text) {
  return JSON.parse(text.replace(TEXT_OR_NUMBER, (token) => (/^-?\d+$/.test(token) && !Number.isSafeInteger(Number(token)) ? `"${token}"` : token)));
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
  const response = await send("GET", path, { seconds: PATIENCE_SECONDS, ...options, headers });
  if (response.status === 304) return known;
  return { value: await response.json(), etag: response.headers.get("ETag") };
}

async function problemOf(response) {
  try {
    const told = await response.json();
    if (told !== null && typeof told === "object") return told;
  } catch {
    // Not the service's own words, but those of whatever stands before it.
  }
  return { title: response.statusText, detail: `The answer was ${response.status} ${response.statusText}.` };
}

function limited(signal, seconds) {
  if (!seconds) return signal;
  const limit = AbortSignal.timeout(seconds * 1000);
  return signal ? AbortSignal.any([signal, limit]) : limit;
}

/** Of the header, in seconds or as a date; 0 where it says nothing. */
export function retryAfterSeconds(header, now = Date.now()) {
  const seconds = /^\s*\d+\s*$/.test(header ?? "") ? Number(header) : (Date.parse(header ?? "") - now) / 1000;
  return seconds > 0 ? Math.min(seconds, LONGEST_RETRY_SECONDS) : 0;
}
