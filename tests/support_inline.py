"""An InlineClient on a fake runner for tests, and a gate that blocks steps."""

import threading
from typing import Any

from chairlift.engine.client.inline import InlineClient
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.runner.fake import FakeRunner
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.engine.step_plan import StepPlan

FAKE = FakeConfig(vocab_size=200, num_blocks=64, block_size=4)
WAIT_SECONDS = 30


class StepGate:
    """A hook that blocks steps until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.entered = threading.Event()

    def __call__(self, plan: StepPlan, stage: str) -> None:
        self.entered.set()
        assert self.opened.wait(WAIT_SECONDS), "the gate was never opened"


def start_client(runner: FakeRunner | None = None, **options: Any) -> InlineClient:
    return InlineClient(EngineLoop(runner or FakeRunner(FAKE), SchedulerConfig(**options)))
