"""Text services over a FakeRunner: deterministic tokens, ASCII text, faults and gates."""

import functools
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import support_process
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.runner.fake import FakeRunner
from chairlift.engine.runner.fake_model import FakeConfig, expected_tokens
from chairlift.engine.step_plan import StepPlan
from chairlift.llm.adapter_store import AdapterStore
from chairlift.llm.model_defaults import ModelDefaults
from chairlift.llm.text_service import TextService
from chairlift.text.byte_tokenizer import ByteTokenizer
from chairlift.text.chat_template import ChatTemplate
from chairlift.text.tokenizer import Tokenizer

TEMPLATE = "{% for message in messages %}{{ message.role }}={{ message.content }};{% endfor %}a="
FAKE = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=128, block_size=4)


class AsciiTokenizer(ByteTokenizer):
    """A tokenizer with one token per character, so that all tokens of a fake runner are text.

    Decoding the token id `broken` raises an error.
    """

    eos_token_ids = ()

    def __init__(self, broken: int | None = None) -> None:
        super().__init__()
        self.broken = broken

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return super().encode(text, add_special_tokens=False)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        if self.broken is not None and self.broken in token_ids:
            raise RuntimeError(f"no text for {self.broken}")
        return super().decode(token_ids, skip_special_tokens)


@dataclass
class Gate:
    """A hook that blocks a fake runner's steps until it is open.

    A wait ends after 30 s, so no test hangs.
    """

    opened: threading.Event = field(default_factory=threading.Event)
    reached: threading.Event = field(default_factory=threading.Event)
    after: int = 0

    def __call__(self, plan: StepPlan, stage: str) -> None:
        if stage == "launch":
            self.after -= 1
            if self.after < 0:
                self.reached.set()
                self.opened.wait(30)


@functools.cache
def _ascii_template() -> ChatTemplate:
    """Return one template for all services; the probe of what a new one writes takes longer than most tests."""
    return ChatTemplate({"default": TEMPLATE}, AsciiTokenizer())


def fake_service(
    config: FakeConfig = FAKE, *, hook: Callable[[StepPlan, str], None] | None = None,
    tokenizer: Tokenizer | None = None, with_tokenizer: bool = True, defaults: ModelDefaults | None = None,
    seeds: random.Random | None = None, **scheduler: Any,
) -> TextService:  # fmt: skip
    """Start an engine over a FakeRunner and return its service; the caller closes its client."""
    options = SchedulerConfig(**scheduler)
    text_tokenizer = (tokenizer or AsciiTokenizer()) if with_tokenizer else None
    template: ChatTemplate | None = None
    if text_tokenizer is not None:
        template = _ascii_template() if tokenizer is None else ChatTemplate({"default": TEMPLATE}, tokenizer)
    client = InlineClient(EngineLoop(FakeRunner(config, hook=hook), options))
    return TextService(
        client=client,
        tokenizer=text_tokenizer,
        chat_template=template,
        defaults=defaults or ModelDefaults(),
        model="fake",
        max_queue_size=options.max_queue_size,
        seeds=seeds or random.Random(5),
        adapters=AdapterStore(client, "fake"),
    )


def tokens_of(prompt: str | Sequence[int], params: SamplingParams, eos: Sequence[int] = ()) -> list[int]:
    """Return the expected tokens, computed without an engine; params need max_tokens and a seed."""
    ids = list(prompt.encode()) if isinstance(prompt, str) else list(prompt)
    return expected_tokens(ids, params.with_defaults({}, max_tokens=1, seed=0), FAKE, eos)


def text_of(prompt: str | Sequence[int], params: SamplingParams) -> str:
    """Return the text of the expected tokens."""
    return bytes(tokens_of(prompt, params)).decode()


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true, which another thread makes true; fails after 20 seconds."""
    support_process.wait_until(condition, 20.0)


def is_idle(service: TextService) -> bool:
    """Whether the engine has no request and no allocated block."""
    state, cache = service.client.scheduler_state(), service.client.cache_state()
    return state["active_requests"] == state["waiting_requests"] == cache["allocated_blocks"] == 0
