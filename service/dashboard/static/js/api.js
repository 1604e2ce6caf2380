// Requests to the public API: they send the tab's key and turn problems into errors.
import { key } from "./session.js";

const TIMEOUT_SECONDS = 30;
const MAX_RETRY_SECONDS = 3600;
const TEXT_OR_NUMBER = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

/** A refused request; its status is 0 if the service could not be reached. `problem` has the form of RFC 9457. */
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

const keyEvents = new EventTarget();

/** Calls `listener` whenever the service refuses the tab's key or requires one. Returns a function that ends this. */
export function onKeyRefused(listener) {
  keyEvents.addEventListener("refused", listener);
  return () => keyEvents.removeEventListener("refused", listener);
}

/** Returns the path with these query parameters: empty ones are left out, lists become repeated parameters. */
export function withQuery(path, parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const item of Array.isArray(value) ? value : [value]) {
      if (item !== "" && item !== null && item !== undefined) query.append(name, item);
    }
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

/**
 * Sends a request and returns the response if its status is 2xx or 304. Throws ApiError for any other status and if no
 * response arrives. `seconds` limits the time for the response including its body.
 */
export async function send(method, path, { body, headers = {}, signal, seconds, cache = "no-store" } = {}) {
  const sentKey = key();
  const allHeaders = { Accept: "application/json", ...headers };
  if (sentKey) allHeaders.Authorization = `Bearer ${sentKey}`;
  if (body !== undefined) allHeaders["Content-Type"] ??= "application/json";
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), {
      method,
      headers: allHeaders,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: withTimeout(signal, seconds),
      cache,
      credentials: "omit",
      redirect: "error",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { title: "No response", detail: "The service cannot be reached." }, 0);
  }
  if (response.ok || response.status === 304) return response;
  const problem = await readProblem(response);
  // If the tab has another key by now, this response says nothing about it.
  if (response.status === 401 && sentKey === key()) keyEvents.dispatchEvent(new Event("refused"));
  throw new ApiError(response.status, problem, retryAfterSeconds(response.headers.get("Retry-After")));
}

/** Returns the JSON at `path`. */
export async function get(path, options) {
  return (await send("GET", path, { seconds: TIMEOUT_SECONDS, ...options })).json();
}

/** Like `get`, but integers beyond 2^53 become strings with all their digits. */
export async function getExact(path, options) {
  return parseExact(await (await send("GET", path, options)).text());
}

/** Parses JSON. Integers that a JavaScript number cannot represent become strings. */
export function parseExact(text) {
  return JSON.parse(text.replace(TEXT_OR_NUMBER, (token) => (/^-?\d+$/.test(token) && !Number.isSafeInteger(Number(token)) ? `"${token}"` : token)));
}

/** Sends a changing request. Returns the JSON of the response, or null if it has no body. */
export async function change(method, path, options) {
  const response = await send(method, path, options);
  return response.status === 204 ? null : response.json();
}

/** Returns `{value, etag}` of `path`; `known`, an earlier result of this function, if nothing has changed since. */
export async function getIfChanged(path, known, options = {}) {
  const headers = { ...options.headers };
  if (known?.etag) headers["If-None-Match"] = known.etag;
  const response = await send("GET", path, { seconds: TIMEOUT_SECONDS, ...options, headers });
  if (response.status === 304) return known;
  return { value: await response.json(), etag: response.headers.get("ETag") };
}

async function readProblem(response) {
  try {
    const body = await response.json();
    if (body !== null && typeof body === "object") return body;
  } catch {
    // The body is not from the service but, for example, from a proxy.
  }
  return { title: response.statusText, detail: `The response was ${response.status} ${response.statusText}.` };
}

function withTimeout(signal, seconds) {
  if (!seconds) return signal;
  const timeout = AbortSignal.timeout(seconds * 1000);
  return signal ? AbortSignal.any([signal, timeout]) : timeout;
}

/** Returns the seconds of a Retry-After header, which has seconds or a date; 0 without a valid header. */
export function retryAfterSeconds(header, now = Date.now()) {
  const seconds = /^\s*\d+\s*$/.test(header ?? "") ? Number(header) : (Date.parse(header ?? "") - now) / 1000;
  return seconds > 0 ? Math.min(seconds, MAX_RETRY_SECONDS) : 0;
}
