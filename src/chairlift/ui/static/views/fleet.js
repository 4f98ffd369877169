// The fleet view: the replicas of this router, what it decides about them, and why requests waited.
import { clock, count, percent, seconds } from "../lib/format.js";
import { html } from "../lib/html.js";
import { FleetModel } from "../live/fleet_model.js";
import { Bar, LivePage, Section, Tile } from "../live/live_page.js";
import { useLive } from "../live/live_source.js";
import { hostOf, requestOfRouter, RequestTable } from "../live/request_waterfall.js";

const NUM_EVENTS = 12;

export function View({ api }) {
  const { model, source } = useLive(api, () => new FleetModel());
  const { hello, router } = model;
  if (hello?.service === "server") {
    return html`<div class="empty-state" data-testid="no-fleet"><p>This is one server without a router. The live batch
      shows what it computes.</p><a class="button" href="#/batch">Show the batch</a></div>`;
  }
  const requests = model.allRequests.map(requestOfRouter);
  requests.sort((one, other) => other.at - one.at);
  return html`<${LivePage} title="Fleet" subtitle=${router?.models.join(", ")} source=${source}
      isKnown=${hello !== null && router !== null}>
    ${router && html`<${Tiles} model=${model} />
    <${Section} title="Replicas" hint=${`routing policy: ${hello.policy}`}>
      ${model.replicas.length + startingOf(model).length === 0 && html`<p class="hint">No replica is known.</p>`}
      <ul class="replica-grid" data-testid="replicas">${model.replicas.map((replica) => html`<${Replica}
        key=${replica.replica_id} replica=${replica} rate=${model.rates.get(replica.replica_id)} />`)}
        ${startingOf(model).map((replica) => html`<${Starting} key=${replica.replica_id} replica=${replica} />`)}</ul>
    </${Section}>
    <div class="live-halves">
      ${model.fleet && html`<${Decisions} fleet=${model.fleet} />`}
      <${Transitions} transitions=${model.transitions} />
    </div>
    <${RequestTable} requests=${requests} />`}
  </${LivePage}>`;
}

function Tiles({ model }) {
  const { replicas, router, fleet } = model;
  const healthy = replicas.filter((replica) => replica.state === "healthy").length;
  const loads = replicas.map((replica) => replica.load).filter(Boolean);
  const sum = (name) => loads.reduce((total, load) => total + load[name], 0);
  const tokens = [...model.rates.values()].reduce((total, rate) => total + rate, 0);
  const prompt = sum("prompt_tokens");
  const missing = router.requests_without_replica;
  const target = fleet?.autoscaler.target;
  return html`<dl class="tiles">
    <${Tile} name="Healthy replicas" value=${`${healthy} of ${replicas.length}`}
      share=${healthy / Math.max(1, replicas.length)} tone=${healthy < replicas.length ? "warning" : ""}
      detail=${target === undefined ? router.state : `target ${target}`} />
    <${Tile} name="Open requests" value=${count(router.open_requests)}
      detail=${`${count(router.admission_waiting_requests)} without a first byte`} />
    <${Tile} name="Without a replica" value=${count(missing)} tone=${missing ? "warning" : ""}
      detail=${missing ? "wait for one that can take them" : "none waits for a replica"} />
    <${Tile} name="Running" value=${count(sum("running_requests"))}
      detail=${`${count(sum("waiting_requests"))} wait in replicas`} />
    <${Tile} name="Output" value=${`${count(tokens)}/s`} detail="tokens of all replicas" />
    <${Tile} name="Prefix hits" value=${prompt ? percent(sum("cached_tokens") / prompt) : "–"}
      share=${prompt ? sum("cached_tokens") / prompt : 0} detail="of all prompt tokens" />
  </dl>`;
}

/** Replicas of the cluster that the router does not know yet. */
function startingOf({ fleet, replicas }) {
  const known = new Set(replicas.map((replica) => replica.replica_id));
  return (fleet?.replicas ?? []).filter((replica) => replica.state === "starting" && !known.has(replica.url));
}

function Starting({ replica }) {
  return html`<li class="replica" data-state="pending">
    <div class="replica-head"><h3 class="mono">${replica.replica_id}</h3>
      <span class="badge" data-state="starting">starting</span></div>
    <p class="replica-reason">started ${seconds(replica.age_seconds)} ago; it gets requests when it is ready</p></li>`;
}

function Replica({ replica, rate }) {
  const { load, state, weight, effective_weight: effective } = replica;
  const isSlowStart = effective < weight;
  const { running_requests: running = 0, max_running_requests: most = 0 } = load ?? {};
  const hits = load?.prompt_tokens ? load.cached_tokens / load.prompt_tokens : null;
  const line = (name, value, share, tone) => html`<div class="replica-line"><dt>${name}</dt><dd>${value}</dd>
    ${share !== undefined && html`<${Bar} share=${share} tone=${tone} />`}</div>`;
  return html`<li class="replica" data-state=${state}>
    <div class="replica-head"><h3 class="mono" title=${replica.replica_id}>${hostOf(replica.replica_id)}</h3>
      <span class="badge" data-state=${state}>${state.replaceAll("_", " ")}</span></div>
    <p class="replica-reason">${replica.reason || replica.cause} for ${seconds(replica.seconds_in_state)}</p>
    ${load ? html`<dl>
      ${line("running", most ? `${running} of ${most}` : running, most ? running / most : 0)}
      ${line("KV cache", percent(load.kv_usage_ratio), load.kv_usage_ratio, load.kv_usage_ratio > 0.9 ? "warning" : "")}
      ${line("prefix hits", hits === null ? "–" : percent(hits), hits ?? 0)}
    </dl>` : html`<p class="hint">It reports no load.</p>`}
    <p class="replica-facts">
      <span>${replica.open_requests} open here</span>
      ${load && html`<span>${load.waiting_requests} waiting</span>`}
      ${load && load.expected_wait_seconds > 0.05 && html`<span>wait ${seconds(load.expected_wait_seconds)}</span>`}
      ${rate !== undefined && html`<span>${count(rate)} tokens/s</span>`}
      <span>weight ${weight}${isSlowStart ? `, now ${effective.toFixed(2)}` : ""}</span>
      <span data-bad=${replica.num_ejections > 0}>${replica.num_ejections} ejections</span>
      ${replica.num_restarts > 0 && html`<span data-bad="true">${replica.num_restarts} restarts</span>`}
      <span>${count(replica.num_attempts)} attempts</span></p>
  </li>`;
}

function Decisions({ fleet }) {
  const { autoscaler } = fleet;
  const newest = autoscaler.newest_decision;
  const changes = autoscaler.decisions_with_change.slice(0, NUM_EVENTS);
  const word = ({ current, target }) => (target > current ? "up" : target < current ? "down" : "none");
  return html`<${Section} title="Scaling" hint=${`${autoscaler.current} ${
    autoscaler.current === 1 ? "replica" : "replicas"}, target ${autoscaler.target}`}>
    ${newest && html`<p class="section-text" data-testid="newest-decision">
      Now: ${reasonOf(newest)}${newest.is_panic ? " (fast growth)" : ""}.${" "}<${Rules} rules=${newest.rules} /></p>`}
    <ol class="event-list" data-testid="decisions">${changes.map((decision) => html`<li key=${decision.at}>
      <time>${clock(decision.at)}</time>
      <span class="change" data-way=${word(decision)}>${decision.current} → ${decision.target}</span>
      <span>${reasonOf(decision)}${decision.is_dry_run ? " (dry run)" : ""}${decision.limits.length
        ? `; limited by ${decision.limits.join(", ").replaceAll("_", " ")}` : ""}
        <small><${Rules} rules=${decision.rules} /></small></span></li>`)}</ol>
    ${changes.length === 0 && html`<p class="hint">No change yet.</p>`}
    ${Object.entries(fleet.failed).map(([id, reason]) => html`<p key=${id} class="section-text failure">
      <span class="mono">${id}</span> failed: ${reason.split("; last lines of its log")[0]}</p>`)}
  </${Section}>`;
}

function reasonOf(decision) {
  return decision.reason.replaceAll("_", " ");
}

/** What each rule wants, with its numbers. */
function Rules({ rules }) {
  const words = (name) => name.replaceAll("_", " ");
  const short = (value) => (typeof value === "number" ? Number(value.toPrecision(3)) : value);
  const texts = Object.entries(rules).filter(([, rule]) => rule.desired !== null).map(([name, rule]) => {
    const numbers = Object.entries(rule.numbers).slice(0, 4).map(([key, value]) => `${words(key)} ${short(value)}`);
    return `${words(name)} wants ${short(rule.desired)}${numbers.length ? ` (${numbers.join(", ")})` : ""}`;
  });
  return html`<span class="rules">${texts.join("; ")}</span>`;
}

function Transitions({ transitions }) {
  const shown = [...transitions].reverse().slice(0, NUM_EVENTS);
  return html`<${Section} title="Changes of health">
    <ol class="event-list" data-testid="transitions">${shown.map((each, index) => html`<li
      key=${`${each.at_seconds}/${each.replica_id}/${index}`}><time>${clock(each.at_seconds)}</time>
      <span class="badge" data-state=${each.new}>${each.new.replaceAll("_", " ")}</span>
      <span><span class="mono">${hostOf(each.replica_id)}</span> ${textOf(each)}</span></li>`)}</ol>
    ${shown.length === 0 && html`<p class="hint">No change yet.</p>`}
  </${Section}>`;
}

function textOf({ cause, old, reason, ejection_seconds: ejected }) {
  if (cause === "added") return "is new";
  return `was ${old.replaceAll("_", " ")}${reason ? `: ${reason}` : ""}${ejected ? `, for ${seconds(ejected)}` : ""}`;
}
