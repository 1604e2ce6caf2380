// A small virtual DOM with hooks, and templates that need no build step.
import { h } from "preact";
import htm from "htm";

export { createContext, render } from "preact";
export { useCallback, useContext, useEffect, useErrorBoundary, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
export { memo } from "preact/compat";
export const html = htm.bind(h);
