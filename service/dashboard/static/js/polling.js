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

/**
 * What `ask(previous, signal)` resolves to, asked again every `intervalMs`, or once where that is 0; again from the
 * beginning when `about` is another. Gives `{value, error, refresh}`; an error leaves the value as it was.
 */
export function usePolled(ask, intervalMs, about) {
  const [state, setState] = useState({ about, value: undefined, error: null });
  const latest = useRef({ ask, intervalMs });
  latest.current = { ask, intervalMs };
  const wake = useRef(() => {});

  useEffect(() => {
    let stopped = false;
    let timer = 0;
    let failures = 0;
    let value;
    let running = null;

    async function turn() {
      clearTimeout(timer);
      running?.abort();
      const aborter = new AbortController();
      running = aborter;
      let retryAfter = 0;
      try {
        value = await latest.current.ask(value, aborter.signal);
        failures = 0;
        if (!stopped && running === aborter) setState({ about, value, error: null });
      } catch (error) {
        if (stopped || running !== aborter) return;
        failures += 1;
        retryAfter = error.retryAfterSeconds ?? 0;
        setState({ about, value, error });
      }
      if (stopped || running !== aborter) return;
      running = null;
      schedule(retryAfter);
    }

    function schedule(retryAfter) {
      // What failed for want of an answer is asked for again also where once is enough.
      const interval = latest.current.intervalMs || (failures ? 5000 : 0);
      if (interval) timer = setTimeout(turn, pause(interval, failures, document.hidden, retryAfter));
    }

    function seen() {
      if (!document.hidden && (latest.current.intervalMs || failures)) turn();
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
  }, [about, intervalMs > 0]);

  const refresh = useCallback(() => wake.current(), []);
  return state.about === about ? { ...state, refresh } : { value: undefined, error: null, refresh };
}
