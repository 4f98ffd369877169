"""Batch clients: by default requests queue until they are answered, and what can never be answered is not retried."""

import asyncio
from collections import Counter

import httpx
import openai
import pytest

from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.engine.scheduler.step_cost_model import MIN_OBSERVATIONS
from support_process import TIMEOUT_SECONDS
from support_server import COMPLETIONS, fake_server, run

COUNT = 200
SLOW_ENGINE = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=512, seconds_per_step=0.02)
FOUR_SLOTS = {"max_running_requests": 4}
"""With 5 tokens a request the engine finishes 40 requests a second, so the last of 200 waits for 5 s."""


async def complete_all(url: str) -> Counter[str]:
    """Send all completions at once through the OpenAI client at its defaults; count finish reasons and errors."""
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none") as client:

        async def complete(number: int) -> str:
            try:
                result = await client.completions.create(model="fake", prompt=f"hello {number}", max_tokens=5, seed=1)
            except openai.APIStatusError as error:
                return f"{error.status_code}"
            return result.choices[0].finish_reason

        return Counter(await asyncio.gather(*map(complete, range(COUNT))))


@pytest.mark.full
def test_a_batch_of_the_openai_client_is_answered_whole() -> None:
    with fake_server(SLOW_ENGINE, scheduler=FOUR_SLOTS) as server:
        assert run(complete_all(server.url)) == {"length": COUNT}
        assert server.metric("requests_rejected_total") == 0


def test_a_timeout_that_can_never_be_met_is_not_retried() -> None:
    body = {"model": "fake", "prompt": "hello", "seed": 1, "ignore_eos": True}
    with fake_server(SLOW_ENGINE) as server, httpx.Client(base_url=server.url, timeout=TIMEOUT_SECONDS) as http:
        for number in range(MIN_OBSERVATIONS + 1):  # the engine learns what a step takes
            assert http.post(COMPLETIONS, json={**body, "prompt": f"{number} hello", "max_tokens": 2}).is_success
        response = http.post(COMPLETIONS, json={**body, "max_tokens": 400, "timeout": 1.0})
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (400, "timeout_too_short", "timeout")
        assert response.headers["x-should-retry"] == "false" and "retry-after" not in response.headers
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
        num_rejected = server.metric("requests_rejected_total")
        with pytest.raises(openai.BadRequestError, match="needs at least"):
            client.completions.create(
                model="fake", prompt="hello", max_tokens=400, extra_body={"ignore_eos": True, "timeout": 1.0}
            )
        assert server.metric("requests_rejected_total") == num_rejected + 1, "the client sends it once"
