// The theme: the system's, light or dark. CSS reads `data-theme` of the root element.
import { keepText } from "./kept.js";

export const THEMES = ["system", "light", "dark"];
const NAME = "chairlift.theme";

/** Return the chosen theme. */
export function chosenTheme() {
  const value = document.documentElement.dataset.theme;
  return THEMES.includes(value) ? value : "system";
}

/** Choose a theme, and keep the choice. */
export function chooseTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  keepText(NAME, theme);
  window.dispatchEvent(new Event("themechange"));
}

/** Return a custom property of the style sheet as a color that a canvas can draw: color("--accent"). */
export function color(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}
