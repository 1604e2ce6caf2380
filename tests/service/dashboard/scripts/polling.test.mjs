import assert from "node:assert/strict";
import test from "node:test";
import { nextDelay } from "../../../../service/dashboard/static/js/polling.js";

test("a hidden tab sends a tenth of the requests", () => {
  assert.equal(nextDelay(3000, 0, false), 3000);
  assert.equal(nextDelay(3000, 0, true), 30_000);
});

test("the delay grows with failures up to a minute and is random", () => {
  const half = () => 0.5;
  assert.deepEqual([1, 2, 3].map((failures) => nextDelay(1000, failures, false, 0, half)), [2000, 4000, 8000]);
  assert.equal(nextDelay(3000, 50, true, 0, () => 1), 60_000);
  assert.equal(nextDelay(1000, 1, false, 0, () => 0), 1500);
  assert.equal(nextDelay(1000, 1, false, 0, () => 1), 2500);
});

test("the delay is at least that of Retry-After", () => {
  assert.equal(nextDelay(1000, 1, false, 90, () => 0), 90_000);
});
