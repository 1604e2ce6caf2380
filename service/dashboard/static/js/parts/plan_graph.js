// A plan as a graph, laid out by dagre. Nodes are buttons; the width of an edge shows its rows.
import { html, memo, useLayoutEffect, useMemo, useRef, useState } from "../../vendor/preact.js";
import { Graph, layout } from "../../vendor/dagre.js";
import { duration, shortNumber, size } from "../format.js";

const WIDTH = 232;
const HEIGHT = 92;
const MARK_HEIGHT = 22;
const MARGIN = 12;
const ZOOMS = [0.3, 0.45, 0.6, 0.8, 1, 1.25];
const FULL_SIZE = ZOOMS.indexOf(1);
/** The zoom below which a plan is not made smaller to show its whole height. */
const READABLE = 0.6;
const NO_MARKS = {};
const NONE = [];

/**
 * `nodes` are those of a plan report: `{id, operator, detail, inputs}`. By node id, `figures` has `{rows, bytes, time_ms}`,
 * `marks` the names of the rules that changed it, and `wrong` the wrong estimates `{estimated, measured}`.
 */
export const PlanGraph = memo(function PlanGraph({ nodes, figures = {}, marks = NO_MARKS, wrong = {}, label }) {
  const [chosen, setChosen] = useState(null);
  const [zoom, setZoom] = useState(null);
  const view = useRef(null);
  const plan = useMemo(() => computeLayout(nodes, marks), [nodes, marks]);

  useLayoutEffect(() => {
    if (zoom !== null) return;
    const { clientWidth: width } = view.current;
    const height = parseFloat(getComputedStyle(view.current).maxHeight);
    const fits = (one) => plan.width * one <= width && (plan.height * one <= height || one <= READABLE);
    setZoom(Math.min(Math.max(ZOOMS.findLastIndex(fits), 0), FULL_SIZE));
  }, [plan, zoom]);

  const scale = ZOOMS[zoom ?? FULL_SIZE];
  const node = nodes.find((one) => one.id === chosen);
  return html`<div class="graph">
    <div class="buttons graph-tools" role="group" aria-label=${`Zoom: ${label}`}>
      <button type="button" class="plain small" onClick=${() => setZoom((at) => Math.max(at - 1, 0))} aria-label="Smaller">−</button>
      <button type="button" class="plain small" onClick=${() => setZoom(null)}>Fit</button>
      <button type="button" class="plain small" onClick=${() => setZoom((at) => Math.min(at + 1, ZOOMS.length - 1))} aria-label="Larger">+</button>
      <span class="quiet small">${nodes.length} nodes</span>
    </div>
    <div class="graph-view" ref=${view} role="group" aria-label=${label}>
      <div style=${{ width: `${plan.width * scale}px`, height: `${plan.height * scale}px` }}>
        <div class="graph-plane" style=${{ width: `${plan.width}px`, height: `${plan.height}px`, transform: `scale(${scale})` }}>
          <svg width=${plan.width} height=${plan.height} aria-hidden="true">
            ${plan.edges.map((edge) => html`<path key=${edge.key} d=${edge.path} stroke-width=${thickness(figures[edge.from]?.rows ?? edge.estimatedRows)} />`)}
          </svg>
          ${nodes.map((one) => html`<${Node}
            key=${one.id}
            node=${one}
            at=${plan.places.get(one.id)}
            figures=${figures[one.id]}
            marks=${marks[one.id] ?? NONE}
            wrong=${wrong[one.id]}
            isChosen=${one.id === chosen}
            onChoose=${setChosen}
          />`)}
        </div>
      </div>
    </div>
    ${node && html`<div class="graph-detail" aria-live="polite"><strong>${node.operator}</strong> <span class="quiet">#${node.id}</span> ${node.detail}</div>`}
  </div>`;
});

const Node = memo(function Node({ node, at, figures, marks, wrong, isChosen, onChoose }) {
  const texts = facts(node, figures, wrong);
  return html`<button
    type="button"
    class=${`graph-node${marks.length ? " is-marked" : ""}`}
    aria-pressed=${isChosen}
    title=${`${node.operator} ${node.detail}`}
    style=${{ left: `${at.x}px`, top: `${at.y}px`, width: `${WIDTH}px`, height: `${heightOf(marks)}px` }}
    onClick=${() => onChoose(isChosen ? null : node.id)}
  >
    <strong>${node.operator}</strong>
    ${marks.map((mark) => html`<span class="tag" key=${mark}>${mark}</span>`)}
    <span class="graph-text">${node.detail}</span>
    ${texts && html`<span class="graph-facts">${texts}</span>`}
  </button>`;
});

function facts(node, figures, wrong) {
  const texts = [];
  if (wrong) texts.push(`${shortNumber(wrong.measured)} rows, estimated ${shortNumber(wrong.estimated)}`);
  else if (isKnown(figures?.rows)) texts.push(`${shortNumber(figures.rows)} rows`);
  else if (isKnown(node.estimated_rows)) texts.push(`≈ ${shortNumber(node.estimated_rows)} rows`);
  if (isKnown(figures?.bytes)) texts.push(size(figures.bytes));
  if (isKnown(figures?.time_ms)) texts.push(duration(figures.time_ms));
  return texts.join(" · ");
}

const isKnown = (value) => value !== null && value !== undefined;

/** Returns the width of an edge, which grows with the logarithm of its rows. */
const thickness = (rows) => (rows > 0 ? Math.min(1.25 + Math.log10(rows) * 0.7, 8) : 1.25);

/** Returns the height of a node; each of its marks has a line of its own. */
const heightOf = (marks) => HEIGHT + MARK_HEIGHT * marks.length;

/** Returns the places of nodes and edges; a node's inputs are above it. */
function computeLayout(nodes, marks) {
  const graph = new Graph();
  graph.setGraph({ rankdir: "TB", nodesep: 24, ranksep: 36, marginx: MARGIN, marginy: MARGIN });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of nodes) graph.setNode(String(node.id), { width: WIDTH, height: heightOf(marks[node.id] ?? NONE) });
  for (const node of nodes) for (const input of node.inputs) graph.setEdge(String(input), String(node.id));
  layout(graph);
  const places = new Map(
    nodes.map((node) => {
      const { x, y, height } = graph.node(String(node.id));
      return [node.id, { x: x - WIDTH / 2, y: y - height / 2 }];
    }),
  );
  const estimates = new Map(nodes.map((node) => [String(node.id), node.estimated_rows]));
  const edges = graph.edges().map((edge) => ({
    estimatedRows: estimates.get(edge.v),
    key: `${edge.v}-${edge.w}`,
    from: Number(edge.v),
    path: graph.edge(edge).points.map(({ x, y }, at) => `${at ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join(""),
  }));
  const { width = WIDTH, height = HEIGHT } = graph.graph();
  return { places, edges, width, height };
}
