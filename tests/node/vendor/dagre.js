// Layout of plan graphs.
export { Graph, layout } from "@dagrejs/dagre";
