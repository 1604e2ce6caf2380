import assert from "node:assert/strict";
import test from "node:test";
import { inferred, placeholders } from "../../../../service/dashboard/static/js/job_form/parameters.js";

test("placeholders are found once, in their order, outside of strings, quoted names, comments and casts", () => {
  const sql = `SELECT ':no', "a:no", \`b:no\`, 'it''s :no', x::DATE -- :no
    FROM t /* :no
    */ WHERE t.a = :second AND t.b>=:first_1 OR :second IN (1,:third)`;
  assert.deepEqual(placeholders(sql), ["second", "first_1", "third"]);
});

test("a text becomes the value that JSON has for it, with a type where JavaScript would change the number", () => {
  const values = { true: true, false: false, 60: 60, "-3": -3, "2013-01-31": "2013-01-31", EWR: "EWR", "1.0": { type: "DOUBLE", value: "1.0" }, "2e3": { type: "DOUBLE", value: "2e3" } };
  for (const [text, value] of Object.entries(values)) assert.deepEqual(inferred(text), value);
  assert.deepEqual(inferred("9007199254740993"), { type: "BIGINT", value: "9007199254740993" });
  assert.equal(inferred(""), undefined);
});
