import assert from "node:assert/strict";
import test from "node:test";
import { pause } from "../../../../service/dashboard/static/js/polling.js";

test("a hidden tab asks ten times less often", () => {
  assert.equal(pause(3000, 0, false), 3000);
  assert.equal(pause(3000, 0, true), 30_000);
});

test("failures make it wait longer, up to a minute, and not all tabs alike", () => {
  const half = () => 0.5;
  assert.deepEqual([1, 2, 3].map((failures) => pause(1000, failures, false, 0, half)), [2000, 4000, 8000]);
  assert.equal(pause(3000, 50, true, 0, () => 1), 60_000);
  assert.equal(pause(1000, 1, false, 0, () => 0), 1500);
  assert.equal(pause(1000, 1, false, 0, () => 1), 2500);
});

test("it waits for as long as the service asks", () => {
  assert.equal(pause(1000, 1, false, 90, () => 0), 90_000);
});
