"""`python -m api_overhead.fake_engine_replica SECONDS_PER_STEP`: a replica whose engine is fake."""

import os
import random
import sys
from dataclasses import replace
from functools import partial

import msgspec

from chairlift.engine.client.process import ProcessClient, start_engine_process
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.runner.base import RunnerSpec
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.llm.model_defaults import ModelDefaults
from chairlift.llm.text_service import TextService
from chairlift.server.config import ServerConfig
from chairlift.server.server_process import ServerParts, run
from chairlift.text.byte_tokenizer import ByteTokenizer
from chairlift.web.auth.credentials import CredentialSources
from chairlift.web.service.listen_address import ListenAddress

MODEL = "fake"
FAKE = FakeConfig(vocab_size=128, max_model_len=4096, num_blocks=65_536, verify=False)
"""A vocabulary of 128 tokens: every token is an ASCII character."""

SCHEDULER = SchedulerConfig(max_running_requests=512)


def start_service(seconds_per_step: float) -> TextService:
    """Start an engine process and return a text service over it. The caller closes the service's client."""
    fake = replace(FAKE, seconds_per_step=seconds_per_step)
    spec = RunnerSpec("chairlift.engine.runner.fake:build", msgspec.msgpack.encode(fake))
    return TextService(
        client=start_engine_process(spec, SCHEDULER), tokenizer=ByteTokenizer(), chat_template=None,
        defaults=ModelDefaults(), model=MODEL, max_queue_size=SCHEDULER.max_queue_size, seeds=random.Random(5),
    )  # fmt: skip


def main(seconds_per_step: float) -> int:
    """Serve until SIGTERM and return the exit code."""
    return run(ServerParts(
        config=ServerConfig(served_names=(MODEL,)), listening=ListenAddress(port=0), tls=None,
        read_credentials=lambda: CredentialSources().read(os.environ), start=partial(start_service, seconds_per_step),
        engine_pid=engine_pid,
        budget=SCHEDULER.max_batch_tokens, max_running=SCHEDULER.max_running_sequences, print_line=_print_line,
    ))  # fmt: skip


def _print_line(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def engine_pid(service: TextService) -> int | None:
    """Return the process id of a service's engine."""
    assert isinstance(service.client, ProcessClient), "the engine runs in its own process"
    process = service.client.process
    return None if process is None else process.pid


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
