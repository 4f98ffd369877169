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
    "hr", "i", "input", "ins", "kbd", "li", "mark", "ol", "p", "pre", "s", "small", "span", "strong", "sub", "summary",
    "sup", "table", "tbody", "td", "th", "thead", "tr", "u", "ul",
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


EVERYTHING = """# One

Setext
======

text *em* **strong** ~~del~~ `code` <u>u</u> <ins>ins</ins> line  
break <https://example.com> www.example.com me@example.com [title](https://example.com "a title") ![alt](https://x.invalid/y)

> quote
> > nested

3. three
   - nested
     1. deep
4. four

7. loose

8. list

- [x] done
- [ ] open

- [x] loose

- [ ] tasks

| left | center | right | none |
|:-----|:------:|------:|------|
| 1 | 2 | 3 | 4 |

***

```rust
fn main() {}
```

<details open>
<summary>More <b>b</b></summary>

Inside, with a list:

1. one

</details>

Outside.
"""  # noqa: W291

LOST = """async (text) => {
  const { blocksOf, fragmentOf } = await import(new URL("ui/lib/markdown.js", document.baseURI).href);
  const { marked } = await import(new URL("ui/vendor/marked-18.2.1.esm.js", document.baseURI).href);
  const made = document.createElement("template");
  made.innerHTML = marked.parse(text, { gfm: true, breaks: true });
  const shown = document.createElement("div");
  shown.append(...blocksOf(text).map(fragmentOf));
  const partsOf = (root) => [...root.querySelectorAll("*")].flatMap((each) => [each.localName,
    ...each.getAttributeNames().map((name) => `${each.localName} ${name}=${each.getAttribute(name)}`)]);
  const left = partsOf(shown);
  return partsOf(made.content ?? made).filter((part) => {
    const index = left.indexOf(part);
    if (index >= 0) left.splice(index, 1);
    return index < 0;
  });
}"""
"""Elements and attributes that marked makes of a text and the page does not show."""


def test_everything_that_markdown_makes_is_shown(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    lost = page.page.evaluate(LOST, EVERYTHING)
    images = ["img", "img src=https://x.invalid/y", "img alt=alt"]
    assert lost == [*images, "code class=language-rust"], "an image is a link, a language is a name above the code"
    page.ask(EVERYTHING)
    answer = page.get("markdown")
    aligned = "getComputedStyle(each).textAlign"
    assert answer.locator("td").evaluate_all(f"all => all.map(each => {aligned})") == [
        "left",
        "center",
        "right",
        "left",
    ]
    assert answer.locator("ol").first.get_attribute("start") == "3"
    boxes = answer.get_by_role("checkbox")
    assert [box.is_checked() for box in boxes.all()] == [True, False, True, False]
    assert answer.locator("details li").inner_text() == "one"
    assert answer.locator("details").get_by_text("Outside.").count() == 0
