// BatchRows: a table with one line for each request of the batch; its canvas shows what the last steps did for it.
import { count, seconds } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { Canvas } from "./canvas.js";
import { drawFlow } from "./drawings.js";
import { Section } from "./live_page.js";
import { RowDot } from "./row_dot.js";

const NUM_ROWS = 40;
const SHORT_OUTPUT = 512; // tokens of output that a bar always has room for

export const WAIT_REASONS = {
  budget: "the step is full", blocks: "no free KV blocks", running_limit: "the batch is full",
  policy: "the batching policy", prefix: "another request computes its prefix", grammar: "its grammar is compiled",
};

/**
 * The rows of a BatchModel; `selected` is the id of the row whose blocks are shown: the one under the pointer, else the
 * `pinned` one.
 */
export function BatchRows({ model, selected, pinned, onPin, onPoint }) {
  const [isAll, setIsAll] = useState(false);
  const flows = model.shown;
  const shown = isAll ? flows : flows.slice(0, NUM_ROWS);
  const largest = { prefill: Math.max(64, model.batch.max_batch_tokens), decode: 32 };
  const { num_hidden_rows: numHidden } = model.batch;
  return html`<${Section} title="Requests in the batch" class="rows"
      hint=${html`<span class="legend"><span data-kind="prefill">prefill</span><span data-kind="decode">decode</span>
        <span data-kind="waiting">waits</span><span data-kind="preempted">preempted</span></span>`}>
    ${flows.length === 0 ? html`<p class="rows-empty">Nothing runs. Send a message in the chat view to see it here.</p>`
      : html`<table class="row-table" data-testid="rows">
      <thead><tr><th scope="col">Request</th><th scope="col">State</th>
        <th scope="col" class="flow-column">Last 8 seconds</th><th scope="col">Progress</th>
        <th scope="col" class="number wide">Blocks</th><th scope="col" class="number wide">Waited</th>
        <th scope="col" class="number wide">Age</th></tr></thead>
      <tbody>${shown.map((flow) => html`<${Row} key=${flow.row.id} flow=${flow} column=${model.column}
        largest=${largest} isSelected=${selected === flow.row.id} isPinned=${pinned === flow.row.id} onPin=${onPin}
        onPoint=${onPoint} />`)}</tbody></table>`}
    ${flows.length > shown.length && html`<button type="button" class="button" onClick=${() => setIsAll(true)}>
      Show all ${flows.length} requests</button>`}
    ${numHidden > 0 && html`<p class="hint">${count(numHidden)} further requests wait.</p>`}
  </${Section}>`;
}

function Row({ flow, column, largest, isSelected, isPinned, onPin, onPoint }) {
  const { row } = flow;
  const state = flow.ended === null ? row.state : "done";
  const why = row.wait_reason && flow.ended === null ? (WAIT_REASONS[row.wait_reason] ?? row.wait_reason) : "";
  const name = row.choice ? `${row.request_id}#${row.choice}` : row.request_id;
  const choose = () => onPin(isPinned ? null : row.id);
  return html`<tr class="row" data-state=${state} data-selected=${isSelected} onMouseEnter=${() => onPoint(row.id)}
      onMouseLeave=${() => onPoint(null)}>
    <th scope="row"><button type="button" class="row-name" aria-pressed=${isPinned} onClick=${choose}
        title=${row.request_id}><${RowDot} value=${row.key} /><span class="mono">${name}</span></button>
      ${row.tenant && html`<span class="tenant">${row.tenant}</span>`}</th>
    <td><span class="badge" data-state=${state}>${state}</span>
      ${row.num_preemptions > 0
        && html`<span class="preempted-times" title="preemptions">×${row.num_preemptions}</span>`}
      ${why && html`<span class="why">${why}</span>`}</td>
    <td class="flow-column"><${Canvas} class="flow" draw=${drawFlow(flow, column, largest)} /></td>
    <td><${Progress} row=${row} /></td>
    <td class="number wide">${row.num_blocks || "–"}${row.num_cached_blocks > 0
      && html`<small> ${row.num_cached_blocks} cached</small>`}</td>
    <td class="number wide">${row.wait_seconds >= 0.01 ? seconds(row.wait_seconds) : "–"}</td>
    <td class="number wide">${seconds(row.age_seconds)}</td></tr>`;
}

/** The tokens of a row: cached, computed and missing ones of the prompt, then the output so far. */
function Progress({ row }) {
  // A limit far beyond the output, such as the rest of the context, would leave the bar empty.
  const longest = Math.max(SHORT_OUTPUT, row.prompt_tokens, 2 * row.output_tokens);
  const total = row.prompt_tokens + Math.min(row.max_output_tokens, longest);
  const x = (tokens) => (100 * tokens) / Math.max(1, total);
  const computed = Math.min(row.prompt_tokens, row.computed_tokens);
  const output = Math.min(row.output_tokens, total - row.prompt_tokens);
  const numDrafts = (row.confirmed_drafts ?? 0) + (row.rejected_drafts ?? 0); // older servers do not send them
  return html`<svg class="progress" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
      <rect class="progress-back" width="100" height="8" />
      <rect class="progress-prompt" width=${x(row.prompt_tokens)} height="8" />
      <rect data-kind="prefill" width=${x(computed)} height="8" />
      <rect data-kind="cached" width=${x(Math.min(row.cached_tokens, computed || row.cached_tokens))} height="8" />
      <rect data-kind="decode" x=${x(row.prompt_tokens)} width=${x(output)} height="8" /></svg>
    <span class="progress-text"><span class="visually-hidden">Prompt: </span>${count(row.prompt_tokens)}
      ${row.cached_tokens > 0 && html`<small> (${count(row.cached_tokens)} cached)</small>`}
      <span aria-hidden="true"> → </span><span class="visually-hidden">, output: </span>${count(row.output_tokens)}
      <small> of ${count(row.max_output_tokens)}</small>
      ${numDrafts > 0 && html`<small class="drafts" title="guessed tokens that the model confirmed">, ${
        count(row.confirmed_drafts)} of ${count(numDrafts)} drafts confirmed</small>`}</span>`;
}
