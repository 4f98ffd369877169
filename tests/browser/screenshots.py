"""Screenshots of the web page: `PYTHONPATH=src:tests python tests/browser/screenshots.py FOLDER [VIEW ..]`.

Each view is written in four kinds; docs/images has those that pages of docs/ show.

A server with the demo model, or a fleet of two, runs behind the page. The conversation of the chat is put into the
browser's storage; batch and fleet compute requests while the pictures are taken.
"""

import contextlib
import io
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

from support_browser import WebPage, open_chromium
from support_repeated import repeated
from support_server import ADMIN_KEY, real_server, running_server

CLIENTS = 14
LIVE_SECONDS = 12
ENTER_KEY = f"sessionStorage.setItem('chairlift.admin-key', {json.dumps(ADMIN_KEY)})"

TITLES = ("What is a KV cache?", "Prime numbers in Rust", "Names for a mountain railway", "Haiku about queues")
QUESTION = "Why is continuous batching faster? Show the loop, please."
REASONING = "The user wants the reason and a short loop. A table makes the difference clear."
ANSWER = """With **continuous batching**, requests join and leave the running batch at every step. A short answer no
longer waits for a long one:

| | static batch | continuous batch |
|---|---|---|
| a new request waits for | the whole batch | one step |
| a finished row | computes padding | gives its place away |

```python
while engine.has_requests():
    plan = scheduler.schedule(max_batch_tokens=2048)
    result = runner.run(plan)
    scheduler.commit(result)  # finished rows leave, others join
```

Each step has a budget of tokens: decoding rows take one each, and prompts fill what is left in `chunks`.
"""

FILL = """async ([titles, messages]) => {
  const database = await new Promise((resolve) => {
    const request = indexedDB.open("chairlift", 1);
    request.onsuccess = () => resolve(request.result);
  });
  const transaction = database.transaction(["conversations", "messages"], "readwrite");
  titles.forEach((title, index) => {
    const updated = Date.now() - [0, 2, 26, 50, 80][index] * 3600000;
    transaction.objectStore("conversations").put({ id: `c${index}`, title, updated, count: 2, parameters: {} });
    transaction.objectStore("messages").put(messages, `c${index}`);
  });
  await new Promise((resolve) => { transaction.oncomplete = resolve; });
  localStorage.setItem("chairlift.conversation", "c0");
}"""


def messages() -> list[dict[str, Any]]:
    """Return the conversation as the page keeps it."""
    stats = {"ttft": 0.183, "tokens": 164, "isCounted": True, "prompt": 31, "cached": 16, "rate": 62.4}
    return [
        {"id": "0", "role": "user", "content": "Why is it faster?", "parent": None},
        {"id": "1", "role": "user", "content": QUESTION, "parent": None},
        {"id": "2", "role": "assistant", "content": ANSWER.replace("no\nlonger", "no longer"), "reasoning": REASONING,
         "toolCalls": [], "stats": stats, "finish": "stop", "usage": {"prompt_tokens": 31, "completion_tokens": 164}},
    ]  # fmt: skip


def save(page: WebPage, path: Path) -> None:
    """Write the window as a PNG, compressed as far as its colors allow."""
    Image.open(io.BytesIO(page.page.screenshot())).convert("RGB").save(path, optimize=True)


def pages(browser: Any, url: str, view: str = "") -> Iterator[tuple[str, WebPage]]:
    """Yield the four kinds of page, open, with the admin key: desktop and phone, light and dark."""
    for phone in (False, True):
        for dark in (False, True):
            name = f"{'phone' if phone else 'desktop'}-{'dark' if dark else 'light'}"
            yield name, WebPage(browser, url, phone=phone, dark=dark, script=ENTER_KEY).open(view)


def chat(browser: Any, folder: Path) -> None:
    """Write chat-{desktop,phone}-{light,dark}.png."""
    titles = ["Continuous batching", *TITLES]
    with real_server("--served-model-name", "chairlift-demo") as server:
        for name, page in pages(browser, server.url):
            page.page.evaluate(FILL, [titles, json.loads(json.dumps(messages()))])
            page.page.reload()
            page.page.wait_for_selector(".code")
            page.page.wait_for_selector(".state[data-state=ready]")
            page.page.wait_for_timeout(500)
            save(page, folder / f"chat-{name}.png")
            page.check()
            page.close()


def traffic(url: str) -> contextlib.AbstractContextManager[None]:
    """Send chat requests of several lengths until the context ends."""

    def ask(rng: random.Random) -> None:
        words = " ".join(rng.choice(QUESTION.split()) for _ in range(rng.choice((10, 60, 240))))
        body = {
            "model": "chairlift:demo", "max_tokens": rng.choice((40, 120, 300)), "ignore_eos": True,
            "messages": [{"role": "user", "content": words}],
        }  # fmt: skip
        httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
        time.sleep(rng.random())

    return repeated([partial(ask, random.Random(number)) for number in range(CLIENTS)])


def live(browser: Any, folder: Path, view: str, command: str, *options: str) -> None:
    """Write VIEW-{desktop,phone}-{light,dark}.png of a server or a fleet that computes."""
    words = [sys.executable, "-m", "chairlift", command, "--port", "0", *options]
    with running_server(words, {"CHAIRLIFT_ADMIN_KEY": ADMIN_KEY}) as server:
        server.wait_until_ready()
        with traffic(server.url):
            made = list(pages(browser, server.url, f"#/{view}"))
            for _, page in made:
                page.page.wait_for_selector("[data-testid=live][data-state=open]")
            time.sleep(LIVE_SECONDS)
            for name, page in made:
                save(page, folder / f"{view}-{name}.png")
        for _, page in made:
            page.close()
        server.stop()


def main(folder: Path, views: Sequence[str]) -> None:
    """Write the pictures of the views into a folder."""
    with open_chromium() as browser, tempfile.TemporaryDirectory() as state:
        if "chat" in views:
            chat(browser, folder)
        if "batch" in views:
            live(browser, folder, "batch", "serve")
        if "fleet" in views:
            fleet = ("--min-replicas", "2", "--max-replicas", "3", "--state-dir", state)
            live(browser, folder, "fleet", "fleet", *fleet)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or ("chat", "batch", "fleet"))
