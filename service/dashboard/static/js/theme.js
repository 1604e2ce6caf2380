// Light, dark, or as the system says. The choice is kept in this browser.
import { local } from "./storage.js";

const NAME = "evenkeel.theme";
export const THEMES = ["system", "light", "dark"];
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");

/** The chosen theme. */
export function chosen() {
  const kept = local.get(NAME);
  return THEMES.includes(kept) ? kept : "system";
}

/** Shows a theme, and keeps it. */
export function choose(theme) {
  local.set(NAME, theme);
  show();
}

/** Shows the chosen theme, from now on also where the system changes its mind. */
export function follow() {
  systemIsDark.addEventListener("change", show);
  show();
}

function show() {
  const theme = chosen();
  const bySystem = systemIsDark.matches ? "dark" : "light";
  document.documentElement.dataset.theme = theme === "system" ? bySystem : theme;
  dispatchEvent(new Event("themechange"));
}
