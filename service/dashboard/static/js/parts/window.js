// Virtual scrolling: of a long list, only the visible rows and some around them are in the page.
import { useLayoutEffect, useState } from "../../vendor/preact.js";

const MARGIN_ROWS = 20;
const STEP = 10;

/** Returns the rows to draw, from `first` to before `last`. Each is `height` high; the first begins at `top` of the window. */
export function visibleRange(top, height, windowHeight, count) {
  const first = Math.floor((-top / height - MARGIN_ROWS) / STEP) * STEP;
  const last = Math.ceil(((windowHeight - top) / height + MARGIN_ROWS) / STEP) * STEP;
  return { first: Math.min(Math.max(first, 0), count), last: Math.min(Math.max(last, 0), count) };
}

/**
 * Returns the rows of a list to draw, updated on scrolling: `{isMeasured, first, last, before, after}`. `before` and `after`
 * are the heights of the other rows in pixels. `place` refers to the element with the rows; its `--row-height` is the height
 * of a row in pixels.
 */
export function useVisibleRange(place, count) {
  const [range, setRange] = useState({ first: 0, last: 3 * MARGIN_ROWS, height: 0 });

  useLayoutEffect(() => {
    if (!place.current) return undefined;
    function measure() {
      const height = parseFloat(getComputedStyle(place.current).getPropertyValue("--row-height"));
      const now = { ...visibleRange(place.current.getBoundingClientRect().top, height, innerHeight, count), height };
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
