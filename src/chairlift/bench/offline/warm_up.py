"""warm_up, warm_up_items: what an engine runs before it is measured."""

from chairlift.bench.offline.driver import drive_workload
from chairlift.bench.workload.workload import Workload, WorkloadRequest
from chairlift.llm.text_service import TextService

WARM_UP = (8, 48, 4)
"""Requests, prompt tokens and output tokens of the warm-up, which keeps one-time costs out of the measurement."""


def warm_up(service: TextService) -> None:
    """Run a few short requests if they fit the context, flush the prefix cache, and run the engine's own warm-up.

    The engine's own comes last: it populates the pages behind the blocks that the requests have used. A server does
    that while no request runs; a measurement that begins at once would do it in its steps.
    """
    _run_requests(service)
    service.client.flush_cache()
    service.client.warmup()


def _run_requests(service: TextService) -> None:
    _, prompt, output = WARM_UP
    limits = service.client.limits
    prompt = max(1, min(prompt, limits.max_output_tokens(0) - output))
    if limits.max_output_tokens(prompt) < output:
        return
    drive_workload(service, Workload(name="warm-up", seed=0, items=warm_up_items(prompt, limits.vocab_size)))


def warm_up_items(prompt_tokens: int, vocab_size: int) -> tuple[WorkloadRequest, ...]:
    """Return the requests of the warm-up; no two share a prefix if the vocabulary is large enough."""
    requests, _, output = WARM_UP
    prompts = [tuple((first + offset) % vocab_size for offset in range(prompt_tokens)) for first in range(requests)]
    return tuple(WorkloadRequest(at=0.0, prompt_token_ids=prompt, output_tokens=output) for prompt in prompts)
