// Shell: the header with navigation, model and state, the current view below it, and the dialog for keys.
//
// A view is a component with the properties
//   api       requests: api.json(path, {admin, body, signal}), api.events(path, ...), api.text(path, ...)
//   settings  {theme, model, models, state, server}: the chosen theme, the chosen model, all models, the server's
//             state, and `server.check()`, which asks for the state now
import { Announcer } from "../lib/announcer.js";
import { Boundary } from "../lib/boundary.js";
import { html, useChanges, useEffect, useState } from "../lib/html.js";
import { keepText, keptText } from "../lib/kept.js";
import { chooseTheme, chosenTheme, THEMES } from "../lib/theme.js";
import { VIEWS, viewsOfService } from "../views/index.js";
import { IconButton } from "./icons.js";
import { KeyDialog } from "./key_dialog.js";

const STATES = {
  connecting: "Connecting", ready: "Ready", starting: "Starting", draining: "Leaving", dead: "Engine is down",
  stopped: "Stopped", unreachable: "No connection",
};
const NOTICES = {
  starting: "The server is starting. It takes requests as soon as it is ready.",
  draining: "The server is leaving: it finishes what it has and takes nothing new.",
  dead: "The engine of the server is down.",
  stopped: "The server has stopped.",
  unreachable: "The server does not respond. The page tries again every second.",
};
const BACK_MS = 4000;
const MODEL = "chairlift.model";

function viewOfHash() {
  const id = location.hash.replace(/^#\/?/, "").split("/")[0];
  return viewsOfService().find((view) => view.id === id) ?? VIEWS[0];
}

export function Shell({ api, keys, server }) {
  useChanges(keys);
  useChanges(server);
  const [view, setView] = useState(viewOfHash);
  const [theme, setTheme] = useState(chosenTheme);
  const [chosen, setChosen] = useState(() => keptText(MODEL) ?? "");
  useEffect(() => {
    const change = () => setView(viewOfHash());
    window.addEventListener("hashchange", change);
    return () => window.removeEventListener("hashchange", change);
  }, []);
  useEffect(() => {
    document.title = view.id === VIEWS[0].id ? "Chairlift" : `${view.title} · Chairlift`;
  }, [view]);
  const model = server.models.includes(chosen) ? chosen : (server.models[0] ?? "");
  const pickModel = (name) => {
    keepText(MODEL, name);
    setChosen(name);
  };
  const nextTheme = () => {
    const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    chooseTheme(next);
    setTheme(next);
  };
  const settings = { theme, model, models: server.models, state: server.state, server };
  return html`<div class="shell">
    <a class="skip" href="#main" onClick=${skip}>Skip to content</a>
    <header class="header">
      <a class="brand" href="#/${VIEWS[0].id}" aria-label="Chairlift">
        <img src="ui/favicon.svg" alt="" width="24" height="24" /><span>Chairlift</span>
      </a>
      <nav class="nav" aria-label="Views">
        ${viewsOfService().map((each) => html`<a key=${each.id} href="#/${each.id}"
          aria-current=${each === view ? "page" : undefined}>${each.title}</a>`)}
      </nav>
      <span class="spacer"></span>
      <${ModelPicker} models=${server.models} model=${model} onPick=${pickModel} />
      <span class="state" data-state=${server.state} role="status">
        <span class="visually-hidden">Server: </span>${STATES[server.state] ?? server.state}
      </span>
      ${keys.hasAny && html`<${IconButton} icon="key" label="Forget the keys of this tab" data-testid="forget"
        onClick=${() => { keys.forget(); location.reload(); }} />`}
      <${IconButton} icon=${theme} label="Theme: ${theme}. Change" onClick=${nextTheme} />
    </header>
    <${Notice} server=${server} />
    <main id="main" class="main" tabindex="-1">
      <${CurrentView} key=${view.id} view=${view} api=${api} settings=${settings} />
    </main>
    <${Announcer} />
    ${keys.open && html`<${KeyDialog} key=${keys.open} question=${keys.open} />`}
  </div>`;
}

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

function ModelPicker({ models, model, onPick }) {
  if (models.length < 2) return model && html`<span class="model" title=${model}>${model}</span>`;
  return html`<label class="model">
    <span class="visually-hidden">Model</span>
    <select value=${model} onChange=${(event) => onPick(event.target.value)}>
      ${models.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
    </select>
  </label>`;
}

/** Says that the server is down, and for some seconds that it is back. */
function Notice({ server }) {
  const [isBack, setIsBack] = useState(false);
  useEffect(() => {
    if (server.state !== "ready" || !server.wasDown) return undefined;
    server.wasDown = false;
    setIsBack(true);
    const timer = setTimeout(() => setIsBack(false), BACK_MS);
    return () => clearTimeout(timer);
  }, [server.state]);
  const text = NOTICES[server.state] ?? (isBack ? "The server is back." : "");
  return html`<div role="status" class="notice ${text ? "" : "empty"}" data-state=${server.state}>${text}</div>`;
}

function CurrentView({ view, api, settings }) {
  const [module, setModule] = useState(null);
  const [error, setError] = useState("");
  const load = () => {
    setError("");
    view.load().then(setModule, () => setError(`The view ${view.title} could not be loaded.`));
  };
  useEffect(load, [view]);
  if (error) {
    return html`<div class="empty-state" role="alert"><p>${error}</p>
      <button type="button" class="button" onClick=${() => location.reload()}>Load the page again</button></div>`;
  }
  const fallback = (again) => html`<div class="empty-state" role="alert"><p>This view could not be shown.</p>
    <button type="button" class="button" onClick=${again}>Show it again</button></div>`;
  return module && html`<${Boundary} value=${view} fallback=${fallback}>
    <${module.View} api=${api} settings=${settings} /><//>`;
}
