"""Files of a message: which can be attached, how their text is sent and kept, and what the page says about others."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support_browser import WebPage, findings
from support_pdf import pdf_in, pdf_of, pdf_with_fonts
from support_server import Server

pytestmark = pytest.mark.browser
OpenPage = Callable[..., WebPage]

NOTES = {"name": "notes.md", "mimeType": "text/markdown", "buffer": "# Naïve notes\n\nline two\n".encode()}
DROP = """(files) => {
  const transfer = new DataTransfer();
  for (const [name, text] of files) transfer.items.add(new File([text], name));
  const target = document.querySelector(".messages, .welcome");
  for (const type of ["dragover", "drop"]) {
    target.dispatchEvent(new DragEvent(type, { dataTransfer: transfer, bubbles: true, cancelable: true }));
  }
}"""
PASTE = """([name, text]) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([text], name));
  const event = new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true, cancelable: true });
  document.getElementById("composer").dispatchEvent(event);
  return event.defaultPrevented;
}"""

COUNT_CLEANUPS = """
  window.cleanups = 0; // messages to the worker of pdf.js that make it forget fonts
  const send = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function (message, ...more) {
    if (message?.action === "Cleanup") window.cleanups += 1;
    return send.call(this, message, ...more);
  };"""

ENCODED = {
    "90ms-RKSJ-H": ("Japan1", "cp932", "日本語のテスト"),
    "UniJIS-UTF16-H": ("Japan1", "utf-16-be", "東京の会議"),
    "UniGB-UCS2-H": ("GB1", "utf-16-be", "简体中文的文件"),
    "GBK-EUC-H": ("GB1", "gbk", "第一章：简介"),
    "ETen-B5-H": ("CNS1", "big5", "繁體中文的文件"),
    "KSCms-UHC-H": ("Korea1", "cp949", "한국어 문서"),
}
"""Encoding of a font -> its character collection, Python's name of the encoding, and a text."""


def as_pdf(data: bytes, name: str = "report.pdf") -> dict[str, Any]:
    return {"name": name, "mimeType": "application/pdf", "buffer": data}


def attach(page: WebPage, *files: dict[str, Any]) -> None:
    page.get("file-chooser").set_input_files(list(files))


def wait_for_files(page: WebPage, *names: str) -> None:
    """Wait until the composer has exactly these files, all of them read."""
    page.page.wait_for_function(
        "names => [...document.querySelectorAll('.composer .file-name')].map(each => "
        "each.disabled ? '' : each.querySelector('.file-title').textContent).join('|') === names", arg="|".join(names),
    )  # fmt: skip


def error_of(page: WebPage, *files: dict[str, Any]) -> str:
    """Return what the page says about files that cannot be attached."""
    attach(page, *files)
    text = str(page.get("file-errors").inner_text())
    wait_for_files(page)
    page.page.get_by_label("Close this message").click()
    page.get("file-errors").wait_for(state="detached")
    return text


def test_files_are_sent_before_the_question_and_stay_with_the_message(
    open_page: OpenPage, echo_server: Server
) -> None:  # fmt: skip
    page = open_page(echo_server)
    bodies = page.requests_to("/v1/chat/completions")
    attach(page, NOTES)
    wait_for_files(page, "notes.md")
    page.page.evaluate(DROP, [["data.csv", "a,b\n1,2"], ["tags.xml", "<file>x</file>"]])
    wait_for_files(page, "notes.md", "data.csv", "tags.xml")
    assert page.page.evaluate(PASTE, ["gone.log", "x"]) is True
    wait_for_files(page, "notes.md", "data.csv", "tags.xml", "gone.log")
    page.page.get_by_label("Remove gone.log").click()
    assert page.page.evaluate("document.activeElement.id") == "composer"
    page.page.reload()
    wait_for_files(page, "notes.md", "data.csv", "tags.xml")
    page.ask("What is in them?")
    sent = (
        '<file name="notes.md">\n# Naïve notes\n\nline two\n</file>\n\n<file name="data.csv">\na,b\n1,2\n</file>\n\n'
        '<file-2 name="tags.xml">\n<file>x</file>\n</file-2>\n\nWhat is in them?'
    )
    assert [message["content"] for message in bodies[0]["messages"]] == [sent]
    wait_for_files(page)
    message = page.page.locator(".user-message")
    assert message.locator(".file-title").all_inner_texts() == ["notes.md", "data.csv", "tags.xml"]
    assert message.locator(".file-size").first.inner_text() == "25 bytes"
    assert page.get("user-text").inner_text() == "What is in them?"
    page.page.reload()
    page.page.wait_for_selector(".user-message .file")
    page.page.get_by_label("Answer again").click()
    page.page.wait_for_function("() => document.querySelector('[data-testid=stop]')")
    page.wait_for_answers(1)
    message.hover()
    page.page.get_by_label("Edit message").click()
    page.get("editor").fill("And now?")
    page.page.locator(".editor").get_by_label("Remove data.csv").click()
    page.get("editor").press("Enter")
    page.page.wait_for_function("() => document.querySelector('.user-text')?.textContent === 'And now?'")
    page.wait_for_answers(1)
    assert bodies[1]["messages"][0]["content"] == sent
    edited = sent.replace("What is in them?", "And now?").replace('<file name="data.csv">\na,b\n1,2\n</file>\n\n', "")
    assert bodies[2]["messages"][0]["content"] == edited
    assert message.locator(".file-title").all_inner_texts() == ["notes.md", "tags.xml"]
    message.get_by_role("button", name="notes.md").click()
    assert "Naïve notes" in page.page.get_by_role("dialog", name="notes.md").inner_text()
    page.page.keyboard.press("Escape")
    page.page.get_by_role("dialog").wait_for(state="detached")


def test_the_text_of_a_pdf_is_read_by_a_library_that_is_loaded_then(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    urls: list[str] = []
    page.context.on("request", lambda request: urls.append(request.url))
    bodies = page.requests_to("/v1/chat/completions")
    attach(page, as_pdf(pdf_of(["Hello of page one", "", "Third page"])))
    wait_for_files(page, "report.pdf")
    page.ask("")
    assert bodies[0]["messages"][0]["content"] == (
        '<file name="report.pdf">\n[Page 1]\nHello of page one\n\n[Page 2]\n\n\n[Page 3]\nThird page\n</file>'
    )
    assert page.page.locator("h1").inner_text() == "report.pdf", "a conversation without a question has a file's name"
    assert [url for url in urls if "pdfjs-" not in url and "/v1/" not in url and not url.endswith("readyz")] == []
    attach(page, {"name": "format.md", "mimeType": "text/markdown", "buffer": b"A PDF begins with %PDF-1.4."},
           {"name": "unnamed", "mimeType": "", "buffer": b"\n" + pdf_of(["In it"])})  # fmt: skip
    wait_for_files(page, "format.md", "unnamed")
    page.ask("")
    assert "begins with %PDF-1.4." in (sent := bodies[1]["messages"][-1]["content"]) and "[Page 1]\nIn it" in sent
    attach(page, as_pdf(pdf_of(["x"])[:-700] + b"\x00" * 10, "cut.pdf"))
    page.page.wait_for_function("() => !document.querySelector('.composer .file-name:disabled')")


def test_fonts_with_predefined_encodings_give_their_text_by_character_maps_that_are_loaded_once(
    open_page: OpenPage, echo_server: Server
) -> None:
    page = open_page(echo_server)
    urls: list[str] = []
    page.context.on("request", lambda request: urls.append(request.url))
    bodies = page.requests_to("/v1/chat/completions")
    for encoding, (ordering, codec, text) in ENCODED.items():
        attach(page, as_pdf(pdf_in(encoding, ordering, text.encode(codec)), f"{encoding}.pdf"))
        wait_for_files(page, f"{encoding}.pdf")
        page.ask("")
        sent = bodies[-1]["messages"][-1]["content"]
        assert sent == f'<file name="{encoding}.pdf">\n[Page 1]\n{text}\n</file>'
    assert len([url for url in urls if "pdfjs-cmaps-" in url]) == 1, urls


def test_a_font_without_a_character_map_is_named_with_the_reason(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    japanese = as_pdf(pdf_in("90ms-RKSJ-H", "Japan1", "日本".encode("cp932")))
    page.page.route("**/pdfjs-cmaps-*", lambda route: route.fulfill(status=503))
    missing = "“report.pdf” could not be read: the server did not send the character maps that its fonts need."
    assert error_of(page, japanese) == missing
    page.page.unroute("**/pdfjs-cmaps-*")
    attach(page, japanese)
    wait_for_files(page, "report.pdf")
    page.page.get_by_label("Remove report.pdf").click()
    for encoding, reason in (
        ("UniJIS-UTF8-H", "has text in an encoding for which this page has no character map."),
        (
            "Unknown-H",
            "has no text that can be read: its pages are pictures, or its fonts do not say which characters they show.",
        ),
    ):
        refused = as_pdf(pdf_in(encoding, "Japan1", "日本".encode()))
        assert error_of(page, refused) == f"“report.pdf” {reason} It needs text recognition first."


def test_fonts_of_many_pages_are_read_and_forgotten(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server, script=COUNT_CLEANUPS)
    attach(page, as_pdf(pdf_with_fonts([40] * 3, "90ms-RKSJ-H", "Japan1", "日".encode("cp932"))))
    wait_for_files(page, "report.pdf")
    bodies = page.requests_to("/v1/chat/completions")
    page.ask("")
    assert bodies[0]["messages"][0]["content"].count("日") == 120
    assert page.page.evaluate("window.cleanups") == 1


@pytest.mark.parametrize("phone", [False, True])
def test_what_cannot_be_attached_is_named_with_the_reason(
    open_page: OpenPage, echo_server: Server, phone: bool
) -> None:  # fmt: skip
    page = open_page(echo_server, phone=phone)
    text = {"mimeType": "text/plain"}
    refused = [
        (text | {"name": "photo.png", "buffer": b"\x89PNG\r\n\x1a\n\0\0"}, "“photo.png” is no text: files of text in"),
        (text | {"name": "old.txt", "buffer": "é".encode("latin-1")}, "“old.txt” is no text"),
        (text | {"name": "none.txt", "buffer": b""}, "“none.txt” is empty."),
        (text | {"name": "big.log", "buffer": b"x" * 1_200_000},
         "“big.log” has 1.2 MB; a text file may have at most 1 MB."),
        (as_pdf(pdf_of([""])), "“report.pdf” has no text that can be read: its pages are pictures, or its fonts do"),
        (as_pdf(pdf_of(["x"], is_protected=True)), "“report.pdf” is protected by a password. Save it without one"),
        (as_pdf(b"not a PDF at all"), "“report.pdf” is broken, or it is no PDF."),
        (as_pdf(pdf_with_fonts([150], "90ms-RKSJ-H", "Japan1", "日".encode("cp932"))),
         "“report.pdf” has more than 100 fonts on one page, which is the most."),
        (as_pdf(pdf_of([("word " * 100 + "\n") * 500] * 5)), "“report.pdf” has more than 1 MB of text, which is"),
    ]  # fmt: skip
    for file, expected in refused[:: 3 if phone else 1]:
        assert expected in error_of(page, file)
    files = [text | {"name": f"{number}.txt", "buffer": b"z" * 800_000} for number in range(4)]
    attach(page, *files)
    assert re.search(r"“\d.txt” does not fit: the files would have 3.2 MB of text, and a message may have at most 3 MB",
                     page.get("file-errors").inner_text())  # fmt: skip
    assert findings(page) == []
    assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    attach(page, *(text | {"name": f"many-{number}.txt", "buffer": b"a"} for number in range(9)))
    page.page.get_by_text("A message may have at most 10 files; 2 were left out.").wait_for()


def test_a_file_that_does_not_fit_the_context_is_said_with_both_numbers(
    open_page: OpenPage, demo_server: Server
) -> None:  # fmt: skip
    page = open_page(demo_server)
    attach(page, {"name": "long.txt", "mimeType": "text/plain", "buffer": b"many words of text " * 30_000})
    wait_for_files(page, "long.txt")
    page.send("Sum it up.")
    failure = page.get("failure").inner_text()
    numbers = [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]+", failure)]
    assert len(numbers) >= 2 and max(numbers) > 30_000 and min(numbers) < 30_000, failure
    assert page.page.locator(".user-message .file-title").inner_text() == "long.txt"


def test_a_reader_of_pdfs_that_cannot_be_loaded_is_said(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    page.page.route("**/pdfjs-*", lambda route: route.abort())
    assert "could not be read: the server did not send the reader of PDFs" in error_of(page, as_pdf(pdf_of(["x"])))


def test_a_file_on_the_disk_is_attached_by_the_button(open_page: OpenPage, echo_server: Server, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("print('<b>')\n", encoding="utf-8")
    page = open_page(echo_server)
    with page.page.expect_file_chooser() as chooser:
        page.page.get_by_label("Attach text files or PDFs").click()
    chooser.value.set_files(tmp_path / "main.py")
    wait_for_files(page, "main.py")
    assert "main.py is attached." in page.get("announcer").inner_text()
    assert page.get("send").is_enabled()


def test_files_stay_attached_where_nothing_is_sent_and_belong_to_each_version(
    open_page: OpenPage, echo_server: Server
) -> None:
    page = open_page(echo_server)
    bodies = page.requests_to("/v1/chat/completions")
    page.page.get_by_role("button", name="Settings").click()
    page.get("temperature").fill("9")
    page.get("file-chooser").set_input_files([NOTES])
    page.send("what is this?")
    assert "Nothing was sent." in page.get("notice").inner_text()
    assert page.get("file").count() == 1 and page.get("composer").input_value() == "what is this?"
    page.get("temperature").fill("")
    page.get("composer").press("Enter")
    page.wait_for_answers(1)
    page.page.get_by_label("Edit message").first.click(force=True)
    page.get("editor").fill("and this?")
    page.get("editor").press("Enter")
    page.get("versions").wait_for()
    page.wait_for_answers(1)
    assert len(bodies) == 2 and all("line two" in body["messages"][0]["content"] for body in bodies)
    page.get("search").fill("LINE TWO")
    page.page.locator(".hit", has_text="line two").first.wait_for()
