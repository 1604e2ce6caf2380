import assert from "node:assert/strict";
import test from "node:test";
import { parseExact, retryAfterSeconds } from "../../../../service/dashboard/static/js/api.js";
import { isValidKey } from "../../../../service/dashboard/static/js/session.js";

test("only integers beyond the range of JavaScript numbers become strings", () => {
  const text = '{"rows":[[9223372036854775807,-9007199254740993,9007199254740991,1.5,12345678901234567890.25,1e30,"a 9223372036854775807 \\" 9223372036854775807",null,[18446744073709551615]]]}';
  assert.deepEqual(parseExact(text).rows, [["9223372036854775807", "-9007199254740993", 9007199254740991, 1.5, 12345678901234567890.25, 1e30, 'a 9223372036854775807 " 9223372036854775807', null, ["18446744073709551615"]]]);
});

test("Retry-After is read in seconds and as a date", () => {
  const now = Date.parse("2026-01-31T12:00:00Z");
  const seconds = ["5", " 7 ", "Sat, 31 Jan 2026 12:00:30 GMT", "Sat, 31 Jan 2026 11:00:00 GMT", "soon", "-3", "1e9", "99999999999", "", null].map((one) => retryAfterSeconds(one, now));
  assert.deepEqual(seconds.slice(0, 6), [5, 7, 30, 0, 0, 0]);
  assert.ok(seconds.every((one) => one >= 0 && one <= 3600), seconds.join());
});

test("a valid key can be sent in a header", () => {
  assert.deepEqual(["ek_ab-C_9", "ek_…", "ek_\u200b", "a b", ""].map(isValidKey), [true, false, false, false, false]);
});
