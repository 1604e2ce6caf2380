import assert from "node:assert/strict";
import test from "node:test";
import { visibleRange } from "../../../../service/dashboard/static/js/parts/window.js";

test("visibleRange rows are drawn at every scroll position", () => {
  for (const count of [0, 1, 50, 10_000]) {
    for (let top = 500; top > -40 * count - 500; top -= 333) {
      const { first, last } = visibleRange(top, 40, 900, count);
      assert.ok(0 <= first && first <= last && last <= count);
      const begins = Math.max(0, Math.floor(-top / 40));
      const ends = Math.min(count, Math.ceil((900 - top) / 40));
      if (begins < ends) assert.ok(first <= begins && ends <= last, `${count} ${top}`);
      assert.ok(last - first <= 90);
    }
  }
});
