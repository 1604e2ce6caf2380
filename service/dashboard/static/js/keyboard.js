// Single-key shortcuts outside of input fields.
import { useEffect } from "../vendor/preact.js";
import { local } from "./storage.js";

const NAME = "evenkeel.shortcuts";

/** Whether shortcuts are enabled. Speech input can trigger them by accident, so they can be disabled (WCAG 2.1.4). */
export const areEnabled = () => local.get(NAME) !== "off";

/** Enables or disables the shortcuts in this browser. */
export function setEnabled(on) {
  local.set(NAME, on ? "on" : "off");
}

/** Calls the function of `shortcuts` for a pressed key, unless a modifier is pressed or an input field has the focus. */
export function useShortcuts(shortcuts) {
  useEffect(() => {
    function onKeyDown(event) {
      if (!areEnabled() || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.composedPath()[0])) return;
      if (document.querySelector("dialog[open]")) return;
      const act = shortcuts[event.key];
      if (act) {
        event.preventDefault();
        act();
      }
    }
    addEventListener("keydown", onKeyDown);
    return () => removeEventListener("keydown", onKeyDown);
  });
}

function isTyping(target) {
  return target instanceof Element && target.closest("input, textarea, select, [contenteditable='true']") !== null;
}
