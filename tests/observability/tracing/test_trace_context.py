"""TraceContext: both headers of W3C Trace Context, and what its specification declares invalid."""

from chairlift.observability.tracing.trace_context import TraceContext, parse_trace_context
from support_shares import for_each

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def parse(*parents: str, states: tuple[str, ...] = ()) -> TraceContext | None:
    return parse_trace_context([each.encode() for each in parents], [each.encode() for each in states])


def test_a_traceparent_is_read_and_written() -> None:
    context = parse(PARENT)
    assert context == TraceContext(TRACE, SPAN, 1) and context.is_sampled and context.traceparent == PARENT
    context = parse(f"00-{TRACE}-{SPAN}-00")
    assert context is not None and not context.is_sampled


def test_of_the_flags_only_the_known_ones_are_passed_on() -> None:
    context = parse(f"00-{TRACE}-{SPAN}-ff")
    assert context is not None and context.is_sampled and context.traceparent.endswith("-03")
    context = parse(f"00-{TRACE}-{SPAN}-02")
    assert context is not None and not context.is_sampled and context.flags == 2


def test_a_later_version_may_have_further_fields() -> None:
    assert parse(f"cc-{TRACE}-{SPAN}-01") == parse(f"cc-{TRACE}-{SPAN}-01-what-comes") == parse(PARENT)


@for_each("parent", [
    "", "x", f"ff-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01-more", f"cc-{TRACE}-{SPAN}-01.more", f"00-{TRACE}-{SPAN}",
    f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE.upper()}-{SPAN}-01", f"0-{TRACE}-{SPAN}-01",
    f"00-{TRACE[:-1]}-{SPAN}-01", f"00-{TRACE}-{SPAN}-1", f"00-{TRACE}-{SPAN}-0g", f" {PARENT}", f"{PARENT} ",
    f"{PARENT}\n", f"00_{TRACE}_{SPAN}_01",
])  # fmt: skip
def test_a_malformed_traceparent_is_none(parent: str) -> None:
    assert parse(parent) is None


def test_two_of_them_are_none() -> None:
    assert parse(PARENT, PARENT) is None and parse() is None


@for_each(("states", "state"), [
    (("a=1",), "a=1"), (("a=1,b=2", "c=3"), "a=1,b=2,c=3"), (("a=1 , b=2",), "a=1,b=2"), (("", "a=1,,"), "a=1"),
    (("t61@v-x_y*z/0=a b~!",), "t61@v-x_y*z/0=a b~!"), ((",".join(f"k{number}=v" for number in range(32)),), None),
])  # fmt: skip
def test_a_valid_tracestate_is_kept(states: tuple[str, ...], state: str | None) -> None:
    context = parse(PARENT, states=states)
    assert context is not None and context.state == (states[0] if state is None else state)


@for_each("state", [
    "a", "=1", "a=", "A=1", "a=1,a=2", "a=b=c", "a=é", "-a=1", f"a={'x' * 257}", f"{'a' * 257}=1",
    ",".join(f"k{number}=v" for number in range(33)),
])  # fmt: skip
def test_an_invalid_tracestate_is_dropped_and_the_parent_counts(state: str) -> None:
    assert parse(PARENT, states=(state,)) == TraceContext(TRACE, SPAN, 1)


def test_the_longest_member_is_valid() -> None:
    state = f"{'a' * 256}={'x' * 256}"
    context = parse(PARENT, states=(state,))
    assert context is not None and context.state == state
