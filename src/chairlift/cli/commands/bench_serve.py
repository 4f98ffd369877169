"""`chairlift bench serve`: a server measured from outside, with load that does not wait for it."""

import argparse
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

from chairlift.bench.offline.run_spec import VOCAB_SIZE, WorkloadSpec
from chairlift.bench.report import environment, plot, report
from chairlift.bench.server import server_plot, server_report
from chairlift.bench.server.api_requests import CHAT, IDS, TEXT, RequestFormat, RequestStream
from chairlift.bench.server.http_client import Client
from chairlift.bench.server.loadgen import in_own_loop
from chairlift.bench.server.server_address import Address
from chairlift.bench.server.server_benchmark import BenchmarkPlan, ServerBenchmark, first_model
from chairlift.bench.server.slo import SLO
from chairlift.cli.console import Console
from chairlift.cli.result_writer import check_outputs, uninterrupted
from chairlift.cli.settings import settings
from chairlift.core.errors import ConfigError

DEFAULT_VOCAB_SIZE = 1000


def run(arguments: argparse.Namespace) -> int:
    """Measure what was asked for; returns the exit code: 0, or 1 when the server failed a request or a promise.

    Raises ConfigError and InvalidRequest for bad input, NoAnswer for a server that is not there or serves none of this.
    """
    console, environ = Console(quiet=arguments.quiet), settings.environment()
    asked = settings.given(settings.LOAD_SETTINGS, arguments, environ)
    measured = _Measured(arguments, asked, environ.get("CHAIRLIFT_API_KEY", ""), console)
    source = environment.source()
    _take_files()
    complete = True
    try:
        in_own_loop(measured.run)
    except KeyboardInterrupt:
        complete = False
        if measured.serving is None:
            raise
    assert measured.serving is not None, "it ran"
    assert measured.style is not None, "it was asked"
    with uninterrupted():
        made = server_report.assembled(
            measured.serving, plan=measured.plan, style=measured.style, spec=measured.spec, url=measured.address.url,
            complete=complete, source=source, words=arguments.words,
        )  # fmt: skip
        report.tell(server_report.table(made), arguments.json, made, print)
        if arguments.plot is not None:
            server_plot.draw(made, arguments.plot)
    if not complete:
        raise KeyboardInterrupt
    return 0 if server_report.is_successful(made) else 1


class _Measured:
    """What is measured, checked before anything is sent. `serving` and `style` are there once the server answered."""

    def __init__(self, arguments: argparse.Namespace, asked: dict[str, Any], key: str, console: Console) -> None:
        self.serving: ServerBenchmark | None = None
        self.style: RequestFormat | None = None
        self._console = console
        self._key = _key(asked.pop("api_key_file", None), key)
        self._model = arguments.model
        self._style = _style(asked)
        self._vocab_size = asked.pop("vocab_size", DEFAULT_VOCAB_SIZE)
        self.address = Address.of(arguments.url)
        self.spec = WorkloadSpec(
            name=asked.pop("workload", settings.DEFAULT_WORKLOAD), requests=asked.get("requests"),
            seed=asked.get("seed", 0),
        )  # fmt: skip
        slo = SLO(asked.pop("slo", {}))
        self.plan = BenchmarkPlan(slo=slo, **asked)
        if not 1 < self._vocab_size <= VOCAB_SIZE:
            raise ConfigError(f"--vocab-size must be at least 2, got {self._vocab_size}", option="vocab_size")
        self.spec.make(self._vocab_size)
        check_outputs({"--json": arguments.json, "--plot": arguments.plot}, {"--workload": self.spec.name})
        if arguments.plot is not None:
            plot.check_plot()

    async def run(self) -> None:
        """Find the model out, try one request, and measure."""
        client = Client(self.address, self._key)
        try:
            self.style = RequestFormat(model=self._model or await first_model(client), **self._style)
            deck = RequestStream(self.spec, self._vocab_size, self.style, client)
            serving = ServerBenchmark(self.plan, client, deck, self._console.say)
            await serving.check_reachable()
            self._console.say(f"{self.style.model} at {self.address.url}, workload {self.spec.shown_name()}")
            self.serving = serving
            await serving.run()
        finally:
            client.close()


def _style(asked: dict[str, Any]) -> dict[str, Any]:
    """Take the settings that say how to ask out of `asked`."""
    chat, text = asked.pop("chat", False), asked.pop("text", False)
    if chat and text:
        raise ConfigError("--chat and --text cannot be given together: a chat has a text", option="chat")
    taken: dict[str, Any] = {
        name: asked.pop(name) for name in ("openai_fields_only", "ignore_eos", "request_timeout_ms") if name in asked
    }
    if (limit := taken.get("request_timeout_ms")) is not None and limit < 1:
        raise ConfigError(f"--request-timeout-ms must be at least 1, got {limit}", option="request_timeout_ms")
    return {**taken, "prompts": CHAT if chat else TEXT if text else IDS}


def _key(path: str | None, from_environment: str) -> str:
    """Read the first line of a file; without one it is the environment's."""
    if path is None:
        return from_environment
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"cannot read {path}: {said}", option="api_key_file") from None
    if not (key := lines[0].strip()):
        raise ConfigError(f"{path} has no key in its first line", option="api_key_file")
    return key


def _take_files() -> None:
    """Let this process have as many connections as the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
