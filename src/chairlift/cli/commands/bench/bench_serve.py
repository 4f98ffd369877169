"""`chairlift bench serve`: measures a running server under open-loop or closed-loop load."""

import argparse
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from chairlift.bench.offline.run_spec import VOCAB_SIZE, WorkloadSpec
from chairlift.bench.report import environment, plot, report_output
from chairlift.bench.server import server_plot, server_report
from chairlift.bench.server.api_requests import CHAT, IDS, TEXT, PreparedRequests, RequestFormat
from chairlift.bench.server.benchmark_plan import BenchmarkPlan
from chairlift.bench.server.http_client import Client
from chairlift.bench.server.loadgen import in_own_loop
from chairlift.bench.server.server_address import Address
from chairlift.bench.server.server_benchmark import ServerBenchmark, first_model
from chairlift.bench.server.slo import SLO
from chairlift.cli.console import Console
from chairlift.cli.deferred_interrupt import deferred_interrupt
from chairlift.cli.output_file_checks import check_outputs
from chairlift.cli.settings import bench_settings
from chairlift.cli.settings.resolve_settings import process_environment, resolve_group
from chairlift.cli.terminal_fold import print_folded, terminal_columns
from chairlift.core.errors import ConfigError

DEFAULT_VOCAB_SIZE = 1000


def run(arguments: argparse.Namespace) -> int:
    """Measure a server; returns the exit code.

    The exit code is 1 when a request failed or a criterion was not met.

    Raises:
        ConfigError, InvalidRequest: the input is not valid.
        NoResponse: the server cannot be reached, or does not have the API or the model.
    """
    console, environ = Console(quiet=arguments.quiet), process_environment()
    load = resolve_group(bench_settings.LOAD_SETTINGS, arguments, environ)
    measurement = _Measurement(arguments, load, environ.get("CHAIRLIFT_API_KEY", ""), console)
    source = environment.source()
    _raise_open_file_limit()
    is_complete = True
    try:
        in_own_loop(measurement.run)
    except KeyboardInterrupt:
        is_complete = False
        if measurement.benchmark is None:
            raise
    assert measurement.benchmark is not None, "run() sets it"
    assert measurement.request_format is not None, "run() sets it"
    with deferred_interrupt():
        content = server_report.assembled(
            measurement.benchmark, plan=measurement.plan, style=measurement.request_format, spec=measurement.spec,
            url=measurement.address.url, complete=is_complete, source=source, words=arguments.argv,
        )  # fmt: skip
        report_output.tell(
            server_report.table(content, terminal_columns(sys.stdout)), arguments.json, content, print_folded
        )
        if arguments.plot is not None:
            server_plot.draw(content, arguments.plot)
    if not is_complete:
        raise KeyboardInterrupt
    return 0 if server_report.is_successful(content) else 1


class _Measurement:
    """A benchmark run whose arguments are validated before a request is sent.

    Attributes:
        benchmark: the running benchmark; None before the server has responded.
        request_format: how requests are encoded; None before the model's name is known.
    """

    def __init__(self, arguments: argparse.Namespace, load: dict[str, Any], key: str, console: Console) -> None:
        self.benchmark: ServerBenchmark | None = None
        self.request_format: RequestFormat | None = None
        self._console = console
        self._key = _read_api_key(load.pop("api_key_file", None), key)
        self._model = arguments.model
        self._format_options = _request_format_options(load)
        self._vocab_size = load.pop("vocab_size", DEFAULT_VOCAB_SIZE)
        self.address = Address.of(arguments.url)
        self.spec = WorkloadSpec(
            name=load.pop("workload", bench_settings.DEFAULT_WORKLOAD), requests=load.get("requests"),
            seed=load.get("seed", 0),
        )  # fmt: skip
        slo = SLO(load.pop("slo", {}))
        self.plan = BenchmarkPlan(slo=slo, **load)
        if not 1 < self._vocab_size <= VOCAB_SIZE:
            raise ConfigError(
                f"--vocab-size must be between 2 and {VOCAB_SIZE}, got {self._vocab_size}", option="vocab_size"
            )
        self.spec.make(self._vocab_size)
        check_outputs({"--json": arguments.json, "--plot": arguments.plot}, {"--workload": self.spec.name})
        if arguments.plot is not None:
            plot.check_plot()

    async def run(self) -> None:
        """Find the model's name, try one request, and run the benchmark."""
        client = Client(self.address, self._key)
        try:
            self.request_format = RequestFormat(model=self._model or await first_model(client), **self._format_options)
            stream = PreparedRequests(self.spec, self._vocab_size, self.request_format, client)
            benchmark = ServerBenchmark(self.plan, client, stream, self._console.print_line)
            await benchmark.check_reachable()
            name = self.request_format.model
            self._console.print_line(f"{name} at {self.address.url}, workload {self.spec.shown_name()}")
            self.benchmark = benchmark
            await benchmark.run()
        finally:
            client.close()


def _request_format_options(load: dict[str, Any]) -> dict[str, Any]:
    """Remove the settings of the request format from `load` and return them. Raises ConfigError."""
    chat, text = load.pop("chat", False), load.pop("text", False)
    if chat and text:
        raise ConfigError("--chat and --text cannot be given together; --chat always sends text", option="chat")
    options: dict[str, Any] = {
        name: load.pop(name) for name in ("openai_fields_only", "ignore_eos", "request_timeout_ms") if name in load
    }
    if (limit := options.get("request_timeout_ms")) is not None and limit < 1:
        raise ConfigError(f"--request-timeout-ms must be at least 1, got {limit}", option="request_timeout_ms")
    return {**options, "prompts": CHAT if chat else TEXT if text else IDS}


def _read_api_key(path: str | None, default: str) -> str:
    """Return the first line of a file, or the default without a file. Raises ConfigError."""
    if path is None:
        return default
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"cannot read {path}: {reason}", option="api_key_file") from None
    if not (key := lines[0].strip()):
        raise ConfigError(f"{path} has no API key in its first line", option="api_key_file")
    return key


def _raise_open_file_limit() -> None:
    """Raise this process's limit of open files, and so of connections, to the maximum."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
