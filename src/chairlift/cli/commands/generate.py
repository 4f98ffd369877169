"""`chairlift generate`: one prompt streamed, or a file of prompts as one batch."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any, TextIO

from chairlift.cli.console import Console, escape_control_chars
from chairlift.cli.prompt_file import PromptItem, at_line, read_prompt, read_prompts
from chairlift.cli.result_writer import OrderedWriter, as_json, check_outputs, uninterrupted
from chairlift.cli.settings import settings
from chairlift.core.errors import ConfigError, InvalidRequest
from chairlift.core.request import Timeline
from chairlift.llm.batch_run import run_batch
from chairlift.llm.build import PreparedService, prepare
from chairlift.llm.model_names import is_demo, no_model_given
from chairlift.llm.output_processor import OutputProcessor
from chairlift.llm.outputs import RequestOutput
from chairlift.llm.progress import Progress
from chairlift.llm.text_service import TextService

DEFAULT_PROMPT = "What is continuous batching?"
DEFAULT_MAX_TOKENS = 256


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked; returns the exit code: 0, or 1 when a request failed.

    Raises ConfigError, ModelError and InvalidRequest for bad input.
    """
    console = Console(quiet=arguments.quiet)
    environ = settings.environment()
    sampling = settings.given(settings.SAMPLING, arguments, environ)
    engine = settings.given(settings.ENGINE, arguments, environ)
    if arguments.timeout is not None and not arguments.timeout > 0:
        raise ConfigError(f"timeout must be a positive number of seconds, got {arguments.timeout:g}")
    jobs = _jobs(arguments, sampling)
    check_outputs({"--output": arguments.output, "--profile": engine.get("profile")}, {"--prompts": arguments.prompts})
    prepared = _prepared(arguments.model, engine, jobs)
    console.say(f"loading {arguments.model}" if arguments.model else no_model_given())
    if arguments.prompt is None and arguments.prompts is None:
        console.say(f"no prompt given: {DEFAULT_PROMPT!r}")
    with _started(prepared, console) as service:
        assemblers = [_assembler(service, job, arguments.timeout) for job in jobs]
        with _written(arguments.output) as file:
            if arguments.prompts is None:
                return _stream(service, jobs[0], assemblers[0], console, file, as_object=arguments.json)
            return _batch(service, jobs, assemblers, console, file, also_stdout=arguments.json)


def _jobs(arguments: argparse.Namespace, sampling: dict[str, Any]) -> list[PromptItem]:
    chat = is_demo(arguments.model) if arguments.chat is None else arguments.chat
    if arguments.prompts is not None:
        if arguments.prompt is not None:
            raise ConfigError("--prompt and --prompts cannot be given together")
        return read_prompts(arguments.prompts, sampling, chat=chat, ids_too=arguments.chat is None)
    prompt = DEFAULT_PROMPT if arguments.prompt is None else arguments.prompt
    return [read_prompt(prompt, sampling, chat=chat)]


def _prepared(model: str | None, options: Any, jobs: list[PromptItem]) -> PreparedService:
    """Find out what can be known before the weights are loaded."""
    prepared = prepare(model, options)
    if prepared.tokenizer is None:
        texts = (job for job in jobs if job.asked[0] == "messages" or isinstance(job.asked[1], str))
        if (job := next(texts, None)) is not None:
            raise at_line(job.where, f"{model} has no tokenizer.json, so a prompt must be token ids")
    return prepared


@contextmanager
def _started(prepared: PreparedService, console: Console) -> Iterator[TextService]:
    """Load, saying what happens; close in any case."""
    began = time.monotonic()
    service = prepared.start()
    try:
        for name, value in service.client.info.startup_report:
            console.row(name, value)
        defaults = service.defaults
        if defaults.sampling:
            shown = ", ".join(f"{name} {value:g}" for name, value in defaults.sampling.items())
            console.row("generation_config.json", shown)
        if defaults.eos_token_ids:
            console.row("end of text", ", ".join(map(str, defaults.eos_token_ids)))
        console.say(f"ready after {time.monotonic() - began:.1f} s")
        wanted = defaults.max_tokens or DEFAULT_MAX_TOKENS
        yield replace(service, defaults=replace(defaults, max_tokens=wanted))
    finally:
        service.client.close()


def _assembler(service: TextService, job: PromptItem, timeout: float | None) -> OutputProcessor:
    kind, asked = job.asked
    try:
        if kind == "messages":
            return service.prepare_chat(asked, job.params, timeout=timeout, tools=job.tools)
        return service.prepare_completion(asked, job.params, timeout=timeout)
    except InvalidRequest as error:
        raise at_line(job.where, error.message) from None


@contextmanager
def _written(path: str | None) -> Iterator[TextIO | None]:
    """Open --output; every line in it is whole."""
    if path is None:
        yield None
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(open(path, "w", encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None
        yield file


def _stream(
    service: TextService,
    job: PromptItem,
    assembler: OutputProcessor,
    console: Console,
    file: TextIO | None,
    *,
    as_object: bool,
) -> int:
    """Run one request; its text goes to standard output as it comes."""
    began, ends_line, several = time.monotonic(), True, assembler.request.params.num_choices > 1
    try:
        with closing(run_batch(service.client, [assembler], 1)) as events:
            for _, event in events:
                if event.delta and not as_object and not several:
                    ends_line = event.delta.endswith("\n")
                    sys.stdout.write(escape_control_chars(event.delta, sys.stdout))
                    sys.stdout.flush()
    finally:
        if not ends_line:
            print(flush=True)
    result, seconds = assembler.result(), time.monotonic() - began
    line = as_json(job, result)
    if as_object:
        print(line, flush=True)
    elif several:
        for choice in result.outputs:
            console.say(f"choice {choice.index}, finish reason {choice.finish_reason}:")
            print(escape_control_chars(choice.text, sys.stdout), flush=True)
    if file is not None:
        file.write(line + "\n")
    choice, usage = result.outputs[0], result.usage
    if result.error is not None:
        console.say(f"the request failed ({result.error.code}): {result.error.message}")
    console.say(
        f"{usage.completion_tokens} tokens in {seconds:.2f} s ({usage.completion_tokens / seconds:.1f} tokens/s"
        f"{_first_token(result.timeline)}), finish reason {choice.finish_reason}, seed {choice.seed}"
    )
    return 0 if result.error is None else 1


def _first_token(timeline: Timeline | None) -> str:
    moments = () if timeline is None else timeline.events
    return next((f", the first after {each.at * 1000:.0f} ms" for each in moments if each.name == "first_token"), "")


class _Batch:
    """The results of a file of prompts, as they come."""

    def __init__(self, jobs: list[PromptItem], assemblers: list[OutputProcessor], files: list[TextIO]) -> None:
        self._jobs = jobs
        self._assemblers = assemblers
        self._places = {id(assembler): index for index, assembler in enumerate(assemblers)}
        self._writers = [OrderedWriter(file) for file in files]
        self.results: dict[int, RequestOutput] = {}

    def record(self, assembler: OutputProcessor) -> None:
        """Keep and write the result of a request that has ended."""
        index = self._places[id(assembler)]
        with uninterrupted():
            self.results[index] = result = assembler.result()
            line = as_json(self._jobs[index], result)
            for writer in self._writers:
                writer.put(index, line)

    def close(self) -> None:
        """Write everything that has ended, also what an interrupt kept from being recorded."""
        for index, assembler in enumerate(self._assemblers):
            if assembler.is_finished and index not in self.results:
                self.record(assembler)
        with uninterrupted():
            for writer in self._writers:
                writer.close()


def _batch(
    service: TextService, jobs: list[PromptItem], assemblers: list[OutputProcessor], console: Console,
    file: TextIO | None, *,
    also_stdout: bool,
) -> int:  # fmt: skip
    """Run all requests together; results are written in the order of the jobs."""
    files = ([] if file is None else [file]) + ([sys.stdout] if file is None or also_stdout else [])
    batch = _Batch(jobs, assemblers, files)
    began = time.monotonic()
    try:
        with (
            Progress(len(jobs), shown=console.shows_bars(files)) as progress,
            closing(run_batch(service.client, assemblers, service.max_queue_size)) as events,
        ):
            for assembler, event in events:
                progress.tokens(len(event.token_ids))
                if event.is_final:
                    batch.record(assembler)
                    progress.request_done()
    finally:
        batch.close()
        console.say(_summary(list(batch.results.values()), len(jobs), time.monotonic() - began))
    return 0 if all(result.error is None for result in batch.results.values()) else 1


def _summary(results: list[RequestOutput], wanted: int, seconds: float) -> str:
    reasons = Counter(str(result.outputs[0].finish_reason) for result in results)
    prompt = sum(result.usage.prompt_tokens for result in results)
    cached = sum(result.usage.cached_tokens for result in results)
    output = sum(result.usage.completion_tokens for result in results)
    of_all = "" if len(results) == wanted else f" of {wanted}"
    ends = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items())) or "none ended"
    codes = Counter(result.error.code for result in results if result.error is not None)
    failed = f" ({', '.join(f'{count} {code}' for code, count in sorted(codes.items()))})" if codes else ""
    return (
        f"{len(results)}{of_all} requests in {seconds:.2f} s: {prompt} prompt tokens ({cached} cached), "
        f"{output} output tokens, {output / seconds:.1f} tokens/s; {ends}{failed}"
    )
