"""Markdown of an answer: what it looks like, and that nothing in it runs or loads anything."""

from collections.abc import Callable

import pytest

from support_browser import WebPage
from support_server import Server

pytestmark = pytest.mark.browser
OpenPage = Callable[..., WebPage]

ATTACKS = (
    "<script>window.hit = 1</script>",
    "<img src=x onerror=\"window.hit = 2\">",
    "<svg onload=\"window.hit = 3\"><script>window.hit = 3</script></svg>",
    "<svg><animate onbegin=\"window.hit = 4\" attributeName=x dur=1s></svg>",
    "[link](javascript:window.hit=5) and <a href=\"javascript:window.hit=6\">raw</a> and [d](data:text/html,<script>)",
    "[x](jAvAsCrIpT:window.hit=7) [y](&#106;avascript:window.hit=8) [z](vbscript:x) <javascript:window.hit=9>",
    "<iframe src=\"javascript:parent.hit=10\" srcdoc=\"<script>parent.hit=10</script>\"></iframe>",
    "<style>body { display: none }</style><link rel=stylesheet href=//example.invalid/x.css>",
    "<p style=\"background: url(//example.invalid/p)\" onclick=\"window.hit=11\">styled</p>",
    "![image](https://example.invalid/leak.png?secret) <img src=https://example.invalid/2.png>",
    "<details open ontoggle=\"window.hit=12\"><summary>open</summary></details>",
    "<form action=\"//example.invalid\"><input autofocus onfocus=\"window.hit=13\"><button>go</button></form>",
    "<math><mtext><table><mglyph><style><img src=x onerror=window.hit=14></style></mglyph></table></mtext></math>",
    "```\"><img/src=x/onerror=window.hit=15>\n</code></pre><script>window.hit=16</script>\n```",
    "| a<script>window.hit=17</script> | <img src=x onerror=window.hit=18> |\n|---|---|\n"
    "| <b onmouseover=window.hit=19>x</b> | y |",
    "<br onclick=window.hit=20><kbd id=main class=dialog>k</kbd><a id=app name=body>clobber</a>",
    "<object data=\"data:text/html,<script>parent.hit=21</script>\"></object>"
    "<embed src=\"javascript:1\"><base href=//x.invalid>",
    "<meta http-equiv=refresh content=\"0;url=//example.invalid\"><template><script>window.hit=22</script></template>",
    "[ref]: javascript:window.hit=23\n\n[ref] <scr<script>ipt>window.hit=24</script>",
    "<noscript><p title=\"</noscript><img src=x onerror=window.hit=25>\"></noscript>"
    "<xmp><script>window.hit=26</script></xmp>",
)  # fmt: skip
"""Each one would set `window.hit`, load something, or change the page, if it were taken as HTML."""

SAFE_ELEMENTS = frozenset([
    "a", "b", "blockquote", "br", "button", "code", "del", "details", "div", "em", "h1", "h2", "h3", "h4", "h5", "h6",
    "hr", "i", "input", "kbd", "li", "mark", "ol", "p", "pre", "s", "small", "span", "strong", "sub", "summary", "sup",
    "table", "tbody", "td", "th", "thead", "tr", "u", "ul",
])  # fmt: skip

RICH = """# Title

Some **bold**, *italic*, `code` and a [link](https://example.com/x).

| drink | caffeine |
|:---|---:|
| tea | 40 mg |

```python
def f(x):
    return x < 1 and "<b>"
```

1. one
   - [x] done
2. two<br>lines, H<sub>2</sub>O

> quoted <div>shown as text</div>
"""


def test_nothing_in_an_answer_runs_or_loads_anything(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    for number, attack in enumerate(ATTACKS):
        page.send(attack)
        page.wait_for_answers(min(number + 1, 2))
        page.page.wait_for_function(
            "n => document.querySelectorAll('article')[0]?.ariaSetSize == String(2 * n)"
            " && !document.querySelector('[data-testid=stop]')", arg=number + 1,
        )  # fmt: skip
        found = page.page.evaluate(
            """() => [...document.querySelectorAll('.markdown *')].flatMap((each) => [each.localName,
               ...each.getAttributeNames().filter((name) => /^on|^style$|^id$|^name$|^srcdoc$/.test(name))])"""
        )
        assert set(found) <= SAFE_ELEMENTS, attack
        links = page.page.evaluate("() => [...document.querySelectorAll('.markdown a[href]')].map((a) => a.href)")
        assert [link for link in links if not link.startswith(("https://", "http://", "mailto:"))] == [], attack
        for link in page.page.locator(".markdown a:not([href])").all():
            link.click(force=True, timeout=1000)
    page.page.mouse.move(640, 400)
    assert page.page.evaluate("window.hit") is None
    assert page.page.locator(".composer").is_visible()
    assert page.page.url.startswith(echo_server.url)


def test_markup_in_a_users_own_message_is_text(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    page.ask(ATTACKS[1])
    assert page.get("user-text").inner_text() == ATTACKS[1]
    assert page.get("user-text").locator("*").count() == 0


def test_tables_lists_links_and_code_are_rendered_and_code_is_copied(
    open_page: OpenPage, echo_server: Server
) -> None:  # fmt: skip
    page = open_page(echo_server)
    page.ask(RICH)
    answer = page.get("markdown")
    assert answer.locator("h1").inner_text() == "Title"
    assert answer.locator("td").all_inner_texts() == ["tea", "40 mg"]
    link = answer.locator("a")
    assert (link.get_attribute("target"), link.get_attribute("rel")) == ("_blank", "noopener noreferrer nofollow")
    assert answer.locator("li").count() == 3 and answer.locator("sub").inner_text() == "2"
    assert "<div>shown as text</div>" in answer.locator("blockquote").inner_text()
    assert answer.locator(".code-head span").inner_text() == "python"
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answer.get_by_label("Copy python code").click()
    copied = page.page.evaluate("navigator.clipboard.readText()")
    assert copied.rstrip() == 'def f(x):\n    return x < 1 and "<b>"'
    assert answer.get_by_text("Copied").is_visible()
