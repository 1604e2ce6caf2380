// Plan nodes by id: which rules changed them, and which of their estimates were wrong.
import { number } from "../format.js";

const QUANTITIES = {
  rows_read: "rows read",
  rows_shuffled: "rows shuffled",
  rows_on_hottest_task: "rows on the hottest task",
  rows_emitted: "rows of",
};

/** Returns the estimates that were wrong by more than a factor of ten; none for a report of an older version. */
export const wrongEstimates = (metrics) => metrics?.estimates?.wrong ?? [];

/** Describes an estimate that was far off. For a choice of a rule, the measurement is only an upper limit. */
export function wrongText({ quantity, node, node_id: id, rule, estimated, measured, factor: times }) {
  const where = node === null ? "" : `${quantity === "rows_emitted" ? " " : " for "}${id === null ? "" : `#${id} `}${node}`;
  const byRule = rule === null ? "" : ` (by ${rule})`;
  const isTooHigh = estimated > measured;
  const result = rule !== null && isTooHigh ? `at most ${number(measured)}` : number(measured);
  return `Estimated: ${number(estimated)} ${QUANTITIES[quantity] ?? quantity}${where}${byRule}. Measured: ${result}, ${number(Math.round(times))} times ${isTooHigh ? "less" : "more"}.`;
}

/** Returns a node's number for display; empty for a report of a version without ids. */
export const nodeNumber = (id) => (id === null || id === undefined ? "" : `#${id}`);

/** Returns the rules that fired on each node of the plan before, by node id. */
export function marksBefore(report) {
  const marks = {};
  for (const trace of report.rules.filter(({ outcome }) => outcome === "fired")) {
    const id = examinedNode(trace, report.before.nodes);
    if (id === null) continue;
    const known = marks[id] ?? [];
    if (!known.includes(trace.rule)) marks[id] = [...known, trace.rule];
  }
  return marks;
}

/** Returns the id of the node that a rule examined, or null. Reports of older versions have the node's text only. */
function examinedNode(trace, nodes) {
  const hasId = trace.node_id !== null && trace.node_id !== undefined;
  const matches = nodes.filter((node) => (hasId ? node.id === trace.node_id : `${node.operator} ${node.detail}`.trimEnd() === trace.node));
  return matches.length === 1 ? matches[0].id : null;
}

/** Returns the wrong estimates of nodes' output rows, by node id. */
export const wrongByNode = (metrics) =>
  Object.fromEntries(wrongEstimates(metrics).filter(({ quantity }) => quantity === "rows_emitted").map((estimate) => [estimate.node_id, estimate]));

/** Returns a list with the rule that added or changed each node of the plan after, by node id. */
export const marksAfter = (report) =>
  Object.fromEntries(report.after.nodes.filter((node) => node.changed_by).map((node) => [node.id, [node.changed_by]]));
