// LivePage: the frame of a view of live data; it says why there is none.
import { html } from "../lib/html.js";

const TEXTS = {
  absent: "This server has no admin key, so it has no live data. Start it with CHAIRLIFT_ADMIN_KEY set.",
  outdated: "The server is of another version than this page. Load the page again.",
  denied: "Live data needs an admin key of this server.",
};

/** `stale` says why the data is no longer that of now, `note` what else there is to say, and `actions` are buttons. */
export function LivePage({
  title, subtitle, source, isKnown, stale = "", note = "", texts = {}, actions = null, children,
}) {
  const text = texts[source.state] ?? TEXTS[source.state];
  if (text) {
    const isOld = source.state === "outdated";
    const again = () => (isOld ? location.reload() : source.resume());
    return html`<div class="empty-state" data-testid="live-${source.state}"><p>${text}</p>
      ${source.state === "denied" && source.message && html`<p class="hint">The server says: ${source.message}.</p>`}
      <button type="button" class="button" onClick=${again}>${isOld ? "Load again" : "Try again"}</button>
      ${actions}</div>`;
  }
  if (!isKnown) return html`<div class="empty-state" aria-busy="true" data-testid="live-waiting">
    <p>${source.message || "Waiting for data"}</p>${actions}</div>`;
  return html`<div class="live" data-state=${source.state} data-stale=${stale !== ""} data-testid="live">
    <div class="live-head"><h1>${title}</h1><span class="live-subtitle">${subtitle}</span>${actions}
      <span class="live-state" role="status" data-state=${source.state}>${source.state !== "open"
        ? source.message || "Connecting" : stale || note || "Live"}</span></div>
    ${children}
  </div>`;
}

/** A number with its name; `share` from 0 to 1 draws a bar. */
export function Tile({ name, value, detail, share, tone = "" }) {
  return html`<div class="tile" data-tone=${tone}><dt>${name}</dt><dd><b>${value}</b>
    <span class="tile-detail">${detail}</span>
    ${share !== undefined && html`<${Bar} share=${share} />`}</dd></div>`;
}

/** A bar of a share; it is decoration, as its number stands beside it. */
export function Bar({ share, tone = "" }) {
  const width = 100 * Math.min(1, Math.max(0, share || 0));
  return html`<svg class="bar" data-tone=${tone} aria-hidden="true" preserveAspectRatio="none" viewBox="0 0 100 4">
    <rect class="bar-back" width="100" height="4" /><rect class="bar-value" width=${width} height="4" /></svg>`;
}

export function Section({ title, hint, children, class: name = "" }) {
  return html`<section class="live-section ${name}"><div class="section-head"><h2>${title}</h2>
    ${hint && html`<span class="section-hint">${hint}</span>`}</div>${children}</section>`;
}
