import assert from "node:assert/strict";
import test from "node:test";
import { exactly, retryAfterSeconds } from "../../../../service/dashboard/static/js/api.js";
import { canBeShown } from "../../../../service/dashboard/static/js/session.js";

test("integers that a browser's numbers have not are texts, and nothing else is", () => {
  const text = '{"rows":[[9223372036854775807,-9007199254740993,9007199254740991,1.5,12345678901234567890.25,1e30,"a 9223372036854775807 \\" 9223372036854775807",null,[18446744073709551615]]]}';
  assert.deepEqual(exactly(text).rows, [["9223372036854775807", "-9007199254740993", 9007199254740991, 1.5, 12345678901234567890.25, 1e30, 'a 9223372036854775807 " 9223372036854775807', null, ["18446744073709551615"]]]);
});

test("how long to wait is read however a proxy writes it", () => {
  const now = Date.parse("2026-01-31T12:00:00Z");
  const told = ["5", " 7 ", "Sat, 31 Jan 2026 12:00:30 GMT", "Sat, 31 Jan 2026 11:00:00 GMT", "soon", "-3", "1e9", "99999999999", "", null].map((one) => retryAfterSeconds(one, now));
  assert.deepEqual(told.slice(0, 6), [5, 7, 30, 0, 0, 0]);
  assert.ok(told.every((one) => one >= 0 && one <= 3600), told.join());
});

test("a key is what a header can carry", () => {
  assert.deepEqual(["ek_ab-C_9", "ek_…", "ek_\u200b", "a b", ""].map(canBeShown), [true, false, false, false, false]);
});
