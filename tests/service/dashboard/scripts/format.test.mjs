import assert from "node:assert/strict";
import test from "node:test";
import { ago, duration, elapsed, factor, number, share, shortNumber, size } from "../../../../service/dashboard/static/js/format.js";

test("durations have at most two units", () => {
  const texts = [0, 999, 1000, 59_900, 59_960, 245_000, 3_599_600, 11_520_000, 183_600_000].map((one) => duration(one));
  assert.deepEqual(texts, ["0 ms", "999 ms", "1.0 s", "59.9 s", "1 m 00 s", "4 m 05 s", "1 h 00 m", "3 h 12 m", "2 d 3 h"]);
});

test("sizes have three digits and stay below 1000 of a unit", () => {
  assert.deepEqual([0, 999, 1000, 999_499, 999_999, 1_234_567, 5e15].map(size), ["0 B", "999 B", "1.00 kB", "999 kB", "1.00 MB", "1.23 MB", "5.00 PB"]);
});

test("an unknown value is a dash", () => {
  for (const format of [number, shortNumber, size, duration, share, factor]) {
    assert.equal(format(null), "–");
    assert.equal(format(undefined), "–");
    assert.equal(format(NaN), "–");
  }
});

test("shares and factors", () => {
  assert.deepEqual([0, 0.004, 0.42, 1].map(share), ["0.0 %", "0.4 %", "42 %", "100 %"]);
  assert.deepEqual([1, 3.44, 42.4, 99.6, 1234.5].map(factor), ["1.0×", "3.4×", "42×", "100×", "1235×"]);
});

test("ages and elapsed times", () => {
  const now = Date.parse("2026-01-31T12:00:00Z");
  assert.equal(ago("2026-01-31T11:59:48Z", now), "12 s ago");
  assert.equal(ago("2026-01-31T12:00:05Z", now), "0 s ago");
  assert.equal(elapsed(null, null, now), null);
  assert.equal(elapsed("2026-01-31T11:59:00Z", null, now), 60_000);
  assert.equal(elapsed("2026-01-31T11:59:00Z", "2026-01-31T11:58:00Z", now), 0);
});
