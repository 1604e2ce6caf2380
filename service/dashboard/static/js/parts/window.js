// Long lists: only the rows in sight, and some around them, are in the page.
import { useLayoutEffect, useState } from "../../vendor/preact.js";

const AROUND = 20;
const STEP = 10;

/** Which rows to draw: from `first` to before `last`, of those that are `height` high and begin at `top` of the window. */
export function visible(top, height, windowHeight, count) {
  const first = Math.floor((-top / height - AROUND) / STEP) * STEP;
  const last = Math.ceil(((windowHeight - top) / height + AROUND) / STEP) * STEP;
  return { first: Math.min(Math.max(first, 0), count), last: Math.min(Math.max(last, 0), count) };
}

/**
 * The rows of a list to draw, anew as it is scrolled: `{isMeasured, first, last, before, after}`, with the pixels that stand
 * for the others, once these are known. `place` refers to the element that holds the rows; `--row-height` there is how high each is, in pixels.
 */
export function useVisible(place, count) {
  const [range, setRange] = useState({ first: 0, last: 3 * AROUND, height: 0 });

  useLayoutEffect(() => {
    if (!place.current) return undefined;
    function measure() {
      const height = parseFloat(getComputedStyle(place.current).getPropertyValue("--row-height"));
      const now = { ...visible(place.current.getBoundingClientRect().top, height, innerHeight, count), height };
      setRange((before) => (before.first === now.first && before.last === now.last && before.height === height ? before : now));
    }
    measure();
    addEventListener("scroll", measure, { passive: true });
    addEventListener("resize", measure);
    return () => {
      removeEventListener("scroll", measure);
      removeEventListener("resize", measure);
    };
  }, [place.current, count]);

  const last = Math.min(range.last, count);
  return { isMeasured: range.height > 0, first: range.first, last, before: range.first * range.height, after: (count - last) * range.height };
}
