"""`chairlift run-batch`: a batch file of OpenAI's format, run by an engine of this process or by a server."""

import argparse
import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from chairlift.cli.console import Console
from chairlift.cli.http_request import server_url
from chairlift.cli.model_aliases import model_aliases
from chairlift.cli.model_display_name import model_display_name
from chairlift.cli.output_file_checks import check_outputs
from chairlift.cli.server_options import server_config
from chairlift.cli.settings import settings
from chairlift.cli.settings.resolve_settings import process_environment, resolve_group
from chairlift.core.errors import ConfigError
from chairlift.core.file_writes import naming_file
from chairlift.engine.config import SchedulerConfig
from chairlift.llm.build import PreparedService, prepare
from chairlift.llm.builtin_models import no_model_given
from chairlift.llm.options import Options
from chairlift.llm.progress_bar import ProgressBar
from chairlift.protocol.batches.batch_fields import BATCH_ENDPOINTS
from chairlift.server.app import server_app
from chairlift.server.replica import Replica
from chairlift.web.auth.credentials import Credentials
from chairlift.web.batch_files.batch_lines import BatchLine, read_batch
from chairlift.web.batch_files.batch_run import BatchProgress, Sender, run_batch_file
from chairlift.web.batch_files.output_journal import OutputJournal
from chairlift.web.batch_files.senders import AppSender, UrlSender


def run(arguments: argparse.Namespace) -> int:
    """Run a batch file; returns the exit code: 0, or 1 when a request has an error as its response.

    Raises ConfigError, ModelError and InvalidRequest for invalid input, FileNotWritten for the output.
    """
    console, environ = Console(quiet=arguments.quiet), process_environment()
    for name in ("input", "output"):
        if getattr(arguments, name) is None:
            raise ConfigError(f"run-batch needs --{name} FILE.jsonl", option=name)
    check_outputs({"--output": arguments.output}, {"--input": arguments.input})
    engine: Options = {"engine_mode": "process", **resolve_group(settings.ENGINE, arguments, environ)}  # type: ignore[typeddict-item]
    url = None if arguments.url is None else server_url(arguments.url)
    if url is not None and arguments.model is not None:
        raise ConfigError("MODEL and --url cannot be given together: the server has its own model", option="url")
    try:
        lines = read_batch(Path(arguments.input), BATCH_ENDPOINTS)
    except OSError as error:
        raise ConfigError(f"cannot read {arguments.input}: {error.strerror}", option="input") from None
    with naming_file(arguments.output):
        output = OutputJournal(Path(arguments.output), [line.custom_id for line in lines])
    with output, _reporting_interruption(console, lines, journal := _NamedJournal(output, arguments.output)):
        if journal.done:
            console.print_line(f"{len(journal.done)} of {len(lines)} requests have responses in {arguments.output}")
        if len(journal.done) == len(lines):
            return 1 if journal.num_errors else 0
        if url is not None:
            sender = UrlSender(
                url, environ.get("CHAIRLIFT_API_KEY", ""), max_connections=arguments.max_concurrent
            )  # fmt: skip
            return asyncio.run(_run(arguments, console, lines, journal, None, sender))
        prepared = prepare(arguments.model, engine)
        console.print_line(f"loading {arguments.model}" if arguments.model else no_model_given())
        try:
            return asyncio.run(_run(arguments, console, lines, journal, prepared, None))
        finally:
            prepared.close()


async def _run(
    arguments: argparse.Namespace, console: Console, lines: list[BatchLine], journal: "_NamedJournal",
    prepared: PreparedService | None, remote: UrlSender | None,
) -> int:  # fmt: skip
    async with AsyncExitStack() as stack:
        send: Sender
        if prepared is not None:
            send = await stack.enter_async_context(
                _local_server(prepared, arguments.served_model_name, max(len(line.body) for line in lines))
            )
        else:
            assert remote is not None
            send = await stack.enter_async_context(remote)
        bar = stack.enter_context(ProgressBar(len(lines), shown=console.shows_progress_bars(())))
        for _ in journal.done:
            bar.request_done()

        def show(progress: BatchProgress) -> None:
            bar.request_done()
            bar.tokens(progress.tokens - journal.num_tokens)
            journal.num_tokens = progress.tokens

        done = await run_batch_file(
            lines, len(lines), journal, send, max_concurrent=arguments.max_concurrent,
            max_retries=arguments.max_retries, on_progress=show,
        )  # fmt: skip
    console.print_line(
        f"{done.done} of {done.total} requests have responses in {arguments.output}, {done.failed} of them an error; "
        f"this run has {done.tokens} tokens"
    )
    return 1 if done.failed else 0


class _NamedJournal:
    """Journal of an output file whose errors name it.

    Attributes:
        num_tokens: tokens of the responses of this run, prompts and outputs.
    """

    def __init__(self, journal: OutputJournal, path: str) -> None:
        self._journal = journal
        self.path = path
        self.num_tokens = 0

    @property
    def done(self) -> set[str]:
        return self._journal.done

    @property
    def num_errors(self) -> int:
        return self._journal.num_errors

    def append(self, custom_id: str, entry: Mapping[str, Any]) -> None:
        """See Journal. Raises FileNotWritten."""
        with naming_file(self.path):
            self._journal.append(custom_id, entry)


@contextmanager
def _reporting_interruption(console: Console, lines: list[BatchLine], journal: _NamedJournal) -> Iterator[None]:
    """Print what is done and kept when the block ends with an interrupt, or with an error after a response."""
    num_before = len(journal.done)
    try:
        yield
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or len(journal.done) > num_before:
            console.print_line(
                f"{len(journal.done)} of {len(lines)} requests have responses in {journal.path}, "
                f"{journal.num_errors} of them an error; this run has {journal.num_tokens} tokens. The same command "
                "goes on with the others"
            )
        raise


@asynccontextmanager
async def _local_server(
    prepared: PreparedService, names: list[str] | None, max_body_bytes: int
) -> AsyncIterator[Sender]:
    """Start the engine and the API over it, without a socket and with no limit below the largest request."""
    service = await asyncio.to_thread(prepared.start)
    served_names = tuple(names or [model_display_name(prepared.model)])
    aliases = model_aliases(prepared.model)
    replica = Replica(server_config(served_names, {"max_body_bytes": max_body_bytes}, aliases))

    async def drain() -> None:
        replica.lifecycle.drain()

    scheduler: SchedulerConfig = prepared.scheduler
    replica.attach_service(service, lambda: None, scheduler.max_batch_tokens, scheduler.max_running_sequences)
    try:
        yield AppSender(server_app(replica, Credentials(), drain).asgi)
    finally:
        await replica.close()
