// Polling that is polite: slower in a hidden tab, slower after failures, at once when the tab is looked at again.
import { useCallback, useEffect, useRef, useState } from "../vendor/preact.js";

const HIDDEN_FACTOR = 10;
const LONGEST_MS = 60_000;

/** How long to wait before asking again, in milliseconds. */
export function pause(intervalMs, failures, hidden, retryAfterSeconds = 0, random = Math.random) {
  const slow = intervalMs * 2 ** Math.min(failures, 6) * (hidden ? HIDDEN_FACTOR : 1);
  // Many tabs that lost the same service do not all come back at the same moment.
  const spread = failures ? slow * (0.75 + random() / 2) : slow;
  return Math.max(Math.min(spread, LONGEST_MS), retryAfterSeconds * 1000);
}

/** Whether the same request may have an answer later: none came, too many were sent, or the service was at fault. */
const mayPass = ({ status = 0 }) => status === 0 || status === 408 || status === 429 || status >= 500;

/**
 * What `ask(previous, signal)` resolves to, asked again every `intervalMs`, or once where that is 0; at once when
 * `occasion` is another; and from the beginning when `about` is. Gives `{value, error, refresh}`; an error leaves the
 * value as it was.
 */
export function usePolled(ask, intervalMs, about, occasion = "") {
  const [state, setState] = useState({ about, value: undefined, error: null });
  const latest = useRef({});
  latest.current = { ask, intervalMs };
  const known = useRef({ about, value: undefined });
  const wake = useRef(() => {});

  useEffect(() => {
    let stopped = false;
    let timer = 0;
    let failures = 0;
    let earliest = 0;
    let running = null;
    if (known.current.about !== about) known.current = { about, value: undefined };

    async function turn() {
      clearTimeout(timer);
      running?.abort();
      const aborter = new AbortController();
      running = aborter;
      let retryAfter = 0;
      let error = null;
      try {
        const value = await latest.current.ask(known.current.value, aborter.signal);
        if (stopped || running !== aborter) return;
        known.current = { about, value };
        failures = 0;
      } catch (caught) {
        if (stopped || running !== aborter) return;
        failures += 1;
        retryAfter = caught.retryAfterSeconds ?? 0;
        error = caught;
      }
      setState({ about, value: known.current.value, error });
      running = null;
      earliest = Date.now() + retryAfter * 1000;
      // What failed for now is asked for again also where once is enough.
      const interval = latest.current.intervalMs || (error && mayPass(error) ? 5000 : 0);
      if (interval) timer = setTimeout(turn, pause(interval, failures, document.hidden, retryAfter));
    }

    function seen() {
      if (document.hidden || !(latest.current.intervalMs || failures)) return;
      clearTimeout(timer);
      timer = setTimeout(turn, Math.max(0, earliest - Date.now()));
    }

    wake.current = turn;
    document.addEventListener("visibilitychange", seen);
    turn();
    return () => {
      stopped = true;
      clearTimeout(timer);
      running?.abort();
      document.removeEventListener("visibilitychange", seen);
    };
  }, [about, occasion, intervalMs > 0]);

  const refresh = useCallback(() => wake.current(), []);
  return state.about === about ? { ...state, refresh } : { value: undefined, error: null, refresh };
}
