// The batch view: what the engine of this server computes now, row by row, and where its time and memory go.
import { count, ms, percent } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { BatchRows, WAIT_REASONS } from "../live/batch_rows.js";
import { BatchModel } from "../live/batch_model.js";
import { Canvas } from "../live/canvas.js";
import { Chart } from "../live/chart.js";
import { drawBlockMap, drawSteps, SHARED, WITHHELD } from "../live/drawings.js";
import { LivePage, Section, Tile } from "../live/live_page.js";
import { useLive } from "../live/live_source.js";
import { hostOf, requestOfServer, RequestTable } from "../live/request_waterfall.js";

const MIN_RATE_MS = 1; // steps that took less together have no rate

const REPLICA_TEXTS = {
  absent: "The router has no admin key of its replicas. Start it with --replica-admin-key-file.",
};

/** The batch of this server, or behind a router that of the replica that is chosen. */
export function View({ api, settings }) {
  const [replica, setReplica] = useState(null);
  return replica === null ? html`<${Batch} key="own" api=${api} settings=${settings} onReplica=${setReplica} />`
    : html`<${Batch} key=${replica} api=${api} settings=${settings} replica=${replica}
        onReplica=${setReplica} />`;
}

function Batch({ api, settings, replica = null, onReplica }) {
  const path = replica === null ? "/admin/live" : `/admin/replicas/live?replica_id=${encodeURIComponent(replica)}`;
  const { model, source } = useLive(api, () => new BatchModel(), path);
  const [pinned, setPinned] = useState(null); // the id of the row that was chosen, and of the one under the pointer
  const [pointed, setPointed] = useState(null);
  const selected = pointed ?? pinned;
  const { hello, batch } = model;
  if (hello && hello.service !== "server") {
    return html`<${Replicas} replicas=${model.replicas} onReplica=${onReplica} />`;
  }
  const leave = replica !== null && html`<button type="button" class="button" data-testid="all-replicas"
    onClick=${() => onReplica(null)}>All replicas</button>`;
  const of = replica === null ? hello?.models[0] : `${hello?.models[0] ?? ""} on ${hostOf(replica)}`;
  const texts = replica === null ? undefined : REPLICA_TEXTS;
  return html`<${LivePage} title="Live batch" subtitle=${of} source=${source} stale=${model.stale} texts=${texts}
      note=${model.note} isKnown=${hello !== null && batch !== null} actions=${leave}>
    ${batch && html`<${Tiles} model=${model} />
    <div class="live-columns">
      <${BatchRows} model=${model} selected=${selected} pinned=${pinned} onPin=${setPinned} onPoint=${setPointed} />
      <div class="live-side">
        <${Steps} model=${model} />
        <${BlockMap} batch=${batch} rows=${model.rows} selected=${selected} />
      </div>
    </div>
    <${Charts} model=${model} theme=${settings.theme} />
    <${RequestTable} requests=${model.requests.map(requestOfServer).reverse()} />`}
  </${LivePage}>`;
}

/** A router has no batch of its own: the replicas whose batch can be shown. */
function Replicas({ replicas, onReplica }) {
  const servers = replicas.filter((replica) => replica.kind === "chairlift");
  return html`<div class="empty-state" data-testid="choose-replica"><p>The replicas of this router compute the batches.
    ${servers.length ? " Choose one to see its batch row by row." : " None of them is a Chairlift server."}</p>
    <div class="replica-choice">${servers.map((replica) => html`<button type="button" class="button"
      key=${replica.replica_id} onClick=${() => onReplica(replica.replica_id)}><span
      class="mono">${hostOf(replica.replica_id)}</span> <span class="badge"
      data-state=${replica.state}>${replica.state.replaceAll("_", " ")}</span></button>`)}</div>
    <a class="button" href="#/fleet">Show the fleet</a></div>`;
}

function Tiles({ model }) {
  const { batch, steps, rows } = model;
  const recent = steps.slice(-16);
  const busy = recent.reduce((sum, step) => sum + step.duration, 0);
  const tokens = recent.reduce((sum, step) => sum + step.tokens, 0);
  const isIdle = batch.num_running === 0;
  const perStep = recent.length ? tokens / recent.length : 0;
  const held = batch.held_blocks / batch.total_blocks;
  const decoding = rows.filter((row) => row.state === "decode").length;
  const prefilling = rows.filter((row) => row.state === "prefill").length;
  const waiting = batch.num_waiting;
  const why = `${count(batch.waiting_tokens)} tokens; ${WAIT_REASONS[batch.wait_reason] ?? batch.wait_reason}`;
  return html`<dl class="tiles">
    <${Tile} name="Running" value=${batch.num_running} share=${batch.num_running / batch.max_running_requests}
      detail=${`of ${count(batch.max_running_requests)}: ${prefilling} prefill, ${decoding} decode`} />
    <${Tile} name="Waiting" value=${waiting} tone=${waiting ? "warning" : ""}
      detail=${waiting ? why : "none"} />
    <${Tile} name="Step time" value=${isIdle || !recent.length ? "–" : ms(busy / recent.length)}
      detail=${isIdle ? "idle" : textOfStepRate(recent.length, busy)} />
    <${Tile} name="Token budget" value=${isIdle ? "–" : percent(perStep / batch.max_batch_tokens)}
      share=${isIdle ? 0 : perStep / batch.max_batch_tokens}
      detail=${`${isIdle ? 0 : count(perStep)} of ${count(batch.max_batch_tokens)} a step`} />
    <${Tile} name="KV cache" value=${percent(held)} share=${held} tone=${held > 0.9 ? "warning" : ""}
      detail=${`${count(batch.held_blocks)} of ${count(batch.total_blocks)} blocks`} />
    <${Tile} name="Preemptions" value=${count(batch.num_preemptions)} tone=${batch.num_preemptions ? "warning" : ""}
      detail=${`${count(batch.output_tokens)} output tokens so far`} />
  </dl>`;
}

function textOfStepRate(numSteps, busyMs) {
  return numSteps > 1 && busyMs >= MIN_RATE_MS ? `${count((numSteps * 1000) / busyMs)} steps/s` : "computing";
}

function Steps({ model }) {
  const { steps, batch } = model;
  const last = steps.at(-1);
  const hint = html`<span class="legend"><span data-kind="decode">decoded tokens</span>
    <span data-kind="chunk">prompt chunks, by request</span></span>`;
  return html`<${Section} title="Last steps" hint=${hint}>
    <${Canvas} class="steps-canvas" draw=${drawSteps(steps, batch.max_batch_tokens)} />
    <p class="section-text" data-testid="last-step">${last ? textOfStep(last) : "No step yet."}</p>
  </${Section}>`;
}

function textOfStep({ id, tokens, duration, prefills, decodes }) {
  const chunks = prefills.slice(0, 6).map(([, size]) => size).join(", ");
  const more = prefills.length > 6 ? " and more" : "";
  const size = `${tokens} ${tokens === 1 ? "token" : "tokens"}`;
  return `Step ${count(id)}: ${size} in ${ms(duration)}: ${decodes.length} decoded`
    + (chunks ? `, prompt chunks of ${chunks}${more}` : "");
}

/** Blocks with this value in the map; an estimate where a cell stands for many blocks. */
function numWith(wanted, { block_map: runs, blocks_per_cell: perCell }) {
  return runs.reduce((sum, value, index) => sum + (index % 2 && runs[index - 1] === wanted ? value * perCell : 0), 0);
}

function BlockMap({ batch, rows, selected }) {
  const { total_blocks: total, held_blocks: held, cached_blocks: cached, free_blocks: free } = batch;
  const withheld = batch.withheld_blocks;
  const row = rows.find((each) => each.id === selected);
  const hint = batch.blocks_per_cell > 1
    ? `one cell for ${batch.blocks_per_cell} blocks` : `one cell a block of ${batch.block_size} tokens`;
  const text = row
    ? `${row.request_id} holds ${row.num_blocks} blocks, ${row.num_cached_blocks} of them were cached.`
    : `${percent(held / total)} held. Point at a request to see its blocks.`;
  return html`<${Section} title="KV cache" hint=${hint}>
    <${Canvas} class="block-map" draw=${drawBlockMap(batch.block_map, row?.key ?? null)} />
    <table class="block-table"><caption class="visually-hidden">Blocks of the KV cache</caption>
      <thead class="visually-hidden"><tr><th scope="col">State</th><th scope="col">Blocks</th></tr></thead>
      <tbody><tr><th scope="row"><i data-kind="held"></i>held by requests</th><td>${count(held)}</td></tr>
      <tr><th scope="row"><i data-kind="shared"></i>of these, by several</th>
        <td>${count(numWith(SHARED, batch))}</td></tr>
      <tr><th scope="row"><i data-kind="cached"></i>cached for later prompts</th><td>${count(cached)}</td></tr>
      <tr><th scope="row"><i data-kind="free"></i>free</th><td>${count(free)}</td></tr>
      ${withheld > 0 && html`<tr><th scope="row"><i data-kind="withheld"></i>not used, above the limit</th>
        <td>${count(withheld)}</td></tr>`}</tbody></table>
    <p class="section-text">${text}</p>
  </${Section}>`;
}

function Charts({ model, theme }) {
  const { history } = model;
  if (!history.step) return null;
  const chart = (title, series, data, format) => html`<${Chart} title=${title} series=${series} data=${data}
    format=${format} theme=${theme} />`;
  return html`<${Section} title="Last five minutes" class="charts"><div class="chart-grid">
    ${chart("Step time", [{ label: "mean step", color: "--decode", isFilled: true }], history.step, ms)}
    ${chart("Tokens in a step", [{ label: "used", color: "--prefill", isFilled: true },
      { label: "budget", color: "--preempted", isLimit: true }], history.budget, count)}
    ${chart("Sequences", [{ label: "running", color: "--decode", isFilled: true },
      { label: "waiting", color: "--preempted" }], history.sequences, count)}
    ${chart("Tokens a second", [{ label: "prefill", color: "--prefill" },
      { label: "decode", color: "--decode", isFilled: true }], history.tokens, count)}
  </div></${Section}>`;
}

