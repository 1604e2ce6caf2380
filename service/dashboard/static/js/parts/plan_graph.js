// A plan as a graph: laid out by dagre, nodes as buttons that the keyboard reaches, edges as wide as their rows.
import { html, memo, useLayoutEffect, useMemo, useRef, useState } from "../../vendor/preact.js";
import { Graph, layout } from "../../vendor/dagre.js";
import { duration, shortNumber, size } from "../format.js";

const WIDTH = 216;
const HEIGHT = 92;
const MARGIN = 12;
const ZOOMS = [0.3, 0.45, 0.6, 0.8, 1, 1.25];
const AS_IT_IS = ZOOMS.indexOf(1);

/**
 * `nodes` as in a plan report: `{id, operator, detail, inputs}`. `figures` are `{rows, bytes, time_ms}` by id;
 * `marks` are the texts on nodes that a rule changed, `wrong` the estimates `{estimated, measured}` that were wrong, by id.
 */
export const PlanGraph = memo(function PlanGraph({ nodes, figures = {}, marks = {}, wrong = {}, label }) {
  const [chosen, setChosen] = useState(null);
  const [zoom, setZoom] = useState(null);
  const view = useRef(null);
  const drawn = useMemo(() => place(nodes), [nodes]);

  useLayoutEffect(() => {
    if (zoom !== null) return;
    const fits = ZOOMS.findLastIndex((one) => drawn.width * one <= view.current.clientWidth);
    setZoom(Math.min(Math.max(fits, 0), AS_IT_IS));
  }, [drawn, zoom]);

  const scale = ZOOMS[zoom ?? AS_IT_IS];
  const node = nodes.find((one) => one.id === chosen);
  return html`<div class="graph">
    <div class="buttons graph-tools" role="group" aria-label=${`Zoom: ${label}`}>
      <button type="button" class="plain small" onClick=${() => setZoom((at) => Math.max(at - 1, 0))} aria-label="Smaller">−</button>
      <button type="button" class="plain small" onClick=${() => setZoom(null)}>Fit</button>
      <button type="button" class="plain small" onClick=${() => setZoom((at) => Math.min(at + 1, ZOOMS.length - 1))} aria-label="Larger">+</button>
      <span class="quiet small">${nodes.length} nodes</span>
    </div>
    <div class="graph-view" ref=${view} role="group" aria-label=${label}>
      <div style=${{ width: `${drawn.width * scale}px`, height: `${drawn.height * scale}px` }}>
        <div class="graph-plane" style=${{ width: `${drawn.width}px`, height: `${drawn.height}px`, transform: `scale(${scale})` }}>
          <svg width=${drawn.width} height=${drawn.height} aria-hidden="true">
            ${drawn.edges.map((edge) => html`<path key=${edge.key} d=${edge.path} stroke-width=${thickness(figures[edge.from]?.rows ?? edge.estimatedRows)} />`)}
          </svg>
          ${nodes.map((one) => html`<${Node}
            key=${one.id}
            node=${one}
            at=${drawn.places.get(one.id)}
            figures=${figures[one.id]}
            mark=${marks[one.id]}
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

const Node = memo(function Node({ node, at, figures, mark, wrong, isChosen, onChoose }) {
  const told = facts(node, figures, wrong);
  return html`<button
    type="button"
    class=${`graph-node${mark ? " is-marked" : ""}`}
    aria-pressed=${isChosen}
    title=${`${node.operator} ${node.detail}`}
    style=${{ left: `${at.x}px`, top: `${at.y}px`, width: `${WIDTH}px`, height: `${HEIGHT}px` }}
    onClick=${() => onChoose(isChosen ? null : node.id)}
  >
    <span class="graph-title"><strong>${node.operator}</strong>${mark && html`<span class="tag">${mark}</span>`}</span>
    <span class="graph-text">${node.detail}</span>
    ${told && html`<span class="graph-facts">${told}</span>`}
  </button>`;
});

function facts(node, figures, wrong) {
  const told = [];
  if (wrong) told.push(`${shortNumber(wrong.measured)} rows, wrongly estimated: ${shortNumber(wrong.estimated)}`);
  else if (known(figures?.rows)) told.push(`${shortNumber(figures.rows)} rows`);
  else if (known(node.estimated_rows)) told.push(`≈ ${shortNumber(node.estimated_rows)} rows`);
  if (known(figures?.bytes)) told.push(size(figures.bytes));
  if (known(figures?.time_ms)) told.push(duration(figures.time_ms));
  return told.join(" · ");
}

const known = (value) => value !== null && value !== undefined;

/** Edges are wider by the order of magnitude of their rows. */
const thickness = (rows) => (rows > 0 ? Math.min(1.25 + Math.log10(rows) * 0.7, 8) : 1.25);

/** Where dagre puts nodes and edges; inputs above what reads them. */
function place(nodes) {
  const graph = new Graph();
  graph.setGraph({ rankdir: "TB", nodesep: 24, ranksep: 36, marginx: MARGIN, marginy: MARGIN });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of nodes) graph.setNode(String(node.id), { width: WIDTH, height: HEIGHT });
  for (const node of nodes) for (const input of node.inputs) graph.setEdge(String(input), String(node.id));
  layout(graph);
  const places = new Map(
    nodes.map((node) => {
      const { x, y } = graph.node(String(node.id));
      return [node.id, { x: x - WIDTH / 2, y: y - HEIGHT / 2 }];
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
