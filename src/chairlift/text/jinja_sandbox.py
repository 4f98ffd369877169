"""ChatEnvironment: a Jinja sandbox for chat templates, compatible with transformers, with bounds on its work.

A template comes with the model and never from a request, but it runs unreviewed. Jinja's sandbox keeps it away from
Python; this module also bounds loops, text and time. It counts every loop iteration, call and piece of text, and
computes the size of operators and methods that can produce huge values before they run.
"""

import functools
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.visitor import NodeTransformer

from chairlift.core.clock import Clock, SystemClock, ThreadCpuClock
from chairlift.core.errors import InvalidRequest

MAX_WIDTH = 10_000  # of a format field, an indentation, any number passed to a filter or a string method
MAX_BITS = 4096  # of an integer
WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(?:\d{5}|\*)")
UNSAFE_STRING_METHODS = frozenset({"translate", "maketrans"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateLimits:
    """Limits of one rendering.

    Attributes:
        max_chars: characters written, also into variables and by macros (a text may count several times).
        max_steps: loop iterations, calls, numbers in ranges.
        max_seconds: processor time between first and last step, so that no busy machine makes a rendering fail.
    """

    max_chars: int = 64 * 2**20
    max_steps: int = 1_000_000
    max_seconds: float = 5.0


class TemplateRaised(jinja2.TemplateError):
    """The template called raise_exception; the message is for the user."""


class RenderBudget:
    """Counts the work of one rendering; raises InvalidRequest with both numbers beyond a limit."""

    def __init__(self, limits: TemplateLimits, clock: Clock, cpu_clock: Clock) -> None:
        """Begin. `cpu_clock` has the processor time of this thread, which is never more than the time of `clock`."""
        self._limits, self._clock, self._cpu_clock = limits, clock, cpu_clock
        self._check_at = clock.now() + limits.max_seconds
        self._cpu_end = cpu_clock.now() + limits.max_seconds
        self._steps = self._chars = 0

    def step(self, count: int = 1) -> None:
        """Count loop iterations, calls or elements."""
        self._steps += count
        if self._steps > self._limits.max_steps:
            raise _limit_error("takes more steps than it may", self._limits.max_steps)
        if (now := self._clock.now()) > self._check_at:
            left = self._cpu_end - self._cpu_clock.now()
            if left < 0:
                raise _limit_error("takes more seconds of processor time than it may", self._limits.max_seconds)
            self._check_at = now + left  # the processor time cannot be used up before

    def text(self, chars: int) -> None:
        """Count characters before they are produced, if the size is known by then."""
        self._chars += chars
        if self._chars > self._limits.max_chars:
            raise _limit_error(f"writes {self._chars} characters", self._limits.max_chars)

    def value(self, value: Any) -> Any:
        """Count a value that is about to become text, including all elements of lists and objects."""
        if isinstance(value, str):
            self.text(len(value))
        elif isinstance(value, Mapping):
            for key, item in value.items():
                self.step()
                self.value(key)
                self.value(item)
        elif isinstance(value, list | tuple):
            for item in value:
                self.step()
                self.value(item)
        return value

    def replacing(self, text: str, old: Any, new: Any) -> None:
        """Count the characters of text.replace(old, new) before it runs."""
        self.text(len(text) + text.count(str(old)) * len(str(new)))


def _limit_error(message: str, limit: float) -> InvalidRequest:
    return InvalidRequest(f"the chat template {message}; the limit is {limit:g}", param="messages", limit=limit)


class _MeteredNodes(NodeTransformer):
    """Wraps loop iterables, and values that are written or joined by ~, in the counting filters."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - Jinja's name
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "metered_loop")
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802 - Jinja's name
        self.generic_visit(node)
        node.nodes = [n if isinstance(n, nodes.TemplateData) else _filtered(n, "metered_value") for n in node.nodes]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - Jinja's name
        self.generic_visit(node)
        node.nodes = [_filtered(n, "metered_value") for n in node.nodes]
        return node


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    assert isinstance(node, nodes.Expr), "only expressions have a value"
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Generation(Extension):
    """`{% generation %}` marks assistant text for training; at inference it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's interface

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(lineno)

    def _same(self, caller: Callable[[], str]) -> str:
        return caller()


class _Formatter(SandboxedFormatter):
    """Formats as str.format does, but rejects fields wider than 9999."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if re.search(r"\d{5}", format_spec):
            raise _limit_error(f"formats with {format_spec!r}", MAX_WIDTH)
        return str(super().format_field(value, format_spec))


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and renders chat templates with the options of transformers' apply_chat_template.

    Thread-safe: the budget of a rendering is thread-local.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(
        self,
        limits: TemplateLimits,
        clock: Clock | None = None,
        cpu_clock: Clock | None = None,
        wall_clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], optimized=False)
        self._limits, self._clock, self._cpu_clock = limits, clock or SystemClock(), cpu_clock or ThreadCpuClock()
        self._local = threading.local()
        self.filters = {name: self._bounded(name, function) for name, function in self.filters.items()}
        self.filters["tojson"] = self._tojson
        self.filters["metered_loop"] = self._loop
        self.filters["metered_value"] = self._value
        del self.globals["lipsum"]
        self.globals["range"] = self._range
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: wall_clock().strftime(form)

    @property
    def meter(self) -> RenderBudget:
        """The budget of this thread's rendering."""
        meter: RenderBudget = self._local.meter
        return meter

    def rendered(self, template: jinja2.Template, variables: Mapping[str, Any]) -> str:
        """Render within the limits. Raises InvalidRequest at a limit, and the template's own exceptions."""
        self._local.meter = RenderBudget(self._limits, self._clock, self._cpu_clock)
        return template.render(variables)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = _MeteredNodes().visit(super()._parse(source, name, filename))
        assert isinstance(tree, nodes.Template), "the transformer keeps the root"
        tree.set_environment(self)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Reject also the string methods whose result size is unknown beforehand."""
        return super().is_safe_attribute(obj, attr, value) and attr not in UNSAFE_STRING_METHODS

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return a str.format that respects the sandbox and MAX_WIDTH."""
        if super().wrap_str_format(value) is None:
            return None
        if value.__name__ == "format_map":
            return lambda mapping: str(_Formatter(self).vformat(value.__self__, (), mapping))
        return lambda *args, **kwargs: str(_Formatter(self).vformat(value.__self__, args, kwargs))

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """Compute left (operator) right after checking the size of the result."""
        if operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            self.meter.text(len(left) + len(right))
        elif operator == "%" and isinstance(left, str):
            _reject_wide_format(left)
            self.meter.value(right)
        elif operator == "*":
            many, times = (left, right) if isinstance(right, int) else (right, left)
            if isinstance(many, str | list | tuple) and isinstance(times, int):
                self.meter.text(len(many) * max(0, times))
            elif isinstance(many, int) and isinstance(times, int):
                _reject_bits(many.bit_length() + times.bit_length())
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _reject_bits(left.bit_length() * max(0, right))
        return super().call_binop(context, operator, left, right)

    def call(self, context: jinja2.runtime.Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Count and call a function, macro or method."""
        self.meter.step()
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            _reject_wide((*args, *kwargs.values()))
            name = getattr(obj, "__name__", "")
            if name == "join" and args:
                args = (self.meter.value(list(args[0])), *args[1:])
                self.meter.text(len(owner) * len(args[0]))
            elif name == "replace" and len(args) > 1:
                self.meter.replacing(owner, args[0], args[1])
        return super().call(context, obj, *args, **kwargs)

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a filter with size checks; Jinja's context or environment may precede the value."""
        first = 1 if hasattr(function, "jinja_pass_arg") else 0

        @functools.wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            self.meter.step()
            rest = [*args[first + 1 :], *kwargs.values()]
            if name not in ("default", "d"):
                _reject_wide(rest)
            if name == "join" and len(args) > first:
                items = list(args[first])
                self.meter.value(items)
                self.meter.text(len(items) * sum(len(part) for part in rest[:1] if isinstance(part, str)))
                args = (*args[:first], items, *args[first + 1 :])
            elif name == "replace" and len(rest) > 1:
                self.meter.replacing(str(args[first]), rest[0], rest[1])
            elif name == "format" and len(args) > first:
                _reject_wide_format(str(args[first]))
            elif name in ("indent", "wordwrap", "string", "urlize", "xmlattr", "pprint"):
                self.meter.value(args[first])
            return function(*args, **kwargs)

        return bounded

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        _reject_wide([indent])
        self.meter.value(value)
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def _value(self, value: Any) -> Any:
        return self.meter.value(value)

    def _loop(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.meter.step()
            yield item

    def _range(self, *args: int) -> range:
        numbers = range(*args)
        _reject_bits(max(number.bit_length() for number in args) * MAX_BITS // 64)
        self.meter.step(len(numbers))
        return numbers


def _raise_exception(message: Any) -> NoReturn:
    raise TemplateRaised(str(message))


def _reject_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise _limit_error(f"computes with a number of {bits} bits", MAX_BITS)


def _reject_wide(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_WIDTH:
            raise _limit_error("gives a filter or method a number beyond what it may", MAX_WIDTH)


def _reject_wide_format(form: str) -> None:
    if WIDE_FORMAT.search(form):
        raise _limit_error("formats with a giant width", MAX_WIDTH)
