"""LoadReporter: what a replica says about itself, in /load and in the header of responses to a router."""

from dataclasses import replace
from typing import Any

import httpx
import msgspec
import pytest

from chairlift import __version__
from chairlift.core.clock import FakeClock
from chairlift.core.errors import FingerprintMismatch
from chairlift.core.host.resource_monitor import UNKNOWN, ResourceUsage
from chairlift.core.load_report import LoadReport, LoadSummary, ReplicaReport, ReplicaState
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.llm.model_defaults import ModelDefaults
from chairlift.router.health.replica_load import parse_load_header
from chairlift.server.load_reporter import HEADER_SECONDS, LoadReporter, service_fingerprint
from chairlift.text.byte_tokenizer import ByteTokenizer
from chairlift.text.chat_template import ChatTemplate
from chairlift.web.admission import AdmissionController, AdmissionLimits
from chairlift.web.lifecycle import Lifecycle
from support_server import CHAT, COMPLETIONS, HELLO, open_server, run
from support_services import FAKE, AsciiTokenizer, fake_service
from support_step_stats import make_stats

ROUTER = {"x-chairlift-router": "1"}


RESOURCES = ResourceUsage(cpu_ratio=0.5, memory_ratio=0.25, gpu_ratio=0.75, gpu_memory_ratio=0.125)


def make_reporter(clock: FakeClock, resources: ResourceUsage = UNKNOWN) -> tuple[LoadReporter, AdmissionController]:
    lifecycle = Lifecycle()
    lifecycle.mark_started(lambda: ReplicaState.READY)
    admission = AdmissionController(AdmissionLimits(), clock)
    return LoadReporter(("a", "b"), lifecycle, admission, clock, lambda: resources, ("o/a",)), admission


def test_the_report_has_the_load_and_what_the_replica_is() -> None:
    reporter, admission = make_reporter(FakeClock(), RESOURCES)
    service = fake_service()
    try:
        reporter.attach_service(service)
        admission.max_running = 8
        permit = admission.admit(30)
        reporter.record_step(make_stats(num_prefill_tokens=50, collect_ms=100))
        report = reporter.report(LoadReport(state=ReplicaState.READY, running_requests=2))
        permit.end()
    finally:
        service.client.close()
    assert report == ReplicaReport(
        state=ReplicaState.READY, running_requests=2, admission_waiting_requests=1, admission_waiting_tokens=30,
        instance_id=reporter.instance_id, fingerprint=service_fingerprint(service), version=__version__,
        models=("a", "b"), aliases=("o/a",), block_size=4, max_running_requests=8, prefill_tokens_per_second=500.0,
        cpu_ratio=0.5, memory_ratio=0.25, gpu_ratio=0.75, gpu_memory_ratio=0.125,
    )  # fmt: skip


def test_the_instance_differs_after_a_start_of_server_or_engine() -> None:
    reporters = [make_reporter(FakeClock())[0] for _ in range(2)]
    assert reporters[0].instance_id == reporters[0].instance_id != reporters[1].instance_id
    service = fake_service()
    before, restarts = reporters[0].instance_id, [0]

    class Restarted:
        info = service.client.info

        @property
        def restarts(self) -> int:
            return restarts[0]

    reporters[0].attach_service(replace(service, client=Restarted()))  # type: ignore[arg-type]
    assert reporters[0].instance_id == before
    restarts[0] = 1
    assert reporters[0].instance_id != before
    service.client.close()


def test_the_header_is_reused_for_some_milliseconds() -> None:
    clock = FakeClock()
    reporter, admission = make_reporter(clock)
    [(name, value)] = reporter.headers()
    assert name == b"x-chairlift-load"
    assert value == LoadSummary(state=ReplicaState.READY, instance_id=reporter.instance_id).header_value()
    permit = admission.admit(30)
    assert reporter.headers() == [(name, value)]
    clock.advance(HEADER_SECONDS)
    assert b";waiting=1;waiting_tokens=30;" in reporter.headers()[0][1]
    permit.end()


def test_headers_of_one_moment_are_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    reporter, _ = make_reporter(clock)
    summary, summaries = reporter.summary, []
    monkeypatch.setattr(reporter, "summary", lambda: summaries.append(summary()) or summaries[-1])
    for _ in range(1000):
        reporter.headers()
    assert len(summaries) == 1
    clock.advance(HEADER_SECONDS)
    reporter.headers()
    assert len(summaries) == 2


def test_the_use_of_the_cache_follows_steps_and_the_engines_own_report() -> None:
    reporter, _ = make_reporter(FakeClock())
    service = fake_service()
    reporter.attach_service(service)
    service.client.close()
    reporter.record_step(make_stats(free_blocks=96))
    assert reporter.summary().kv_use == 0.25
    reporter.record_load(LoadReport(state=ReplicaState.READY, total_blocks=128, free_blocks=128))
    assert reporter.summary().kv_use == 0.0
    reporter.record_load(LoadReport(state=ReplicaState.DEAD))
    assert reporter.summary().kv_use == 0.0


def test_a_fingerprint_follows_everything_that_decides_on_tokens() -> None:
    base = fake_service()
    services = [
        base, fake_service(replace(FAKE, seed=FakeConfig().seed + 1)), fake_service(tokenizer=ByteTokenizer()),
        fake_service(defaults=ModelDefaults(sampling={"top_k": 5})), fake_service(with_tokenizer=False),
        fake_service(defaults=ModelDefaults(eos_token_ids=(3,))),
    ]  # fmt: skip
    tokenizer = AsciiTokenizer()
    services.append(replace(base, chat_template=ChatTemplate({"default": "{{ messages }}"}, tokenizer)))
    fingerprints = [service_fingerprint(service) for service in services]
    assert len(fingerprints[0]) == 32 and service_fingerprint(fake_service()) == fingerprints[0]
    assert len({*fingerprints}) == len(fingerprints) - 1, "the tokenizers alone are equal"
    for service in services:
        service.client.close()


def test_tokens_of_other_weights_are_refused() -> None:
    reporter, _ = make_reporter(FakeClock())
    reporter.fingerprint = "mine"
    reporter.check_fingerprint("")
    reporter.check_fingerprint("mine")
    with pytest.raises(FingerprintMismatch, match="resume_fingerprint is 'other', this server's fingerprint is 'mine'"):
        reporter.check_fingerprint("other")


# -- over HTTP ---------------------------------------------------------------------------------------------------------


def send(*requests: tuple[str, dict[str, Any], dict[str, str]]) -> tuple[list[httpx.Response], ReplicaReport]:
    async def scenario() -> Any:
        async with open_server(fake_service()) as server:
            responses = [await server.http.post(path, json=body, headers=headers) for path, body, headers in requests]
            return responses, msgspec.convert((await server.http.get("/load")).json(), ReplicaReport)

    return run(scenario())


def test_every_response_to_a_router_has_the_load_and_no_other_response() -> None:
    completion = {"model": "fake", "prompt": "x"}
    bodies = [(CHAT, HELLO), (CHAT, {**HELLO, "stream": True}), (COMPLETIONS, completion), (CHAT, {**HELLO, "n": 0}),
              (CHAT, {**HELLO, "model": "other"})]  # fmt: skip
    responses, report = send(*[(path, body, ROUTER) for path, body in bodies])
    assert [response.status_code for response in responses] == [200, 200, 200, 400, 404]
    for response in responses:
        load = parse_load_header(response.headers["x-chairlift-load"], 0.0)
        assert load is not None and load.incarnation == report.instance_id
        assert load.fingerprints == {"": report.fingerprint}
    assert report.models == ("fake",) and report.adapters == () and report.output_tokens_per_second > 0
    responses, _ = send(*[(path, body, {}) for path, body in bodies], ("/tokenize", {"prompt": "x"}, ROUTER))
    assert not any("x-chairlift-load" in response.headers for response in responses)


def test_a_request_that_resumes_from_tokens_of_other_weights_is_a_conflict() -> None:
    body = {**HELLO, "resume": [[5]], "resume_fingerprint": "other"}
    [conflict], report = send((CHAT, body, {}))
    assert conflict.status_code == 409 and conflict.headers["x-should-retry"] == "false"
    assert conflict.json()["error"]["code"] == "fingerprint_mismatch"
    assert report.finished_requests == 0
    [response, invalid], _ = send(
        (CHAT, {**body, "resume_fingerprint": report.fingerprint}, {}), (CHAT, {**body, "resume_fingerprint": 5}, {})
    )
    assert response.status_code == 200
    assert invalid.status_code == 400 and invalid.json()["error"]["param"] == "resume_fingerprint"
