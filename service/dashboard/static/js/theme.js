// The theme: light, dark or the system's. The choice is stored in this browser.
import { local } from "./storage.js";

const NAME = "evenkeel.theme";
export const THEMES = ["system", "light", "dark"];
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");

/** Returns the chosen theme. */
export function chosenTheme() {
  const stored = local.get(NAME);
  return THEMES.includes(stored) ? stored : "system";
}

/** Applies and stores a theme. */
export function chooseTheme(theme) {
  local.set(NAME, theme);
  apply();
}

/** Applies the chosen theme, now and when the system's theme changes. */
export function startTheme() {
  systemIsDark.addEventListener("change", apply);
  apply();
}

function apply() {
  const theme = chosenTheme();
  const bySystem = systemIsDark.matches ? "dark" : "light";
  document.documentElement.dataset.theme = theme === "system" ? bySystem : theme;
  dispatchEvent(new Event("themechange"));
}
