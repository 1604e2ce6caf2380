// Nodes of plans by their ids: which rules looked at them, and which estimates of them were wrong.
import { number } from "../format.js";

const QUANTITIES = {
  rows_read: "rows read",
  rows_shuffled: "rows shuffled",
  rows_on_hottest_task: "rows on the hottest task",
  rows_emitted: "rows of",
};

/** Estimates that were more than ten times as high, or as low, as what was measured; empty for an older report. */
export const wrongEstimates = (metrics) => metrics?.estimates?.wrong ?? [];

/** One of them as a sentence. Of one operator among several, the measurements only say how many rows were possible. */
export function wrongText({ quantity, node, node_id: id, rule, estimated, measured, factor: times }) {
  const where = node === null ? "" : `${quantity === "rows_emitted" ? " " : " for "}${id === null ? "" : `#${id} `}${node}`;
  const chosen = rule === null ? "" : ` (by ${rule})`;
  const isHigh = estimated > measured;
  const found = rule !== null && isHigh ? `at most ${number(measured)} are possible by what was measured` : `${number(measured)} were measured`;
  return `The estimate was wrong: ${number(estimated)} ${QUANTITIES[quantity] ?? quantity}${where} were estimated${chosen}, but ${found}: ${number(Math.round(times))} times too ${isHigh ? "high" : "low"}.`;
}

/** How a node is named by its id; empty in a report of a version without them. */
export const nodeNumber = (id) => (id === null || id === undefined ? "" : `#${id}`);

/** Whether an estimate was made for what a rule chose. */
export const isOf = (wrong, trace) => wrong.rule === trace.rule && wrong.node_id === trace.node_id && trace.alternatives.length > 0;

/** A node of the plan before is marked where rules fired on it. */
export function marksBefore(report) {
  const marks = {};
  for (const trace of report.rules.filter(({ outcome }) => outcome === "fired")) {
    const id = nodeOf(trace, report.before.nodes);
    if (id === null) continue;
    marks[id] = marks[id] ? `${marks[id]}, ${trace.rule}` : trace.rule;
  }
  return marks;
}

/** The id of the node that a rule looked at; null where `nodes` has none. Reports of earlier versions name it by its text. */
function nodeOf(trace, nodes) {
  const hasId = trace.node_id !== null && trace.node_id !== undefined;
  const found = nodes.filter((node) => (hasId ? node.id === trace.node_id : `${node.operator} ${node.detail}`.trimEnd() === trace.node));
  return found.length === 1 ? found[0].id : null;
}

/** The wrong estimates of the rows of nodes, by node. */
export const wrongByNode = (metrics) =>
  Object.fromEntries(wrongEstimates(metrics).filter(({ quantity }) => quantity === "rows_emitted").map((one) => [one.node_id, one]));

/** A node of the plan after is marked with the rule that made or changed it. */
export const marksAfter = (report) =>
  Object.fromEntries(report.after.nodes.filter((node) => node.changed_by).map((node) => [node.id, node.changed_by]));
