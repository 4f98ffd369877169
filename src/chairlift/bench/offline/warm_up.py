"""warm_up, warm_up_items: the requests that an engine runs before it is measured."""

from chairlift.bench.offline.driver import drive_workload
from chairlift.bench.workload.workload import Workload, WorkloadRequest
from chairlift.llm.text_service import TextService

WARM_UP = (8, 48, 4)
"""Requests, prompt tokens and output tokens of the warm-up, which keeps one-time costs out of the measurement."""


def warm_up(service: TextService) -> None:
    """Run a few short requests if they fit the context, and flush the prefix cache."""
    _, prompt, output = WARM_UP
    limits = service.client.limits
    prompt = max(1, min(prompt, limits.max_output_tokens(0) - output))
    if limits.max_output_tokens(prompt) < output:
        return
    drive_workload(service, Workload(name="warm-up", seed=0, items=warm_up_items(prompt, limits.vocab_size)))
    service.client.flush_cache()


def warm_up_items(prompt_tokens: int, vocab_size: int) -> tuple[WorkloadRequest, ...]:
    """Return the requests of the warm-up; no two share a prefix if the vocabulary is large enough."""
    requests, _, output = WARM_UP
    prompts = [tuple((first + offset) % vocab_size for offset in range(prompt_tokens)) for first in range(requests)]
    return tuple(WorkloadRequest(at=0.0, prompt_token_ids=prompt, output_tokens=output) for prompt in prompts)
