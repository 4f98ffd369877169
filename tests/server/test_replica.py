"""Replica: the state and functions that the routes share."""

import asyncio
import dataclasses
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest, ModelNotFound, QueueFull, RateLimited, Unavailable
from chairlift.core.host.resource_monitor import ResourceMonitor
from chairlift.core.load_report import ReplicaState
from chairlift.server import replica as module
from chairlift.server.config import ServerConfig
from chairlift.server.replica import LARGE_BODY_BYTES, SMALL_BODY_BYTES, TINY_BODY_BYTES, Replica
from chairlift.text.chat_template import ChatTemplate
from chairlift.web.admission import AdmissionLimits
from chairlift.web.request_info import SCOPE_KEY, RequestInfo
from chairlift.web.service.http_config import HttpConfig
from chairlift.web.tenant_limits import TenantLimits
from support_config import make_server_config
from support_process import TIMEOUT_SECONDS
from support_server import run
from support_services import AsciiTokenizer, fake_service


def with_replica(check: Any, **options: Any) -> None:
    async def scenario() -> None:
        replica = Replica(make_server_config("a", "b", **options))
        service = fake_service()
        replica.attach_service(service, lambda: None, 2048)
        try:
            result = check(replica)
            if asyncio.iscoroutine(result):
                await result
        finally:
            await replica.close()

    run(scenario())


def test_a_model_has_several_names_and_no_other() -> None:
    def check(replica: Replica) -> None:
        replica.check_model("a")
        replica.check_model("b")
        with pytest.raises(ModelNotFound, match="a, b"):
            replica.check_model("c")

    with_replica(check)


def test_the_setting_decides_the_format_of_calls_before_the_template() -> None:
    names = []
    for options in ({}, {"tool_call_parser": "llama3_json"}, {"tool_call_parser": "glm"}):
        with_replica(lambda replica: names.append(replica.tool_format.name), **options)
    assert names == ["generic", "llama3", "glm"]


@pytest.mark.parametrize(("parser", "is_enforced"), [("auto", True), ("qwen3", True), ("deepseek_r1", False)])
def test_calls_that_a_model_may_make_are_enforced_unless_it_reasons_without_a_start(
    parser: str, is_enforced: bool
) -> None:
    def check(replica: Replica) -> None:
        for source in ("</think>{{ tools }}<tool_call>", "</think>"):
            chat = ChatTemplate({"default": source}, AsciiTokenizer(), reasoning_parser=parser)
            other = Replica(replica.config)
            other.attach_service(dataclasses.replace(replica.service, chat_template=chat), lambda: None, 2048)
            found = other.tool_format
            assert found.follows_reasoning
            assert (found.is_enforced if found.is_generic else bool(found.auto_notations)) == is_enforced

    with_replica(check)


def test_a_template_that_has_the_model_call_a_tool_of_its_own_has_no_grammar_of_optional_calls() -> None:
    """Where Command-R needs none of the request's tools, it calls directly-answer."""

    def check(replica: Replica) -> None:
        source = "{{ tools }} Use the `directly-answer` tool if ... Action: [{tool_name: ...}]"
        for text, is_enforced in ((source, False), (source.replace("directly", "other"), True)):
            for name in (None, "command-r"):
                other = Replica(dataclasses.replace(replica.config, tool_call_parser=name))
                chat = ChatTemplate({"default": text}, AsciiTokenizer())
                other.attach_service(dataclasses.replace(replica.service, chat_template=chat), lambda: None, 2048)
                assert other.tool_format.name == "command-r" and bool(other.tool_format.auto_notations) == is_enforced

    with_replica(check)


def test_ids_for_the_engine_begin_with_the_requests_own() -> None:
    def check(replica: Replica) -> None:
        ids = [replica.new_engine_request_id("mine") for _ in range(100)]
        assert len(set(ids)) == 100 and all(each.startswith("mine.") for each in ids)

    with_replica(check)


def test_fields_without_effect_are_named_or_refused() -> None:
    def check_ignored(replica: Replica) -> None:
        assert replica.ignored_fields_header(()) == []
        assert replica.ignored_fields_header(("tools[0].x/a~1b/not",)) == [
            (b"x-ignored-parameters", b"tools[0].x/a~1b/not")
        ]
        assert replica.ignored_fields_header(("store", "a\r\nb: c")) == [(b"x-ignored-parameters", b"store, a??b??c")]

    def check_strict(replica: Replica) -> None:
        with pytest.raises(InvalidRequest, match="store") as caught:
            replica.ignored_fields_header(("store",))
        assert caught.value.details["param"] == "store"

    with_replica(check_ignored)
    with_replica(check_strict, reject_unknown_fields=True)


@pytest.mark.parametrize(("header", "timeout", "result"), [
    (None, None, None), (None, 3.0, 3.0), (b"1500", None, 1.5), (b"1500", 3.0, 1.5), (b"5000", 3.0, 3.0),
])  # fmt: skip
def test_the_shorter_timeout_counts(header: bytes | None, timeout: float | None, result: float | None) -> None:
    headers = [] if header is None else [(b"x-request-timeout-ms", header)]
    with_replica(lambda replica: _equal(replica.timeout({"headers": headers}, timeout), result))


def _equal(actual: Any, other: Any) -> None:
    assert actual == other


def test_it_stops_its_engine_and_says_so() -> None:
    async def check(replica: Replica) -> None:
        assert (await replica.load()).state is ReplicaState.READY
        await replica.close()
        assert replica.lifecycle.state is ReplicaState.STOPPED

    with_replica(check)


@pytest.mark.parametrize(
    ("size", "is_same_thread"), [(10, True), (SMALL_BODY_BYTES, True), (SMALL_BODY_BYTES + 1, False)]
)
def test_a_large_body_is_read_in_a_thread(size: int, is_same_thread: bool) -> None:
    async def check(replica: Replica) -> None:
        body, threads = b'{"x": "%s"}' % (b"x" * (size - 9)), []

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        def parse(result: dict[str, Any]) -> int:
            threads.append(threading.current_thread())
            return len(result["x"])

        assert await replica.parse_body({"headers": []}, receive, parse) == len(body) - 9
        assert (threads == [threading.current_thread()]) is is_same_thread

    with_replica(check)


@pytest.mark.parametrize(
    ("body", "is_same_thread"),
    [
        (b'{"prompt": "x"}', True), (b'{"tools": []}', False), (b'{"guided_json": {}}', False),
        (b'{"response_format": {"type": "json_schema"}}', False), (b'{"\\u0074ools": []}', False),
    ],
)  # fmt: skip
def test_a_body_that_may_have_a_schema_is_read_in_a_thread(body: bytes, is_same_thread: bool) -> None:
    async def check(replica: Replica) -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        thread = await replica.parse_body({"headers": []}, receive, lambda _: threading.current_thread())
        assert (thread is threading.current_thread()) is is_same_thread

    with_replica(check)


def sized_scope(body_bytes: int) -> dict[str, Any]:
    return {SCOPE_KEY: RequestInfo(body_bytes=body_bytes)}


def test_large_bodies_are_parsed_one_after_the_other_and_block_no_other_request() -> None:
    async def check(replica: Replica) -> None:
        gate, large = threading.Event(), sized_scope(LARGE_BODY_BYTES + 1)
        first = asyncio.create_task(replica.run_by_body_size(lambda: gate.wait(TIMEOUT_SECONDS), large))
        second = asyncio.create_task(replica.run_by_body_size(gate.is_set, large))
        sizes = (0, LARGE_BODY_BYTES)
        tasks = [replica.run_by_body_size(threading.get_ident, sized_scope(size)) for size in sizes]
        for other in (replica.in_thread(threading.get_ident), *tasks):
            assert await other and not gate.is_set()
        assert not first.done() and not second.done()
        gate.set()
        assert await first and await second

    with_replica(check)


@pytest.mark.parametrize(
    ("size", "thread"),
    [
        (TINY_BODY_BYTES, "MainThread"), (TINY_BODY_BYTES + 1, "chairlift-text"),
        (LARGE_BODY_BYTES, "chairlift-text"), (LARGE_BODY_BYTES + 1, "chairlift-large"),
    ],
)  # fmt: skip
def test_a_body_says_by_its_size_where_its_text_becomes_tokens(size: int, thread: str) -> None:
    async def check(replica: Replica) -> None:
        messages = [{"type": "http.request", "body": b"{}" + b" " * (size - 2)}]

        async def receive() -> Any:
            return messages.pop()

        scope: dict[str, Any] = {"headers": []}
        await replica.parse_body(scope, receive, lambda body: body)
        name = await replica.run_by_body_size(lambda: threading.current_thread().name, scope)
        assert name.startswith(thread)

    with_replica(check)


def test_a_body_is_not_read_where_no_request_would_be_served() -> None:
    async def check(replica: Replica) -> None:
        replica.lifecycle.drain()
        with pytest.raises(Unavailable):
            await replica.parse_body({"headers": []}, pytest.fail, dict)

    with_replica(check)


def test_gauges_are_kept_whatever_one_of_them_does(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PULSE_SECONDS", 0.001)
    faults: list[Exception] = [QueueFull(1, 1), RuntimeError("a mistake"), RuntimeError("again")]

    async def check(replica: Replica) -> None:
        cache_state = replica.service.client.cache_state

        def fail_first() -> Any:
            if faults:
                raise faults.pop(0)
            return cache_state()

        monkeypatch.setattr(replica.service.client, "cache_state", fail_first)
        task = asyncio.create_task(replica.update_gauges_forever())
        while (page := (await replica.metrics_page())[0]).find(b'chairlift_kv_cache_blocks{state="free"} 128.0') < 0:
            assert not task.done()
            await asyncio.sleep(0.001)
        assert b"chairlift_ready 1.0" in page
        while not (memory := replica.reporter.report(await replica.load()).memory_ratio):
            await asyncio.sleep(0.001)  # Linux alone reports it
        assert 0 < memory < 1
        task.cancel()

    with_replica(check)
    assert not faults and [record.message for record in caplog.records if record.exc_info] == [
        "the gauges cannot be read"
    ]


def test_gauges_go_on_while_the_engine_hangs_and_one_question_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PULSE_SECONDS", 0.001)
    hang, questions = threading.Event(), list[int]()

    async def check(replica: Replica) -> None:
        cache_state = replica.service.client.cache_state

        def wait() -> Any:
            questions.append(1)
            hang.wait(TIMEOUT_SECONDS)
            return cache_state()

        monkeypatch.setattr(replica.service.client, "cache_state", wait)
        for _ in range(3):
            await replica._update_gauges()
        page = (await replica.metrics_page())[0]
        assert b"chairlift_ready 1.0" in page and b'chairlift_process_memory_bytes{process="api"}' in page
        assert questions == [1] and b'chairlift_kv_cache_blocks{state="free"}' not in page
        hang.set()
        while b'chairlift_kv_cache_blocks{state="free"} 128.0' not in (await replica.metrics_page())[0]:
            await replica._update_gauges()

    with_replica(check)


@pytest.mark.parametrize("device", ["", "cpu", "cuda:1"])
def test_the_gpu_of_the_engines_device_is_measured(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, ResourceMonitor]] = []
    monkeypatch.setattr(ResourceMonitor, "watch_gpus", lambda self, device: made.append((device, self)))
    replica, service = Replica(make_server_config("a")), fake_service()
    client = SimpleNamespace(
        info=dataclasses.replace(service.client.info, device=device), watch_steps=lambda sink: None, restarts=0,
    )  # fmt: skip
    replica.attach_service(dataclasses.replace(service, client=client), lambda: None, 2048)  # type: ignore[arg-type]
    assert made == [(device, replica.resources)]
    service.client.close()


def test_the_metrics_wait_for_no_engine() -> None:
    """Other calls to an engine that hangs share the default threads of the event loop."""

    async def check(replica: Replica) -> None:
        hang = threading.Event()
        waiting = [asyncio.create_task(asyncio.to_thread(hang.wait, TIMEOUT_SECONDS)) for _ in range(64)]
        try:
            assert b"chairlift_ready" in (await replica.metrics_page())[0]
        finally:
            hang.set()
            await asyncio.gather(*waiting)

    with_replica(check)


def test_limits_are_taken_over_and_nothing_else() -> None:
    async def scenario() -> Replica:
        replica = Replica(ServerConfig(served_names=("a",)))
        replica.reload_limits(HttpConfig(
            body_timeout=1, admission=AdmissionLimits(max_waiting_requests=2),
            tenant=TenantLimits(tenant_max_open_requests=1),
        ))  # fmt: skip
        replica.tenants.begin("t")
        with pytest.raises(RateLimited):
            replica.tenants.begin("t")
        await replica.close()
        return replica

    config = run(scenario()).config.http
    assert config.body_timeout == 30
    assert (config.admission.max_waiting_requests, config.tenant.tenant_max_open_requests) == (2, 1)
