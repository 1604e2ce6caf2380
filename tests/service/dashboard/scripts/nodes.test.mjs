import assert from "node:assert/strict";
import test from "node:test";
import { marksAfter, marksBefore, nodeNumber, wrongByNode, wrongEstimates, wrongText } from "../../../../service/dashboard/static/js/job/nodes.js";

const node = (id, operator, detail, rest = {}) => ({ id, operator, detail, inputs: [], ...rest });
const fired = (rule, text, id) => ({ rule, outcome: "fired", node: text, alternatives: [{}], ...(id === undefined ? {} : { node_id: id }) });

test("a rule marks the node that it examined, even if another node has the same text", () => {
  const nodes = [node(3, "Scan", "t"), node(7, "Aggregate", "BY k"), node(9, "Aggregate", "BY k")];
  const rules = [fired("split", "Aggregate BY k", 9), fired("phases", "Aggregate BY k", 9), fired("made", "Join", 12), { ...fired("no", "Scan t", 3), outcome: "skipped" }];
  assert.deepEqual(marksBefore({ before: { nodes }, rules }), { 9: ["split", "phases"] });
});

test("in a report of an older version, a rule marks the only node with the same text", () => {
  const nodes = [node(0, "Scan", "t"), node(1, "Deduplicate", ""), node(2, "Aggregate", "BY k"), node(3, "Aggregate", "BY k")];
  const rules = [fired("a", "Scan t", null), fired("b", "Deduplicate"), fired("c", "Aggregate BY k", null)];
  assert.deepEqual(marksBefore({ before: { nodes }, rules }), { 0: ["a"], 1: ["b"] });
});

test("nodes of the plan after are marked with the rule that changed them", () => {
  const nodes = [node(0, "Scan", "t", { changed_by: null }), node(12, "Join", "", { changed_by: "eager" })];
  assert.deepEqual(marksAfter({ after: { nodes } }), { 12: ["eager"] });
});

test("a wrong estimate is listed with its node, its rule and its factor", () => {
  const emitted = { quantity: "rows_emitted", node: "Join INNER", node_id: 6, rule: null, estimated: 38_279_129_098, measured: 2_100_000, factor: 18228.2 };
  const chosen = { quantity: "rows_shuffled", node: "Aggregate", node_id: 3, rule: "eager_aggregation", estimated: 100, measured: 9_000, factor: 90 };
  const read = { quantity: "rows_read", node: null, node_id: null, rule: null, estimated: 100, measured: 9_000, factor: 90 };
  const newer = { ...read, quantity: "newer_quantity" };
  const possible = { ...chosen, quantity: "rows_on_hottest_task", estimated: 900_000 };
  const texts = [emitted, chosen, read, newer, possible].map(wrongText).map((text) => text.replaceAll(/[\u202f\u00a0 ,]/g, " "));
  assert.deepEqual(texts, [
    "Estimated: 38 279 129 098 rows of #6 Join INNER. Measured: 2 100 000  18 228 times less.",
    "Estimated: 100 rows shuffled for #3 Aggregate (by eager_aggregation). Measured: 9 000  90 times more.",
    "Estimated: 100 rows read. Measured: 9 000  90 times more.",
    "Estimated: 100 newer_quantity. Measured: 9 000  90 times more.",
    "Estimated: 900 000 rows on the hottest task for #3 Aggregate (by eager_aggregation). Measured: at most 9 000  90 times less.",
  ]);
  assert.deepEqual(wrongByNode({ estimates: { wrong: [emitted, chosen, read] } }), { 6: emitted });
});

test("a report of an older version has no wrong estimates and no ids", () => {
  assert.deepEqual([undefined, { estimates: null }, { estimates: { choices: [] } }].map(wrongEstimates), [[], [], []]);
  assert.deepEqual([null, undefined, 0, 12].map(nodeNumber), ["", "", "#0", "#12"]);
});
