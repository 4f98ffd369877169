"""Pages: docs/settings.md, docs/metrics.md and docs/errors.md, from the tables that the code itself reads."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence

from chairlift.cli.settings import settings, value_parsers
from chairlift.cli.settings.settings import Setting
from chairlift.core.errors import ChairliftError
from chairlift.core.load_report import ReplicaState
from chairlift.observability.metrics import METRICS, PREFIX, MetricKind, MetricSpec
from chairlift.web.error_responses import INTERNAL_ERROR, REPEATS, ErrorResponse, error_response_of

MADE = "<!-- Made by `make docs`; edit what it is made of instead. -->"

UNITS = {"S": "seconds", "MS": "milliseconds", "BYTES": "bytes"}
"""What a placeholder of --help stands for."""

ABOUT = {
    "model": "The first word of `serve`, `generate`, `chat`, `doctor` and `bench offline`.",
    "server": "Of `serve`.",
    "engine": "Of every command that runs a model. `serve` has `client: process`.",
    "sampling": "Of `generate`; `chat` has some of them. Requests to a server bring their own.",
    "logging": "Of every command.",
    "workload": "Of `bench offline` and `bench simulate`.",
    "load": "Of `bench serve`.",
}
"""Which commands have the settings of a group."""

SETTINGS_INTRO = """# Settings

Every setting has four places. A flag wins over the environment, the environment over the file of `--config FILE.yaml`
(or `CHAIRLIFT_CONFIG`), the file over the default. `chairlift config show` tells what holds and where it comes from;
`chairlift config validate FILE.yaml` says everything that is wrong with a file. How a file is read stands in
[serving.md](serving.md#settings-in-a-file-chairlift-config).

A flag that is true or false has a `--no-` form. What is marked * a server reads again on SIGHUP."""

METRICS_INTRO = """# Metrics

What `/metrics` has, for Prometheus. Counters end in `_total` there; histograms have `_bucket`, `_sum` and `_count`.
`--metric-alias vllm` and `--metric-alias transformers` add the names that their dashboards read."""

ERRORS_INTRO = """# Errors

`code` is the code of the error object in an answer, the label of metrics, and `.code` of the exception in Python.
Retryable errors say when in `retry-after`; the others have `x-should-retry: false` where a client would try again by
itself. In a stream that has begun, an error is an event `error` with the same object, and no `[DONE]` follows."""


def settings_page() -> str:
    """Return docs/settings.md."""
    sections = [f"## {title}\n\n{ABOUT[title]}\n\n{_settings(group)}" for title, group in settings.GROUPS]
    return _page(SETTINGS_INTRO, *sections)


def metrics_page() -> str:
    """Return docs/metrics.md."""
    rows = (
        (f"`{_series(name, told)}`", told.kind.value, _names(told.labels), told.help) for name, told in METRICS.items()
    )
    return _page(METRICS_INTRO, _table(("name", "kind", "labels", "what"), rows))


def errors_page() -> str:
    """Return docs/errors.md."""
    found = [(kind, error_response_of(kind.from_wire("", {}))) for kind in _kinds(ChairliftError)]
    answered = sorted(
        ((kind, answer) for kind, answer in found if answer is not INTERNAL_ERROR), key=lambda each: each[1].status
    )
    states = _names([state for state in ReplicaState if state is not ReplicaState.READY])
    others = (
        (f"`{kind.code}`", f"`{kind.__name__}`", _meaning(kind)) for kind, answer in found if answer is INTERNAL_ERROR
    )
    return _page(
        ERRORS_INTRO, "## Of a server",
        _table(("status", "code", "retryable", "type", "meaning"), map(_answered, answered)),
        f"`unavailable` has the server's state as its code: {states}.\nA mistake of ours is "
        f"{INTERNAL_ERROR.status} with code `internal_error`: its message names the request's id, and the log the "
        "reason.",
        "## Of commands and of Python", "They end a command with exit code 2, before anything runs.",
        _table(("code", "exception", "meaning"), others),
    )  # fmt: skip


PAGES: Mapping[str, Callable[[], str]] = {
    "settings.md": settings_page, "metrics.md": metrics_page, "errors.md": errors_page,
}  # fmt: skip


def _page(*parts: str) -> str:
    title, _, rest = parts[0].partition("\n")
    return "\n\n".join([f"{title}\n\n{MADE}{rest and chr(10)}{rest}", *parts[1:]]) + "\n"


def _table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


# -- settings ----------------------------------------------------------------------------------------------------------


def _settings(group: Sequence[Setting]) -> str:
    rows = (
        (
            f"`{each.dest}`{'*' * each.is_reloadable}", f"`{each.flag}`", f"`{each.environment}`", _value(each),
            _default(each), each.help,
        )
        for each in group
    )  # fmt: skip
    return _table(("key", "flag", "environment", "value", "default", "what"), rows)


def _value(setting: Setting) -> str:
    said = UNITS.get(setting.metavar) if setting.kind is not value_parsers.size else None
    return f"{'list of ' * setting.many}{said or value_parsers.said(setting.kind)}"


def _default(setting: Setting) -> str:
    if setting.default_text:
        return setting.default_text
    if isinstance(setting.default, bool):
        return str(setting.default).lower()
    return "" if setting.default == "" else f"`{setting.default}`"


# -- metrics -----------------------------------------------------------------------------------------------------------


def _series(name: str, told: MetricSpec) -> str:
    return PREFIX + name + ("_total" if told.kind is MetricKind.COUNTER else "")


# -- errors ------------------------------------------------------------------------------------------------------------


def _kinds(root: type[ChairliftError]) -> Iterator[type[ChairliftError]]:
    """Walk the tree of errors, without those that only gather others."""
    for kind in root.__subclasses__():
        if kind.__module__ == root.__module__:
            if kind.code != "refused":
                yield kind
            yield from _kinds(kind)


def _answered(each: tuple[type[ChairliftError], ErrorResponse]) -> tuple[str, ...]:
    kind, answer = each
    retryable = "yes" if kind.retryable and kind.code not in REPEATS else "no"
    return str(answer.status), f"`{kind.code}`", retryable, f"`{answer.type}`", _meaning(kind)


def _meaning(kind: type[ChairliftError]) -> str:
    return (inspect.getdoc(kind) or "").partition("\n")[0]
