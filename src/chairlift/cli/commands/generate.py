"""`chairlift generate`: one prompt with streamed output, or a file of prompts as one batch."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from chairlift.cli.console import Console
from chairlift.cli.deferred_interrupt import deferred_interrupt
from chairlift.cli.escape_control_chars import escape_control_chars
from chairlift.cli.output_file_checks import check_outputs
from chairlift.cli.prompt_items import STDIN, PromptItem, at_line, read_prompt, read_prompts, stdin_has_input
from chairlift.cli.result_writer import LineFile, LineOutput, OrderedWriter, as_json
from chairlift.cli.settings import settings
from chairlift.cli.settings.resolve_settings import process_environment, resolve_group
from chairlift.cli.settings.sampling_settings import SAMPLING
from chairlift.core.errors import ConfigError, InvalidRequest
from chairlift.core.request_timeline import Timeline
from chairlift.llm.batch_run import run_batch
from chairlift.llm.build import PreparedService, prepare
from chairlift.llm.builtin_models import is_demo, no_model_given
from chairlift.llm.output_processor import OutputProcessor
from chairlift.llm.outputs import RequestOutput
from chairlift.llm.progress_bar import ProgressBar
from chairlift.llm.text_service import TextService

DEFAULT_PROMPT = "What is continuous batching?"
DEFAULT_MAX_TOKENS = 256


def run(arguments: argparse.Namespace) -> int:
    """Generate text; returns the exit code: 0, or 1 when a request failed.

    Raises ConfigError, ModelError and InvalidRequest for invalid input.
    """
    console = Console(quiet=arguments.quiet)
    environ = process_environment()
    sampling = resolve_group(SAMPLING, arguments, environ)
    engine = resolve_group(settings.ENGINE, arguments, environ)
    if arguments.timeout is not None and not arguments.timeout > 0:
        raise ConfigError(f"--timeout must be a positive number of seconds, got {arguments.timeout:g}")
    if arguments.prompt is None and arguments.prompts is None and stdin_has_input():
        arguments.prompt = STDIN
    items = _read_items(arguments, sampling)
    check_outputs({"--output": arguments.output, "--profile": engine.get("profile")}, {"--prompts": arguments.prompts})
    prepared = _prepare(arguments.model, engine, items)
    console.print_line(f"loading {arguments.model}" if arguments.model else no_model_given())
    if arguments.prompt is None and arguments.prompts is None:
        console.print_line(f"no prompt given, using {DEFAULT_PROMPT!r}")
    with _start_service(prepared, console) as service:
        processors = [_output_processor(service, item, arguments.timeout) for item in items]
        with nullcontext() if arguments.output is None else LineFile(arguments.output) as file:
            if arguments.prompts is None:
                return _run_one(service, items[0], processors[0], console, file, as_object=arguments.json)
            return _run_batch(
                service, items, processors, console, file, also_stdout=arguments.json, output=arguments.output
            )


def _read_items(arguments: argparse.Namespace, sampling: dict[str, Any]) -> list[PromptItem]:
    chat = is_demo(arguments.model) if arguments.chat is None else arguments.chat
    if arguments.prompts is not None:
        if arguments.prompt is not None:
            raise ConfigError("--prompt and --prompts cannot be given together")
        return read_prompts(arguments.prompts, sampling, chat=chat, allow_token_ids=arguments.chat is None)
    prompt = DEFAULT_PROMPT if arguments.prompt is None else arguments.prompt
    return [read_prompt(prompt, sampling, chat=chat)]


def _prepare(model: str | None, options: Any, items: list[PromptItem]) -> PreparedService:
    """Prepare the model and check the prompts, before the weights are loaded."""
    prepared = prepare(model, options)
    if prepared.tokenizer is None:
        texts = (item for item in items if item.input[0] == "messages" or isinstance(item.input[1], str))
        if (item := next(texts, None)) is not None:
            raise at_line(item.location, f"{model} has no tokenizer.json, so a prompt must be token ids")
    return prepared


@contextmanager
def _start_service(prepared: PreparedService, console: Console) -> Iterator[TextService]:
    """Load the model, print its startup report, and close the engine at the end."""
    started = time.monotonic()
    service = prepared.start()
    try:
        for name, value in service.client.info.startup_report:
            console.print_row(name, value)
        defaults = service.defaults
        if defaults.sampling:
            sampling = ", ".join(f"{name} {value:g}" for name, value in defaults.sampling.items())
            console.print_row("generation_config.json", sampling)
        if defaults.eos_token_ids:
            console.print_row("end of text", ", ".join(map(str, defaults.eos_token_ids)))
        console.print_line(f"ready after {time.monotonic() - started:.1f} s")
        max_tokens = defaults.max_tokens or DEFAULT_MAX_TOKENS
        yield replace(service, defaults=replace(defaults, max_tokens=max_tokens))
    finally:
        service.client.close()


def _output_processor(service: TextService, item: PromptItem, timeout: float | None) -> OutputProcessor:
    field, value = item.input
    try:
        if field == "messages":
            return service.prepare_chat(value, item.params, timeout=timeout, tools=item.tools)
        return service.prepare_completion(value, item.params, timeout=timeout)
    except InvalidRequest as error:
        raise at_line(item.location, error.message) from None


def _run_one(
    service: TextService,
    item: PromptItem,
    processor: OutputProcessor,
    console: Console,
    file: LineFile | None,
    *,
    as_object: bool,
) -> int:
    """Run one request and print its text as it is generated; returns the exit code."""
    started, ends_line, several = time.monotonic(), True, processor.request.params.num_choices > 1
    num_tokens = 0
    try:
        with closing(run_batch(service.client, [processor], 1)) as events:
            for _, event in events:
                num_tokens += len(event.token_ids)
                if event.delta and not as_object and not several:
                    ends_line = event.delta.endswith("\n")
                    sys.stdout.write(escape_control_chars(event.delta, sys.stdout))
                    sys.stdout.flush()
    except KeyboardInterrupt:
        print(end="" if ends_line else "\n", flush=True)
        ends_line = True
        console.print_line(f"{num_tokens} tokens in {time.monotonic() - started:.2f} s before the interrupt")
        raise
    finally:
        if not ends_line:
            print(flush=True)
    result, seconds = processor.result(), time.monotonic() - started
    line = as_json(item, result)
    if as_object:
        print(line, flush=True)
    elif several:
        for choice in result.outputs:
            console.print_line(f"choice {choice.index}, finish reason {choice.finish_reason}:")
            print(escape_control_chars(choice.text, sys.stdout), flush=True)
    if file is not None:
        file.write(line + "\n")
    choice, usage = result.outputs[0], result.usage
    if result.error is not None:
        console.print_line(f"the request failed ({result.error.code}): {result.error.message}")
    console.print_line(
        f"{usage.completion_tokens} tokens in {seconds:.2f} s ({usage.completion_tokens / seconds:.1f} tokens/s"
        f"{_first_token_text(result.timeline)}), finish reason {choice.finish_reason}, seed {choice.seed}"
    )
    return 0 if result.error is None else 1


def _first_token_text(timeline: Timeline | None) -> str:
    events = () if timeline is None else timeline.events
    return next((f", first token after {each.at * 1000:.0f} ms" for each in events if each.name == "first_token"), "")


class _BatchResults:
    """The results of a file of prompts, which arrive in any order."""

    def __init__(self, items: list[PromptItem], processors: list[OutputProcessor], files: list[LineOutput]) -> None:
        self._items = items
        self._processors = processors
        self._indices = {id(processor): index for index, processor in enumerate(processors)}
        self._writers = [OrderedWriter(file) for file in files]
        self.results: dict[int, RequestOutput] = {}

    @property
    def num_written(self) -> int:
        """Number of results that each file has."""
        return min(writer.written for writer in self._writers)

    def record(self, processor: OutputProcessor) -> None:
        """Keep and write the result of a finished request."""
        index = self._indices[id(processor)]
        with deferred_interrupt():
            self.results[index] = result = processor.result()
            line = as_json(self._items[index], result)
            for writer in self._writers:
                writer.put(index, line)

    def close(self) -> None:
        """Write the results of all finished requests, even those that an interrupt left unrecorded."""
        for index, processor in enumerate(self._processors):
            if processor.is_finished and index not in self.results:
                self.record(processor)
        with deferred_interrupt():
            for writer in self._writers:
                writer.close()


def _run_batch(
    service: TextService, items: list[PromptItem], processors: list[OutputProcessor], console: Console,
    file: LineFile | None, *, also_stdout: bool, output: str | None,
) -> int:  # fmt: skip
    """Run all requests as one batch and write results in the order of the items.

    Returns the exit code.
    """
    files: list[LineOutput] = [] if file is None else [file]
    files += [sys.stdout] if file is None or also_stdout else []
    batch = _BatchResults(items, processors, files)
    started, num_tokens = time.monotonic(), 0
    try:
        with (
            ProgressBar(len(items), shown=console.shows_progress_bars(files)) as progress,
            closing(run_batch(service.client, processors, service.max_queue_size)) as events,
        ):
            for processor, event in events:
                num_tokens += len(event.token_ids)
                progress.tokens(len(event.token_ids))
                if event.is_final:
                    batch.record(processor)
                    progress.request_done()
    finally:
        batch.close()
        results = list(batch.results.values())
        console.print_line(_summary(results, len(items), time.monotonic() - started))
        if len(results) < len(items):
            console.print_line(_unfinished_text(batch, len(items), num_tokens, output))
    return 0 if all(result.error is None for result in batch.results.values()) else 1


def _summary(results: list[RequestOutput], num_items: int, seconds: float) -> str:
    reasons = Counter(str(result.outputs[0].finish_reason) for result in results)
    prompt = sum(result.usage.prompt_tokens for result in results)
    cached = sum(result.usage.cached_tokens for result in results)
    output = sum(result.usage.completion_tokens for result in results)
    of_all = "" if len(results) == num_items else f" of {num_items}"
    ends = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items())) or "none finished"
    codes = Counter(result.error.code for result in results if result.error is not None)
    failed = f" ({', '.join(f'{count} {code}' for code, count in sorted(codes.items()))})" if codes else ""
    return (
        f"{len(results)}{of_all} requests in {seconds:.2f} s: {prompt} prompt tokens ({cached} cached), "
        f"{output} output tokens, {output / seconds:.1f} tokens/s; {ends}{failed}"
    )


def _unfinished_text(batch: _BatchResults, num_items: int, num_tokens: int, output: str | None) -> str:
    """Return what is kept of a batch that has not ended, and how it goes on."""
    num_lost = max(0, num_tokens - sum(result.usage.completion_tokens for result in batch.results.values()))
    return (
        f"not all done: {batch.num_written} results are in {output or 'the standard output'}; the other "
        f"{num_items - batch.num_written} requests have none there, and {num_lost} output tokens of unfinished ones "
        "are lost. A new run begins anew; `chairlift run-batch` goes on where it has ended"
    )
