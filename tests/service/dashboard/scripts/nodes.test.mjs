import assert from "node:assert/strict";
import test from "node:test";
import { isOf, marksAfter, marksBefore, nodeNumber, wrongByNode, wrongEstimates, wrongText } from "../../../../service/dashboard/static/js/job/nodes.js";

const node = (id, operator, detail, rest = {}) => ({ id, operator, detail, inputs: [], ...rest });
const fired = (rule, text, id) => ({ rule, outcome: "fired", node: text, alternatives: [{}], ...(id === undefined ? {} : { node_id: id }) });

test("rules mark the node that they looked at, though another one reads alike", () => {
  const nodes = [node(3, "Scan", "t"), node(7, "Aggregate", "BY k"), node(9, "Aggregate", "BY k")];
  const rules = [fired("split", "Aggregate BY k", 9), fired("phases", "Aggregate BY k", 9), fired("made", "Join", 12), { ...fired("no", "Scan t", 3), outcome: "skipped" }];
  assert.deepEqual(marksBefore({ before: { nodes }, rules }), { 9: "split, phases" });
});

test("in a report of an earlier version they mark the only node that reads so", () => {
  const nodes = [node(0, "Scan", "t"), node(1, "Deduplicate", ""), node(2, "Aggregate", "BY k"), node(3, "Aggregate", "BY k")];
  const rules = [fired("a", "Scan t", null), fired("b", "Deduplicate"), fired("c", "Aggregate BY k", null)];
  assert.deepEqual(marksBefore({ before: { nodes }, rules }), { 0: "a", 1: "b" });
});

test("nodes of the plan after are marked by what changed them", () => {
  const nodes = [node(0, "Scan", "t", { changed_by: null }), node(12, "Join", "", { changed_by: "eager" })];
  assert.deepEqual(marksAfter({ after: { nodes } }), { 12: "eager" });
});

test("a wrong estimate is listed with its node, its rule and its factor", () => {
  const emitted = { quantity: "rows_emitted", node: "Join INNER", node_id: 6, rule: null, estimated: 38_279_129_098, measured: 2_100_000, factor: 18228.2 };
  const chosen = { quantity: "rows_shuffled", node: "Aggregate", node_id: 3, rule: "eager_aggregation", estimated: 100, measured: 9_000, factor: 90 };
  const read = { quantity: "rows_read", node: null, node_id: null, rule: null, estimated: 100, measured: 9_000, factor: 90 };
  const later = { ...read, quantity: "a_later_one" };
  const possible = { ...chosen, quantity: "rows_on_hottest_task", estimated: 900_000 };
  const texts = [emitted, chosen, read, later, possible].map(wrongText).map((text) => text.replaceAll(/[\u202f\u00a0 ,]/g, " "));
  assert.deepEqual(texts, [
    "The estimate was wrong: 38 279 129 098 rows of #6 Join INNER were estimated  but 2 100 000 were measured: 18 228 times too high.",
    "The estimate was wrong: 100 rows shuffled for #3 Aggregate were estimated (by eager_aggregation)  but 9 000 were measured: 90 times too low.",
    "The estimate was wrong: 100 rows read were estimated  but 9 000 were measured: 90 times too low.",
    "The estimate was wrong: 100 a_later_one were estimated  but 9 000 were measured: 90 times too low.",
    "The estimate was wrong: 900 000 rows on the hottest task for #3 Aggregate were estimated (by eager_aggregation)  but at most 9 000 are possible by what was measured: 90 times too high.",
  ]);
  assert.deepEqual(wrongByNode({ estimates: { wrong: [emitted, chosen, read] } }), { 6: emitted });
  const trace = fired("eager_aggregation", "Aggregate", 3);
  assert.deepEqual([emitted, chosen, read].map((one) => isOf(one, trace)), [false, true, false]);
  assert.equal(isOf(chosen, { ...trace, node_id: 4 }), false);
});

test("a report of an earlier version has no wrong estimates and no ids", () => {
  assert.deepEqual([undefined, { estimates: null }, { estimates: { choices: [] } }].map(wrongEstimates), [[], [], []]);
  assert.deepEqual([null, undefined, 0, 12].map(nodeNumber), ["", "", "#0", "#12"]);
});
