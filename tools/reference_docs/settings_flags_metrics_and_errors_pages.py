"""settings_page, flags_page, metrics_page, errors_page: the pages that are made from declarations."""

import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from chairlift.cli.settings import settings, value_parsers
from chairlift.cli.settings.foreign_flag import ForeignFlag
from chairlift.cli.settings.foreign_flag_table import ALIASES, REJECTED, SAME_NAMES, SOME_VALUES, WITHOUT_EFFECT
from chairlift.cli.settings.foreign_value_parsers import describe_value
from chairlift.cli.settings.setting_declaration import Setting
from chairlift.core import cluster_errors, router_errors
from chairlift.core.errors import ChairliftError, RequestRejected
from chairlift.core.load_report import ReplicaState
from chairlift.observability.metrics import METRICS, PREFIX, MetricKind, MetricSpec
from chairlift.web.error_responses import INTERNAL_ERROR, REPEATS, ErrorResponse, error_response_of
from reference_docs.markdown import LINE_CHARS, code_names, make_page, make_table

UNITS = {"SECONDS": "seconds", "MS": "milliseconds", "BYTES": "bytes"}
"""Placeholder in --help -> its unit."""

ABOUT = {
    "model": "The first argument of `serve`, `generate`, `chat`, `doctor` and `bench offline`.",
    "server": "For `serve`.",
    "engine": "For every command that runs a model. The default of `engine_mode` is `process` for `serve`.",
    "sampling": "For `generate`; `chat` has some of them. A request to a server has its own values.",
    "logging": "For every command.",
    "workload": "For `bench offline` and `bench simulate`.",
    "load": "For `bench serve`.",
    "fleet": "For `fleet`, which also has the settings of the router that do not say where replicas are.",
    "autoscaler": "For `fleet` and `autoscaler`.",
    "signals": "For `autoscaler`.",
    "plan": "For `plan`.",
    "simulated fleet": "For `bench simulate --fleet N`.",
    "router": "For `router`, which also has the settings of the server that are not about a model.",
}
"""Group of settings -> the commands that have it."""

SETTINGS_INTRO = """# Settings

A setting's value comes from the first of these that has one: the flag, the environment variable, the file given by
`--config FILE.yaml` or `CHAIRLIFT_CONFIG`, the default. `chairlift config show` prints every value and its source;
`chairlift config validate FILE.yaml` prints all errors in a file. The format of a file is described in
[serving.md](serving.md#settings-in-a-file-chairlift-config).

A flag that is true or false also has a `--no-` form. A flag may have underscores for its hyphens: `--max_memory` is
`--max-memory`. A server reads settings marked with * again on SIGHUP."""

FLAGS_INTRO = """# Flags of vLLM, SGLang, llama.cpp and Ollama

`chairlift serve` accepts command lines that were written for these servers. `generate`, `chat`, `doctor`, `config show`
and `bench offline` accept the aliases of the settings that they have.

* An **alias** sets a setting of Chairlift. Its value is converted where the units differ, and an error names the flag
  as you wrote it. A warning at the start says where the meaning is not quite the same.
* A flag **without effect** is accepted with a warning that has the reason.
* A flag with **accepted values** is accepted silently with these, and rejected with others.
* A **rejected** flag ends the command with exit code 2 and a sentence that has the reason and the nearest setting.

An unknown flag ends the command, too, with the most similar known flag. In a settings file only the names of
[settings.md](settings.md) are keys; for an alias the error has the right key. `--dtype` also takes `half`, `fp16`,
`bf16`, `float` and `fp32`; `--scheduling-policy` takes `fcfs`; `--max-model-len` and `--max-batch-tokens` take
`32k` (32,000) and `32K` (32,768)."""

METRICS_INTRO = """# Metrics

`GET /metrics` returns these metrics in the text format of Prometheus. A histogram has the series `_bucket`, `_sum` and
`_count`. `--metric-alias vllm` and `--metric-alias transformers` also export them under the names that the dashboards
of these projects read.

Every label has few values, whatever clients send:

* `code` is a code of [errors.md](errors.md).
* `process` is `api` or `engine`.
* `reason` of an abort is `client` if the client disconnected, otherwise `server`. That of an ejection is
  `consecutive_faults`, `error_share`, `time_to_first_token`, `inter_token_latency`, `trial` or `other_router`.
* `replica` is the URL of a replica of the router; a replica that is removed has no metrics any more.
* `source` is a discovery source of the router as its setting names it.
* `route` and `method` are `other` for a path or a method that the server does not know.
* `status` is 499 if the client disconnected before the end of the response.
* `model` is the first name of a server's model, and the replicas' own name of it at a router.
* `tenant` is the tenant of a key or a token, `none` without keys. The first 100 tenants since the start have a label of
  their own, later ones are `other`.
* `slo` is `ttft` or `itl`, and exists where `--slo-ttft-ms` or `--slo-itl-ms` is set. `met` is `true` or `false`. A
  request that fails before its first token misses `ttft`; one that the client gives up earlier does not count. At a
  router a whole response counts where its replica reports the progress, as Chairlift's do. `itl` is the mean time
  between two tokens, and at a router only of streams, as their tokens come from the replicas. A stream that the router
  stopped reading, because its client was slow, does not count there.

[monitoring.md](monitoring.md) has the alerts and dashboards that are made from these metrics."""

ERRORS_INTRO = """# Errors

`code` is the code of the error object in a response, the label of metrics, and `.code` of the exception in Python.

* A response to a retryable error has a `retry-after` header, in seconds.
* A response to another error has `x-should-retry: false` if OpenAI's client would otherwise retry by its status.
* After a stream has started, an error is an `error` event with the same error object, and no `[DONE]` follows."""


def settings_page() -> str:
    """Return docs/settings.md."""
    sections = [f"## {title}\n\n{ABOUT[title]}\n\n{_settings(group)}" for title, group in settings.GROUPS]
    return make_page(SETTINGS_INTRO, *sections)


def flags_page() -> str:
    """Return docs/flags.md."""
    flags = {setting.dest: setting.flag for _, group in settings.GROUPS for setting in group}
    aliases = ((*_flag_cells(row), _alias_target(row, flags), row.option.reason) for row in ALIASES)
    no_effect = ((*_flag_cells(row), row.option.reason) for row in WITHOUT_EFFECT)
    some_values = ((*_flag_cells(row), _accepted(row.option.neutral), row.option.reason) for row in SOME_VALUES)
    rejected = ((*_flag_cells(row), row.option.reason) for row in REJECTED)
    same_names = f"`chairlift serve --help` describes {code_names(SAME_NAMES)}."
    return make_page(
        FLAGS_INTRO, "## Same name", textwrap.fill(same_names, LINE_CHARS, break_on_hyphens=False),
        "## Aliases", make_table(("flag", "of", "sets", "difference"), aliases),
        "## Without effect", make_table(("flag", "of", "reason"), no_effect),
        "## Some values", make_table(("flag", "of", "accepted values", "reason for others"), some_values),
        "## Rejected", make_table(("flag", "of", "reason, and what to do"), rejected),
    )  # fmt: skip


def metrics_page() -> str:
    """Return docs/metrics.md."""
    rows = (
        (f"`{_exported_name(name, spec)}`", spec.kind.value, code_names(spec.labels), spec.help, spec.action)
        for name, spec in METRICS.items()
    )
    return make_page(
        METRICS_INTRO, make_table(("name", "type", "labels", "meaning", "what to do when it is bad"), rows)
    )


def errors_page() -> str:
    """Return docs/errors.md."""
    kinds = [(kind, error_response_of(kind.from_wire("", {}))) for kind in _error_kinds(ChairliftError)]
    with_response = [(kind, response) for kind, response in kinds if response is not INTERNAL_ERROR]
    with_response.sort(key=lambda each: each[1].status)
    without_response = (
        (f"`{kind.code}`", f"`{kind.__name__}`", _meaning(kind))
        for kind, response in kinds if response is INTERNAL_ERROR
    )  # fmt: skip
    states = code_names([state for state in ReplicaState if state is not ReplicaState.READY])
    return make_page(
        ERRORS_INTRO, "## Errors of the server",
        make_table(("status", "code", "retryable", "type", "meaning"), (_error_row(*each) for each in with_response)),
        f"In a response, the code of `unavailable` is the server's state: {states}.\n\n"
        f"An internal error has status {INTERNAL_ERROR.status} and code `internal_error`.\n"
        "Its message has the request id; the server's log has the reason.",
        "## Errors of commands and of the Python API", "A command ends with exit code 2 before it runs anything.",
        make_table(("code", "exception", "meaning"), without_response),
    )  # fmt: skip


def _settings(group: Sequence[Setting]) -> str:
    rows = (
        (
            f"`{each.dest}`{'*' * each.is_reloadable}", f"`{each.flag}`", f"`{each.variable}`", _value(each),
            _default(each), each.help,
        )
        for each in group
    )  # fmt: skip
    return make_table(("key", "flag", "environment", "value", "default", "meaning"), rows)


def _value(setting: Setting) -> str:
    unit = UNITS.get(setting.metavar) if setting.parse is not value_parsers.num_bytes else None
    return f"{'list of ' * setting.is_repeatable}{unit or value_parsers.describe_parser(setting.parse)}"


def _default(setting: Setting) -> str:
    if setting.default_text:
        return setting.default_text
    if isinstance(setting.default, bool):
        return str(setting.default).lower()
    return "" if setting.default == "" else f"`{setting.default}`"


def _flag_cells(row: ForeignFlag) -> tuple[str, str]:
    return code_names(row.flags), ", ".join(row.systems)


def _alias_target(row: ForeignFlag, flags: Mapping[str, str]) -> str:
    target = f"`{flags[row.option.setting]}`"
    if not row.metavar:
        return f"{target} to `{str(row.constant).lower()}`"
    return target if row.parse is None else f"{target}; {describe_value(row.parse)}"


def _accepted(values: Sequence[str]) -> str:
    numbers = [int(value) for value in values if value.isdecimal()]
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"`{numbers[0]}` to `{numbers[-1]}`"
    return code_names(values)


def _exported_name(name: str, spec: MetricSpec) -> str:
    return PREFIX + name + ("_total" if spec.kind is MetricKind.COUNTER else "")


def _error_kinds(root: type[ChairliftError]) -> Iterator[type[ChairliftError]]:
    """Yield the classes of core, without the base class RequestRejected, which is never raised itself."""
    for kind in sorted(root.__subclasses__(), key=lambda kind: (kind.__module__ != root.__module__, kind.__module__)):
        if kind.__module__ in {root.__module__, router_errors.__name__, cluster_errors.__name__}:
            if kind is not RequestRejected:
                yield kind
            yield from _error_kinds(kind)


def _error_row(kind: type[ChairliftError], response: ErrorResponse) -> tuple[str, ...]:
    retryable = "yes" if kind.retryable and kind.code not in REPEATS else "no"
    return str(response.status), f"`{kind.code}`", retryable, f"`{response.type}`", _meaning(kind)


def _meaning(kind: type[ChairliftError]) -> str:
    return (inspect.getdoc(kind) or "").partition("\n")[0]
