"""jinja_sandbox.py: hostile templates fail at once with typed errors; ordinary ones stay within the limits."""

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest

from chairlift.core.clock import FakeClock
from chairlift.core.errors import InvalidRequest, ModelError
from chairlift.text.byte_tokenizer import ByteTokenizer
from chairlift.text.chat_template import ChatTemplate
from chairlift.text.jinja_sandbox import TemplateLimits
from support_shares import for_each

CHAT = [{"role": "user", "content": "hello"}]


def render(source: str, **limits: float) -> str:
    template = ChatTemplate({"default": source}, ByteTokenizer(), limits=TemplateLimits(**limits))  # type: ignore[arg-type]
    return template.render(CHAT).text


ESCAPES = [
    "{{ ''.__class__.__mro__ }}", "{{ ''['__class__'] }}", "{{ (''|attr('__class__')).__mro__ }}",
    "{{ raise_exception.__globals__ }}", "{{ strftime_now.__closure__ }}", "{{ messages.append(1) }}",
    "{{ '{0.__class__.__mro__}'.format('') }}", "{{ '{a.__class__.__mro__}'.format_map({'a': ''}) }}",
    "{{ ''.format.__self__.__class__.__mro__ }}", "{{ range.__self__.meter }}", "{{ self.__init__.__globals__ }}",
]  # fmt: skip


@for_each("source", ESCAPES)
def test_an_escape_is_the_models_error_or_shows_nothing(source: str) -> None:
    try:
        output = render(source)
    except (ModelError, InvalidRequest) as error:
        output = "" if "sandbox" in str(error) or "cannot render" in str(error) else str(error)
    assert output == ""


EXPENSIVE = [
    "{% for i in range(10**9) %}x{% endfor %}",
    "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
    "{% set x = 'a' * 1000 %}{% for a in x %}{% for b in x %}{% for c in x %}{% endfor %}{% endfor %}{% endfor %}",
    "{{ 'x' * 10**9 }}", "{{ 10**9 * 'x' }}", "{{ [1] * 10**9 }}", "{{ 'x' * 1000000000 }}",
    "{{ 10**(10**10) }}", "{{ 2**100000 }}", "{% set n = namespace(x=2**4000) %}{{ n.x * n.x }}",
    "{{ '%1000000000d' % 1 }}", "{{ '%*d' % (1000000000, 1) }}", "{{ '%1000000000d'|format(1) }}",
    "{{ '{:1000000000}'.format(1) }}", "{{ '{:{}}'.format(1, 1000000000) }}",
    "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
    "{{ 'x'.center(1000000000) }}", "{{ 'x'.ljust(width=1000000000) }}", "{{ 'x'.zfill(1000000000) }}",
    "{{ 'x'|center(1000000000) }}", "{{ 'x\ny'|indent(1000000000) }}", "{{ [1]|tojson(indent=1000000000) }}",
    "{{ '\t'.expandtabs(1000000000) }}", "{{ [1]|batch(1000000000, 'x')|list }}", "{{ lipsum(n=1000000) }}",
    "{% set n = namespace(x='abcdefgh') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% set n = namespace(x='abcdefgh') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x.replace('', n.x) %}{% endfor %}",
    "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x|replace('a', n.x) %}{% endfor %}",
    "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x.join([n.x, n.x, n.x]) %}{% endfor %}",
    "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = [n.x, n.x, n.x]|join(n.x) %}{% endfor %}",
    "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}",
    "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x|tojson }}",
    "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x|string }}",
    "{% macro f(n) %}{{ f(n - 1) }}{{ f(n - 1) }}{% endmacro %}{{ f(10**6) }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "{{ range(10**9)|list }}", "{% for i in range(10**9)|map('string')|list %}{% endfor %}",
    "{{ 'x'.translate({120: 'y' * 1000000}) }}",
]  # fmt: skip


@pytest.mark.share(6)
@pytest.mark.parametrize("source", EXPENSIVE)
def test_a_giant_ends_as_a_typed_error(source: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises((InvalidRequest, ModelError)):
            render(source, max_chars=10**6, max_steps=10**4)
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()


def test_limits_say_both_sides() -> None:
    with pytest.raises(InvalidRequest, match="writes 2000 characters; the limit is 1000"):
        render("{{ 'x' * 2000 }}", max_chars=1000)
    with pytest.raises(InvalidRequest, match="more steps than it may; the limit is 50"):
        render("{% for i in range(60) %}{% endfor %}", max_steps=50)


def test_processor_time_is_bounded_and_delays_by_other_programs_are_not() -> None:
    class Ticking(FakeClock):
        def now(self) -> float:
            self.advance(1.0)
            return super().now()

    source = "{% for c in 'abcdefghij' %}{{ c }}{% endfor %}"
    clock = Ticking()
    template = ChatTemplate({"default": source}, ByteTokenizer(), clock=clock, cpu_clock=clock)
    with pytest.raises(InvalidRequest, match="more seconds of processor time than it may; the limit is 5"):
        template.render(CHAT)
    template = ChatTemplate({"default": source}, ByteTokenizer(), clock=Ticking(), cpu_clock=FakeClock())
    assert template.render(CHAT).text == "abcdefghij"


ORDINARY = [
    ("{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{% endfor %}", "1/1True"),
    ("{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k ~ v }}{{ ',' if not loop.last }}{% endfor %}", "a1,b2"),
    ("{% for x in nothing %}{{ x }}{% else %}none{% endfor %}", "none"),
    ("{% for x in [1, 2, 3] if x != 2 %}{{ x }}{% endfor %}", "13"),
    ("{% for x in [[1, [2]], 3] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "123"),
    ("{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 5 }}{{ 3 * 2 }}{{ 'ab' * 2 }}", "33326abab"),
    ("{{ '%s-%05d' % ('a', 7) }}{{ '%s'|format('b') }}{{ '{:>4}|{x}'.format(1, x=2) }}", "a-00007b   1|2"),
    ("{{ {'ä': '<&>'}|tojson }}{{ [1]|tojson(indent=2) }}", '{"ä": "<&>"}[\n  1\n]'),
    ("{{ 'a,b'.split(',')|join('+') }}{{ '-'.join(['x', 'y']) }}{{ 'abc'|replace('b', '') }}", "a+bx-yac"),
    ("{{ messages|map(attribute='role')|list }}", "['user']"),
    ("{{ messages|selectattr('role', 'equalto', 'user')|list|length }}", "1"),
    ("{% macro f(x, y=2) %}[{{ x }}{{ y }}{{ caller() if caller }}]{% endmacro %}{{ f(1) }}"
     "{% call f(3) %}c{% endcall %}",
     "[12][32c]"),
    ("{% set x %}{{ 1 }}{% endset %}{{ x }}{% generation %}g{% endgeneration %}", "1g"),
    ("{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}"
     "{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
     "013"),
    ("{{ none|default('d') }}{{ missing|default(1000000) }}{{ 'a\nb'|indent(2) }}", "None1000000a\n  b"),
    ("{{ 'abc'[::-1] }}{{ 'x'|upper }}{{ '  t '|trim }}{{ 'abc'.find('c') }}"
     "{{ messages[-1]['content'][:2] }}", "cbaXt2he"),
]  # fmt: skip


@for_each(("source", "expected"), ORDINARY)
def test_ordinary_templates_render_as_in_transformers(source: str, expected: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    expected_texts, _ = render_jinja_template([CHAT], chat_template=source)
    assert render(source) == expected_texts[0] == expected


def test_threads_count_apart() -> None:
    """Another thread renders during a rendering; each has its own counts."""
    loop = "{% for i in range(20) %}{% endfor %}"
    source = "{% if messages|length == 1 %}" + loop + "{{ strftime_now('') }}" + loop + "{% endif %}"

    def render_in_thread() -> datetime:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(template.render, CHAT * 2).result()
        return datetime(2026, 1, 1)

    for limit, enough in ((60, False), (100, True)):
        limits = TemplateLimits(max_steps=limit)
        template = ChatTemplate({"default": source}, ByteTokenizer(), limits=limits, wall_clock=render_in_thread)
        if enough:
            assert template.render(CHAT).text == ""
        else:
            with pytest.raises(InvalidRequest, match="the limit is 60"):
                template.render(CHAT)
