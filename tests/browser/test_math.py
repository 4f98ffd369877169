"""Formulas of an answer: which text is one, what is made of it, and that no formula runs, loads or hangs anything."""

from collections.abc import Callable
from typing import Any

import pytest

from support_browser import WebPage, findings
from support_server import Server

pytestmark = pytest.mark.browser
OpenPage = Callable[..., WebPage]

FORMULAS = {
    r"a $x^2$ b": [r"$x^2$"],
    r"**$a_1$ and $b_1$**, so $|a_1| * c * d$": ["$a_1$", "$b_1$", "$|a_1| * c * d$"],
    r"\(a\) and \[b\], $$c$$": [r"\(a\)", r"\[b\]", "$$c$$"],
    "Then:\n\\[\na\n- b\n= c\n\\]\nand so on": ["\\[\na\n- b\n= c\n\\]"],
    "$$\n\\begin{aligned}\na &= b \\\\\n+ c &= d\n\\end{aligned}\n$$": [
        "$$\n\\begin{aligned}\na &= b \\\\\n+ c &= d\n\\end{aligned}\n$$"],
    "1. one\n\n   $$\n   x\n   $$\n\n2. $y$": ["$$\nx\n$$", "$y$"],
    "| a | b |\n|---|---|\n| $x$ | 1 |": ["$x$"],
    r"$\text{cost} = \$5$ and $2 \text{ if } x$": [r"$\text{cost} = \$5$", r"$2 \text{ if } x$"],
}  # fmt: skip
"""A text, and its formulas with their signs."""

TEXTS = (
    "It costs $5 and $10.", "US$5, CA$6 and 7$", "between $5-$10, or 20$", "I paid $5, you paid 10$.",
    "set $HOME and $PATH, or $HOME:$PATH", r"\$5 and \$6", "`$x$` and ``$y$``", "```\n$x$ \\(y\\)\n```", "    $x$",
    "an open $x^2", "an open $$x^2 + y\n\nnext $$ z", "\\[ open", "\\( open", "$ $ and $$ $$", "a $x\ny$",
    "$" + "x+" * 2000 + "x$", "$$" + "x+" * 6000 + "x$$",
)  # fmt: skip
"""Texts without a formula: prices, names of variables, code, and formulas that are not closed or too long."""

HOSTILE = (
    r"$\href{javascript:window.hit=1}{x}$", r"$\url{javascript:window.hit=1}$", r"$\includegraphics{//x.invalid/y}$",
    r"$\class{dialog}{x}$", r"$\id{app}{x}$", r"$\style{position:fixed}{x}$", r"$\def\a{\a\a}\a$",
    r"$\def\x{xx}" + r"\edef\x{\x\x}" * 40 + r"\x$", r"\[" + "{" * 9000 + r"\]", r"\[" + r"\frac{" * 1600 + r"\]",
    r"$\frac{1$", r"$\unknown$", r"\[" + "x^{" * 2000 + "}" * 2000 + r"\]",
    r"\[\def\a{" + "x" * 4000 + "}" + r"\a" * 900 + r"\]", r"$\newcommand\a{" + "x" * 200 + "}" + r"\a" * 450 + "$",
    r"\[\def\a{" + "x" * 250 + "}" + r"\a" * 70 + r"\]", r"\[" + r"\boxed{" * 300 + "x" + "}" * 300 + r"\]",
)  # fmt: skip
"""Formulas that stay text: commands that are not trusted, endless or long macros, too deep, and invalid ones."""

LARGE = (
    r"\[\newcommand{\R}{\mathbb{R}}" + r"\R + x_{1}^{2} + \cdots " * 30 + r"\]", r"\[" + "x" * 9900 + r"\]",
    r"\[" + r"\sqrt{1 + " * 50 + "x" + "}" * 50 + r"\]", r"\[" + r"\frac{1}{1 + " * 50 + "x" + "}" * 50 + r"\]",
)  # fmt: skip
"""Formulas within the limits of their length, depth and macros."""

MARKED = """async (texts) => {
  const { blocksOf, fragmentOf } = await import(new URL("ui/lib/markdown.js", document.baseURI).href);
  await import(new URL("ui/lib/math.js", document.baseURI).href);
  return texts.map((text) => blocksOf(text).flatMap((block) =>
    [...fragmentOf(block).querySelectorAll(".math")].map((each) => each.textContent)));
}"""


def test_prices_variables_code_and_what_is_not_closed_are_no_formulas(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    requests: list[str] = []
    page.page.on("request", lambda request: requests.append(request.url))
    found = dict(zip(TEXTS, page.page.evaluate(MARKED, list(TEXTS)), strict=True))
    assert {text: each for text, each in found.items() if each} == {}
    assert not any("temml" in url for url in requests), "a page without formulas does not load the library"
    assert page.page.evaluate(MARKED, list(FORMULAS)) == list(FORMULAS.values())
    page.page.wait_for_function("() => window.temml")


def test_formulas_of_an_answer_are_drawn_and_scroll_and_are_accessible(
    open_page: OpenPage, echo_server: Server
) -> None:  # fmt: skip
    page = open_page(echo_server, phone=True)
    wide = r"\[ " + " + ".join(rf"\frac{{a_{{{n}}}}}{{b}}" for n in range(40)) + r" \]"
    page.ask(
        r"Inline $e^{i\pi} + 1 = 0$, {not this $5 and $6}, \(\color{red} \overline r\), bad $\frac$." + "\n\n" + wide
    )
    page.page.wait_for_function("() => document.querySelectorAll('.math math').length === 3")
    answer: Any = page.get("markdown")
    assert answer.locator("math").first.locator("msup").count() == 1
    assert "$5 and $6" in answer.inner_text()
    assert answer.locator(".math.invalid").inner_text() == r"$\frac$"
    assert (
        page.page.evaluate("getComputedStyle(document.querySelector('[style*=color] mi, mi[style]')).color")
        == "rgb(255, 0, 0)"
    )
    line = "getComputedStyle(document.querySelector('menclose.tml-overline')).borderTopStyle"
    assert page.page.evaluate(line) == "solid", "classes of formulas have their styles"
    display = answer.locator(".math.display")
    assert display.evaluate("each => each.scrollWidth > each.clientWidth && each.clientWidth < innerWidth")
    assert answer.locator("math mfrac").first.bounding_box()["height"] > 20, "it is drawn as a fraction"
    assert findings(page) == []


def test_sums_grow_by_a_font_that_is_loaded_where_the_system_has_none(
    open_page: OpenPage, echo_server: Server
) -> None:  # fmt: skip
    page = open_page(echo_server)
    urls: list[str] = []
    page.page.on("request", lambda request: urls.append(request.url))
    page.page.route("**/math.css", without_system_fonts)
    page.ask("no formula")
    assert not any("chairlift-math-" in url for url in urls)
    page.ask(r"\[ \sum_{k} \sqrt{\frac{a}{b}} \] and $\sum_k f'$")
    page.page.wait_for_function("() => document.querySelectorAll('.math math').length === 2")
    page.page.wait_for_function("() => [...document.fonts].map((font) => font.status).join() === 'loaded'")
    assert len([url for url in urls if "chairlift-math-" in url]) == 1
    large, small = (each.bounding_box() for each in page.page.locator("mo", has_text="\u2211").all())
    assert large["height"] > 1.15 * small["height"], "a sum on a line of its own is larger"


def without_system_fonts(route: Any) -> None:
    """Send math.css as it works on a system without math fonts."""
    text = route.fetch().text()
    for name in ("Cambria Math", "STIX Two Math", "Latin Modern Math"):
        assert f'"{name}", ' in text
        text = text.replace(f'"{name}", ', "")
    route.fulfill(body=text, content_type="text/css")


def test_no_formula_runs_loads_or_hangs_anything(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    page.ask("$x$")
    page.page.wait_for_selector("math")
    shown = page.page.evaluate(MARKED, list(HOSTILE))
    assert shown == [[text] for text in HOSTILE]
    assert page.page.evaluate("window.hit") is None
    assert all(text != LARGE[n] for n, (text,) in enumerate(page.page.evaluate(MARKED, list(LARGE)))), "they are drawn"


def test_a_server_without_the_library_shows_the_source_and_the_next_formula_tries_again(
    open_page: OpenPage, echo_server: Server
) -> None:
    page = open_page(echo_server)
    page.page.route("**/temml-*", lambda route: route.abort())
    with page.page.expect_event("requestfailed"):
        page.ask("$x^2$")
    assert page.get("markdown").inner_text() == "$x^2$"
    page.page.unroute("**/temml-*")
    page.ask("$y^2$")
    page.page.wait_for_function("() => document.querySelectorAll('math').length === 1")
