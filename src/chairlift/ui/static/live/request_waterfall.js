// RequestTable: the last requests, each as a line of spans: what it waited for, where it ran, how it ended.
import { clock, ms, seconds } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { Section } from "./live_page.js";

const NUM_SHOWN = 20;
const WIDTH = 1000;
const REASONS = {
  budget: "token budget of the steps", blocks: "free KV blocks", running_limit: "a place in the batch",
  policy: "the batching policy", prefix: "another request's prefix", grammar: "its grammar",
  held: "the start of a replica", no_replica: "a replica that can take it",
};
const PURPOSES = {
  first: "sent to", retry: "retried on", resume: "resumed on", hedge: "hedged on", handover: "handed over to",
};

/** Return what a server's record says: {id, at, total, outcome, spans, text, hasTrouble}. */
export function requestOfServer(record) {
  const events = record.events.map(([name, at]) => ({ name, at }));
  const spans = [];
  let hasToken = false;
  events.forEach(({ name, at }, index) => {
    const end = index + 1 < events.length ? events[index + 1].at : record.seconds;
    if (name === "queued" || name === "waiting_for_prefix") spans.push({ kind: "waiting", from: at, to: end });
    else if (name === "preempted") spans.push({ kind: "preempted", from: at, to: end });
    else if (name === "grammar_compiled") {
      spans.forEach((span) => { span.kind = "grammar"; });
      spans.push({ kind: "waiting", from: at, to: end });
    } else if (name === "scheduled") spans.push({ kind: hasToken ? "decode" : "prefill", from: at, to: end });
    else if (name === "first_token") {
      hasToken = true;
      spans.push({ kind: "decode", from: at, to: end });
    }
  });
  const waits = Object.entries(record.wait_seconds).filter(([, wait]) => wait >= 0.0005).sort((a, b) => b[1] - a[1]);
  const compiled = events.find(({ name }) => name === "grammar_compiled");
  if (compiled) waits.unshift(["grammar", compiled.at]);
  const preemptions = events.filter(({ name }) => name === "preempted").length;
  const parts = waits.map(([reason, wait]) => `waited ${seconds(wait)} for ${REASONS[reason] ?? reason}`);
  if (preemptions) parts.push(`preempted ${preemptions} ${preemptions === 1 ? "time" : "times"}`);
  const [prompt, output, cached] = record.usage ?? [0, 0, 0];
  if (record.usage) parts.push(`${prompt} prompt tokens${cached ? `, ${cached} cached` : ""}, ${output} output tokens`);
  return {
    id: record.request_id, at: record.at_seconds - record.seconds, total: record.seconds, outcome: record.outcome,
    spans, text: parts.join("; "), first: events.find(({ name }) => name === "first_token")?.at ?? null,
    hasTrouble: preemptions > 0 || waits.some(([, wait]) => wait > 0.2) || isFailure(record.outcome),
  };
}

/** Return the same of a router's timeline. */
export function requestOfRouter(entry) {
  const total = entry.seconds ?? Math.max(0.001, Date.now() / 1000 - entry.at_seconds);
  const waits = entry.waits.map(([reason, from, to]) => ({ reason, from, to: to ?? total }));
  const spans = waits.map(({ reason, from, to }) => ({ kind: reason === "held" ? "held" : "waiting", from, to }));
  const parts = waits.map(({ reason, from, to }) => `waited ${seconds(to - from)} for ${REASONS[reason] ?? reason}`);
  for (const attempt of entry.attempts) {
    const to = attempt.ended_seconds ?? total;
    const first = attempt.first_token_seconds;
    const kind = attempt.outcome === "fault" || attempt.reason ? "failed" : "decode";
    const isOpen = attempt.ended_seconds === null;
    const seen = isOpen ? (entry.first_byte_seconds ?? to) : to;
    const start = first === null ? seen : Math.min(to, attempt.began_seconds + first);
    if (kind === "decode" && start > attempt.began_seconds) {
      spans.push({ kind: "prefill", from: attempt.began_seconds, to: start, lane: attempt.purpose === "hedge" });
    }
    if (kind === "failed") spans.push({ kind, from: attempt.began_seconds, to, lane: attempt.purpose === "hedge" });
    else if (to > start) spans.push({ kind, from: start, to, lane: attempt.purpose === "hedge" });
    const host = hostOf(attempt.replica_id);
    const reason = attempt.reason ? `, which failed: ${attempt.reason.replaceAll("_", " ")}` : "";
    const cached = attempt.cached_tokens ? ` (${attempt.cached_tokens} tokens cached there)` : "";
    parts.push(`${PURPOSES[attempt.purpose] ?? `${attempt.purpose} on`} ${host}${cached}${reason}`);
  }
  const answered = entry.attempts.find((attempt) => attempt.first_token_seconds !== null);
  return {
    id: entry.request_id, at: entry.at_seconds, total, outcome: entry.outcome, spans, text: parts.join("; "),
    first: answered ? answered.began_seconds + answered.first_token_seconds : null, isOpen: entry.outcome === "",
    hasTrouble: entry.attempts.length > 1 || entry.waits.length > 0 || isFailure(entry.outcome),
  };
}

export function hostOf(url) {
  return url.replace(/^https?:\/\//, "");
}

function isFailure(outcome) {
  return !["", "complete", "stop", "length", "tool_calls", "abort"].includes(outcome);
}

/** `requests` are those of requestOfServer or requestOfRouter, newest first. */
export function RequestTable({ requests }) {
  const [hasOnlyTrouble, setOnlyTrouble] = useState(false);
  const chosen = (hasOnlyTrouble ? requests.filter((request) => request.hasTrouble) : requests).slice(0, NUM_SHOWN);
  const longest = Math.max(0.001, ...chosen.map((request) => request.total));
  return html`<${Section} title="Requests" class="requests" hint=${html`<label class="check">
      <input type="checkbox" checked=${hasOnlyTrouble} onChange=${(event) => setOnlyTrouble(event.target.checked)} />
      <span>Only those that waited, were retried or failed</span></label>`}>
    <div class="legend"><span data-kind="waiting">waits</span><span data-kind="prefill">to the first token</span>
      <span data-kind="decode">generates</span><span data-kind="failed">failed attempt</span></div>
    ${chosen.length === 0
      ? html`<p class="hint">${hasOnlyTrouble ? "No such request among the last ones." : "No request yet."}</p>`
      : html`<ol class="request-list" data-testid="requests">${chosen.map((request) => html`<${RequestLine}
          key=${`${request.id}/${request.at}`} request=${request} longest=${longest} />`)}</ol>`}
  </${Section}>`;
}

function RequestLine({ request, longest }) {
  const x = (at) => (WIDTH * Math.min(at, longest)) / longest;
  const outcome = request.isOpen ? "open" : request.outcome;
  const first = request.first === null ? "" : `first token after ${ms(request.first * 1000)}`;
  return html`<li class="request">
    <span class="request-id mono" title=${request.id}>${request.id}</span>
    <span class="request-time">${clock(request.at)}</span>
    <svg class="request-bar" viewBox="0 0 ${WIDTH} 14" preserveAspectRatio="none" aria-hidden="true">
      ${request.spans.map(({ kind, from, to, lane }, index) => html`<rect key=${index} data-kind=${kind} x=${x(from)}
        y=${lane ? 8 : 2} width=${Math.max(3, x(to) - x(from))} height=${lane ? 4 : 10} />`)}
      ${request.first !== null && html`<rect class="first-token" x=${x(request.first)} y="0" width="2" height="14" />`}
    </svg>
    <span class="request-total">${seconds(request.total)}</span>
    <span class="outcome" data-failed=${isFailure(outcome) && outcome !== "open"}>${outcome}</span>
    <span class="request-text">${[first, request.text].filter(Boolean).join("; ")}</span>
  </li>`;
}
