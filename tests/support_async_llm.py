"""AsyncLLM on a fake engine: runs a scenario in an event loop and collects its events."""

import asyncio
from dataclasses import replace
from typing import Any

from chairlift import AsyncLLM, SamplingParams
from chairlift.llm.text_event import TextEvent
from chairlift.llm.text_service import TextService
from support_services import FAKE, is_idle

SEEDED = SamplingParams(max_tokens=24, seed=3)
LONG = SamplingParams(max_tokens=400, seed=3)
SLOW_ENGINE = replace(FAKE, seconds_per_step=0.005)


async def collect_events(
    llm: AsyncLLM, prompt: Any, params: SamplingParams | None = SEEDED, **options: Any
) -> list[TextEvent]:
    return [event async for event in llm.generate(prompt, params, **options)]


def text(events: list[TextEvent]) -> str:
    return "".join(event.delta for event in events)


def ids(events: list[TextEvent]) -> list[int]:
    return [token for event in events for token in event.token_ids]


def run(service: TextService, scenario: Any) -> Any:
    """Run `scenario(llm)` in an event loop, then check that the engine holds no request."""

    async def run_scenario() -> Any:
        async with AsyncLLM.from_service(service) as llm:
            results = await scenario(llm)
            while not is_idle(service):
                await asyncio.sleep(0.005)
            assert await llm.check_integrity() == []
            return results

    return asyncio.run(asyncio.wait_for(run_scenario(), 60))
