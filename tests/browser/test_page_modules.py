"""Modules of the page by themselves: text that is nested too deeply, models of live data, numbers, and streams."""

from collections.abc import Callable
from typing import Any

import pytest

from support_browser import WebPage
from support_server import Server

pytestmark = pytest.mark.browser
OpenPage = Callable[..., WebPage]


@pytest.fixture
def run(open_page: OpenPage, echo_server: Server) -> Callable[[str], Any]:
    """Return a function that runs the body of an async function, in which `load(name)` imports a module of the page."""
    page = open_page(echo_server)
    head = "const load = (name) => import(new URL(`ui/${name}`, document.baseURI).href);"
    return lambda body: page.page.evaluate(f"async () => {{ {head} {body} }}")


def test_an_object_that_changes_calls_its_listeners_until_they_end(run: Callable[[str], Any]) -> None:
    assert run("""const { Changes } = await load("lib/changes.js");
        const changes = new Changes();
        const calls = [];
        const end = changes.subscribe(() => { calls.push("a"); end(); });
        changes.subscribe(() => calls.push("b"));
        changes.notify();
        changes.notify();
        return calls""") == ["a", "b", "b"]


def test_an_index_of_conversations_has_the_last_changed_one_first_and_another_array_after_each_change(
    run: Callable[[str], Any],
) -> None:
    assert run("""const { ConversationIndex } = await load("chat/conversation_index.js");
        const stored = [{ id: "b", updated: 2, title: "new" }, { id: "a", updated: 1, title: "new" }];
        const index = new ConversationIndex({ list: async () => stored });
        const states = [];
        const shown = () => states.push([index.entries.map(({ id, title }) => `${id} ${title ?? ""}`.trim()),
          new Set([...arrays, index.entries]).size === arrays.push(index.entries)]);
        const arrays = [];
        for (const step of [() => index.add([{ id: "a", updated: 1 }, { id: "c", updated: 3 }]),
          () => index.reload(["b"]), () => index.putFirst({ id: "a", updated: 4, messages: [], nodes: [] }),
          () => index.change("a", { title: "t" }), () => index.remove("c"), () => index.load()]) {
          await step();
          shown();
        }
        return [states, index.find("b").updated, index.find("z") ?? null]""") == [
        [
            [["c", "a"], True], [["c", "b new", "a"], True], [["a", "c", "b new"], True], [["a t", "c", "b new"], True],
            [["a t", "b new"], True], [["b new", "a new"], True],
        ],
        2, None,
    ]  # fmt: skip


def test_text_that_is_nested_too_deeply_is_shown_as_plain_text(run: Callable[[str], Any]) -> None:
    text = run("""const { blocksOf, fragmentOf } = await load("lib/markdown.js");
        return blocksOf("> ".repeat(4000) + "x").map((block) => fragmentOf(block).textContent).join("")""")
    assert text.startswith("> > >") and text.endswith("x")


def test_what_is_unfolded_stays_so_while_the_text_grows(run: Callable[[str], Any]) -> None:
    assert run("""const { html, render } = await load("lib/html.js");
        const { MarkdownText } = await load("chat/markdown_text.js");
        const frame = document.createElement("div");
        const part = "<details><summary>A</summary>\\n\\nx\\n\\n</details>\\n";
        const draw = (text, isRunning = true) => {
          render(html`<${MarkdownText} text=${text} isRunning=${isRunning} />`, frame);
          return [...frame.querySelectorAll("details")].map((each) => each.open);
        };
        const states = [draw("<details><summary>O</summary>\\n\\n" + part)];
        for (const each of frame.querySelectorAll("details")) each.open = true;
        const text = "<details><summary>O</summary>\\n\\n" + part + "more" + part;
        return [...states, draw(text), draw(text, false)]""") == [[False] * 2, [True, True, False], [True, True, False]]


def test_a_part_that_cannot_be_shown_leaves_the_others(run: Callable[[str], Any]) -> None:
    shown = run("""const { html, render } = await load("lib/html.js");
        const { Boundary } = await load("lib/boundary.js");
        const frame = document.createElement("div");
        const Bad = ({ value }) => { if (value === 1) throw new Error("broken"); return html`good`; };
        const draw = (value) => render(html`<i>before</i><${Boundary} value=${value} fallback=${() => html`instead`}>
            <${Bad} value=${value} /><//>`, frame);
        const shown = [];
        for (const value of [1, 2]) {
          draw(value);
          await new Promise((resolve) => setTimeout(resolve, 20));
          shown.push(frame.textContent);
        }
        return shown""")
    assert [text.replace(" ", "") for text in shown] == ["beforeinstead", "beforegood"]


def test_a_replica_that_is_gone_adds_no_tokens(run: Callable[[str], Any]) -> None:
    assert run("""const { FleetModel } = await load("live/fleet_model.js");
        let now = 0;
        const model = new FleetModel(() => now);
        const load_ = (tokens) => ({ output_tokens: tokens, incarnation: "i" });
        model.onEvent("replicas", [{ replica_id: "a", load: load_(0) }, { replica_id: "b", load: load_(0) }]);
        now = 10;
        model.onEvent("replicas", [{ replica_id: "a", load: load_(50) }, { replica_id: "b", load: load_(70) }]);
        model.onEvent("replicas", [{ replica_id: "a", load: load_(50) }]);
        return [[...model.rates], [...model.marks.keys()]]""") == [[["a", 5]], ["a"]]


def test_a_request_that_has_just_ended_is_shown_once(run: Callable[[str], Any]) -> None:
    assert run("""const { FleetModel } = await load("live/fleet_model.js");
        const model = new FleetModel();
        model.onEvent("open_requests", [{ request_id: "a", at_seconds: 1 }, { request_id: "b", at_seconds: 2 }]);
        model.onEvent("requests", [{ request_id: "a", at_seconds: 1, outcome: "stop" }]);
        return model.allRequests.map((each) => each.request_id)""") == ["a", "b"]


def test_seconds_are_rounded_before_they_are_split(run: Callable[[str], Any]) -> None:
    assert run("""const { seconds } = await load("lib/format.js");
        return [59.4, 59.7, 119.7, 3599.8, 7260].map(seconds)""") == [
        "59 s", "1 min 0 s", "2 min 0 s", "1 h 0 min", "2 h 1 min",
    ]  # fmt: skip


def test_a_batch_is_stale_for_a_reason_and_steps_mark_gaps_and_begin_again_with_a_new_engine(
    run: Callable[[str], Any],
) -> None:
    assert run("""const { BatchModel } = await load("live/batch_model.js");
        const model = new BatchModel();
        model.takeSteps([[0, 1, 1, [], []], [1, 1, 1, [], []]]);
        model.takeSteps([[1, 1, 1, [], []], [2, 1, 1, [], []]]);
        const ids = [model.steps.map((step) => step.id)];
        model.takeSteps([[9, 1, 1, [], []]]);
        ids.push(model.steps.filter((step) => step.isAfterGap).map((step) => step.id));
        model.takeSteps([[0, 1, 1, [], []], [1, 1, 1, [], []]]);
        ids.push(model.steps.map((step) => step.id));
        const texts = [];
        for (const [state, why] of [["ready", ""], ["draining", ""], ["ready", "it hangs"]]) {
          model.onEvent("server", { state, reason: "SIGTERM", batch_stale_reason: why });
          texts.push([model.stale, model.note]);
        }
        return [ids, texts]""") == [
        [[0, 1, 2], [9], [0, 1]],
        [["", ""], ["", "Live; the server is draining (SIGTERM)"], ["Not live: it hangs", ""]],
    ]


def test_a_request_whose_grammar_is_compiled_has_no_blocks_and_withheld_blocks_are_not_free(
    run: Callable[[str], Any],
) -> None:
    assert run("""const { drawBlockMap } = await load("live/drawings.js");
        const { palette } = await load("live/canvas.js");
        const { RowDot } = await load("live/row_dot.js");
        const { html, render } = await load("lib/html.js");
        const drawn = (key) => {
          const cells = [];
          const context = { globalAlpha: 1, fillRect() { cells.push([this.fillStyle, this.globalAlpha]); } };
          drawBlockMap([-1, 1, -2, 1, -3, 1, -4, 1, -5, 1, 7, 1], key)(context, 100, 100, palette());
          return cells;
        };
        const alphas = [null, -1, -16, 7].map((key) => drawn(key).map(([, alpha]) => alpha));
        const frame = document.createElement("div");
        render(html`<${RowDot} value=${-16} />`, frame);
        const dot = frame.querySelector("rect").getAttribute("fill");
        return [alphas, new Set(drawn(null).map(([fill]) => fill)).size, dot === palette().border]""") == [
        [[1] * 6, [1] * 6, [1] * 6, [0.25] * 5 + [1]], 6, True,
    ]  # fmt: skip


BATCH = """const { html, render } = await load("lib/html.js");
    const { View } = await load("views/batch.js");
    const batch = {
      rows: [[-16, "compiled", 0, "", "waiting", "grammar", 0, 9, 0, 0, 0, 5, 0, 0, 0, 1, 1, 0, 0],
        [3, "guessed", 0, "", "decode", "", 0, 9, 0, 12, 3, 5, 1, 0, 0, 1, 0, 1200, 34]], num_hidden_rows: 0,
      recent_steps: [], num_steps: 0, scheduled_tokens: 0, output_tokens: 0, num_preemptions: 0, num_running: 0,
      num_waiting: 1, waiting_tokens: 9, wait_reason: "grammar", num_in_flight: 0, max_running_requests: 4,
      max_batch_tokens: 64, block_size: 16, total_blocks: 100, free_blocks: 60, cached_blocks: 10, held_blocks: 7,
      withheld_blocks: 23, block_map: [5, 7, -2, 10, -1, 60, -3, 23], blocks_per_cell: 1,
    };
    const hello = { schema: 1, service: "server", models: ["m"], history_fields: [], row_fields: ["key", "request_id",
      "choice", "tenant", "state", "wait_reason", "priority", "prompt_tokens", "cached_tokens", "computed_tokens",
      "output_tokens", "max_output_tokens", "num_blocks", "num_cached_blocks", "num_preemptions", "age_seconds",
      "wait_seconds", "confirmed_drafts", "rejected_drafts"] };
    const events = async function* () {
      yield { event: "hello", data: JSON.stringify(hello) };
      yield { event: "batch", data: JSON.stringify(batch) };
      await new Promise(() => {});
    };
    const frame = document.getElementById("app");
    render(null, frame);
    render(html`<${View} api=${{ events }} settings=${{ theme: "light" }} />`, frame);"""
"""The batch view alone, with a waiting request, one with drafts, and blocks above the limit of the pool."""


def test_the_table_of_blocks_tells_withheld_blocks_from_free_ones(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    head = "const load = (name) => import(new URL(`ui/${name}`, document.baseURI).href);"
    page.page.evaluate(f"async () => {{ {head} {BATCH} }}")
    rows = page.page.locator(".block-table tbody tr")
    rows.first.wait_for()
    assert [text.split("\t") for text in rows.all_inner_texts()] == [
        ["held by requests", "7"], ["of these, by several", "0"], ["cached for later prompts", "10"], ["free", "60"],
        ["not used, above the limit", "23"],
    ]  # fmt: skip
    page.page.locator(".drafts").get_by_text("1,200 of 1,234 drafts confirmed").wait_for()
    assert page.page.locator(".drafts").count() == 1
    page.page.get_by_role("button", name="compiled").click()
    page.page.mouse.move(0, 0)
    page.page.locator(".live-side").get_by_text("compiled holds 0 blocks").wait_for()


def test_enter_of_an_input_method_sends_nothing(run: Callable[[str], Any]) -> None:
    assert run("""const { isSubmit } = await load("lib/keyboard.js");
        const key = { key: "Enter", shiftKey: false, isComposing: false, keyCode: 13 };
        return [{}, { keyCode: 229 }, { isComposing: true }, { shiftKey: true }].map((each) =>
          isSubmit({ ...key, ...each }))""") == [True, False, False, False]


def test_a_rate_needs_time_and_more_than_one_chunk(run: Callable[[str], Any]) -> None:
    one_chunk, one_moment, slow, samples = run("""const { emptyAnswer, generate } = await load("chat/generation.js");
        const { BatchModel } = await load("live/batch_model.js");
        const rateOf = async (texts, pause) => {
          const events = async function* () {
            for (const content of texts) {
              yield { event: "message", data: JSON.stringify({ choices: [{ delta: { content } }] }) };
              await new Promise((resolve) => setTimeout(resolve, pause));
            }
            yield { event: "message", data: JSON.stringify({ choices: [], usage: { completion_tokens: 40 } }) };
            yield { event: "message", data: "[DONE]" };
          };
          const answer = emptyAnswer("m");
          await generate({ events }, {}, answer, new AbortController().signal, () => {});
          return answer.stats.rate;
        };
        const model = new BatchModel();
        model.onEvent("hello", { history_fields: ["at_seconds", "num_steps", "prefill_tokens", "decode_tokens"] });
        model.onEvent("history", [[10, 1, 5, 100], [10.001, 1, 5, 100], [10, 1, 5, 100], [12, 1, 5, 100]]);
        return [await rateOf(["all"], 400), await rateOf(["a", "b"], 0), await rateOf(["a", "b", "c", "d"], 100),
          model.history.tokens.slice(1)]""")
    assert [one_chunk, one_moment] == [None, None]
    assert 0 < slow <= 100, "30 tokens, those behind the first chunk, in 0.3 s or more"
    assert samples == [[5, None, None, 2.5], [100, None, None, 50]]


def test_a_stream_says_why_it_failed_and_refuses_another_schema(run: Callable[[str], Any]) -> None:
    assert run("""const { LiveSource } = await load("live/live_source.js");
        const { ApiError } = await load("lib/api.js");
        const seen = [];
        const follow = async (events, last) => {
          const source = new LiveSource({ events }, () => {}, () => {
            seen.push([source.state, source.message]);
            if (source.message || source.state === last) source.stop();
          });
          await source.run();
        };
        await follow(async function* () { throw new ApiError("too many", { status: 429 }); yield 0; }, "");
        await follow(async function* () { yield { event: "hello", data: '{"schema": 2}' }; }, "outdated");
        return seen""") == [["connecting", ""], ["connecting", "too many"], ["connecting", ""], ["outdated", ""]]


def test_a_conversation_that_another_tab_changed_or_deleted_is_not_overwritten(run: Callable[[str], Any]) -> None:
    assert run("""const { ConversationStore } = await load("chat/conversation_store.js");
        const [one, two] = [new ConversationStore(), new ConversationStore()];
        const save = (store, revision, seen, messages) =>
          store.save({ id: "c", title: "t", updated: 1, revision }, messages, seen);
        const outcomes = [await save(one, "r1", null, ["1"]), await save(two, "r2", "r1", ["2"]),
          await save(one, "r3", "r1", ["3"])];
        const kept = await one.messages("c");
        await two.remove("c");
        outcomes.push(await save(one, "r4", "r2", ["4"]));
        return [outcomes, kept, await one.messages("c")]""") == [
        ["kept", "kept", "changed", "deleted"], ["2"], [],
    ]  # fmt: skip


def test_two_tabs_show_the_same_conversation_and_its_deletion(open_page: OpenPage, echo_server: Server) -> None:
    first = open_page(echo_server)
    first.ask("one")
    other = first.context.new_page()
    other.goto(f"{echo_server.url}/")
    other.get_by_test_id("markdown").wait_for()
    first.ask("two")
    other.wait_for_function("() => document.querySelectorAll('[data-testid=markdown]').length === 2")
    other.get_by_test_id("composer").fill("three")
    other.get_by_test_id("composer").press("Enter")
    first.page.wait_for_function("() => document.querySelectorAll('[data-testid=stats]').length === 3")
    first.get("conversation").hover()
    first.page.get_by_label("Delete one").click()
    first.get("delete").click()
    other.get_by_text("Another tab deleted the conversation").wait_for()
    assert other.get_by_test_id("conversation").count() == 0
