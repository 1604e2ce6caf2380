// Polling: less often in a hidden tab and after failures, and at once when the tab is shown again.
import { useCallback, useEffect, useRef, useState } from "../vendor/preact.js";

const HIDDEN_FACTOR = 10;
const MAX_DELAY_MS = 60_000;

/** Returns the time before the next request in milliseconds. */
export function nextDelay(intervalMs, failures, hidden, retryAfterSeconds = 0, random = Math.random) {
  const interval = intervalMs * 2 ** Math.min(failures, 6) * (hidden ? HIDDEN_FACTOR : 1);
  // After an outage, the tabs do not all send requests at the same moment.
  const delay = failures ? interval * (0.75 + random() / 2) : interval;
  return Math.max(Math.min(delay, MAX_DELAY_MS), retryAfterSeconds * 1000);
}

/** Whether the same request may succeed later: no response, too many requests, or an error of the server. */
const isTransient = ({ status = 0 }) => status === 0 || status === 408 || status === 429 || status >= 500;

/**
 * Returns `{value, error, refresh}`, where `value` is the result of `request(previous, signal)`. The request is repeated every
 * `intervalMs`, or not at all if that is 0, and at once if `trigger` changes. If `subject` changes, the value is
 * discarded first. After an error, the value stays.
 */
export function usePolled(request, intervalMs, subject, trigger = "") {
  const [state, setState] = useState({ subject, value: undefined, error: null });
  const latest = useRef({});
  latest.current = { request, intervalMs };
  const last = useRef({ subject, value: undefined });
  const pollNow = useRef(() => {});

  useEffect(() => {
    let stopped = false;
    let timer = 0;
    let failures = 0;
    let earliest = 0;
    let running = null;
    if (last.current.subject !== subject) last.current = { subject, value: undefined };

    async function poll() {
      clearTimeout(timer);
      running?.abort();
      const controller = new AbortController();
      running = controller;
      let retryAfter = 0;
      let error = null;
      try {
        const value = await latest.current.request(last.current.value, controller.signal);
        if (stopped || running !== controller) return;
        last.current = { subject, value };
        failures = 0;
      } catch (caught) {
        if (stopped || running !== controller) return;
        failures += 1;
        retryAfter = caught.retryAfterSeconds ?? 0;
        error = caught;
      }
      setState({ subject, value: last.current.value, error });
      running = null;
      earliest = Date.now() + retryAfter * 1000;
      // A transient failure is retried, even if one response is enough.
      const interval = latest.current.intervalMs || (error && isTransient(error) ? 5000 : 0);
      if (interval) timer = setTimeout(poll, nextDelay(interval, failures, document.hidden, retryAfter));
    }

    function onVisibilityChange() {
      if (document.hidden || !(latest.current.intervalMs || failures)) return;
      clearTimeout(timer);
      timer = setTimeout(poll, Math.max(0, earliest - Date.now()));
    }

    pollNow.current = poll;
    document.addEventListener("visibilitychange", onVisibilityChange);
    poll();
    return () => {
      stopped = true;
      clearTimeout(timer);
      running?.abort();
      document.removeEventListener("visibilitychange", onVisibilityChange);
    };
  }, [subject, trigger, intervalMs > 0]);

  const refresh = useCallback(() => pollNow.current(), []);
  return state.subject === subject ? { ...state, refresh } : { value: undefined, error: null, refresh };
}
