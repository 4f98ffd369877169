"""A whole replica over a fake engine: `python -m api_overhead.replica SECONDS_PER_STEP`, keys from the environment."""

import os
import random
import sys
from dataclasses import replace
from functools import partial

import msgspec

from chairlift.engine.client.process import ProcessClient, start_engine_process
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.runner.base import RunnerSpec
from chairlift.engine.runner.fake import FakeConfig
from chairlift.llm.text_service import ModelDefaults, TextService
from chairlift.server.config import ServerConfig
from chairlift.server.server_process import ListenAddress, ServerParts, run
from chairlift.text.tokenizer import ByteTokenizer
from chairlift.web.auth import read_keys

MODEL = "fake"
FAKE = FakeConfig(vocab_size=128, max_model_len=4096, num_blocks=65_536, verify=False)
"""All of its tokens are ASCII letters and signs."""


SCHEDULER = SchedulerConfig(max_running_requests=512)


def service(seconds_per_step: float) -> TextService:
    """Start an engine in a process of its own; whoever asks for it closes its client."""
    fake = replace(FAKE, seconds_per_step=seconds_per_step)
    spec = RunnerSpec("chairlift.engine.runner.fake:build", msgspec.msgpack.encode(fake))
    return TextService(
        client=start_engine_process(spec, SCHEDULER), tokenizer=ByteTokenizer(), chat_template=None,
        defaults=ModelDefaults(), model=MODEL, max_queue_size=SCHEDULER.max_queue_size, seeds=random.Random(5),
    )  # fmt: skip


def main(seconds_per_step: float) -> int:
    """Serve until told to leave; returns the exit code."""
    return run(ServerParts(
        config=ServerConfig(served_names=(MODEL,)), listening=ListenAddress(port=0),
        read_keys=lambda: read_keys(None, os.environ), start=partial(service, seconds_per_step),
        engine_pid=engine_pid,
        budget=SCHEDULER.max_batch_tokens, max_running=SCHEDULER.max_running_sequences, print_line=_say,
    ))  # fmt: skip


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def engine_pid(service: TextService) -> int | None:
    """Return the process id of its engine."""
    assert isinstance(service.client, ProcessClient), "it has a process of its own"
    process = service.client.process
    return None if process is None else process.pid


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
