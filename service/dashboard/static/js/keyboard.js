// Shortcuts of one key, where nobody is typing.
import { useEffect } from "../vendor/preact.js";
import { local } from "./storage.js";

const NAME = "evenkeel.shortcuts";

/** Whether shortcuts do anything. Whoever speaks to a computer would press them without wanting to (WCAG 2.1.4). */
export const areOn = () => local.get(NAME) !== "off";

/** Turns them on or off, in this browser. */
export function turn(on) {
  local.set(NAME, on ? "on" : "off");
}

/** Calls the function that `shortcuts` has for a key; without modifiers, and not within fields. */
export function useShortcuts(shortcuts) {
  useEffect(() => {
    function pressed(event) {
      if (!areOn() || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.composedPath()[0])) return;
      if (document.querySelector("dialog[open]")) return;
      const act = shortcuts[event.key];
      if (act) {
        event.preventDefault();
        act();
      }
    }
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  });
}

function isTyping(target) {
  return target instanceof Element && target.closest("input, textarea, select, [contenteditable='true']") !== null;
}
