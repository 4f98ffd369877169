"""EngineAsProcessor: an engine has one processor, and its steps are counted also after its end."""

from typing import Any

from chairlift.llm.transformers_compat.engine_as_processor import EngineAsProcessor
from support_engine import make_request
from support_inline import WAIT_SECONDS, start_client


def test_an_engine_has_one_processor_and_its_steps_are_counted_also_after_its_end() -> None:
    shown, client, outputs = EngineAsProcessor(), start_client(), list[Any]()
    assert shown.processor(None) is None and shown.num_steps(None) == 0
    processor = shown.processor(client)
    assert processor is not None and shown.processor(client) is processor and processor.client is client
    client.submit(make_request("a", 3, 4), outputs.extend)
    client.submit(make_request("b", 3, 4), outputs.extend)
    while sum(each.is_final for each in outputs) < 2:
        client.thread.join(0.001)
    with client.paused():
        steps = shown.num_steps(client)
    client.close()
    assert shown.processor(None) is None and shown.last is processor
    assert shown.num_steps(None) == steps == client.loop.scheduler.counters.steps >= 4
    other = start_client()
    assert shown.processor(other) is not processor and shown.num_steps(other) == 0
    other.close()
    other.thread.join(WAIT_SECONDS)
