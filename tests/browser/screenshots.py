"""Screenshots of the chat for docs/images: `PYTHONPATH=src:tests python tests/browser/screenshots.py docs/images`.

A server with the demo model runs behind the page; the conversation is put into the browser's storage.
"""

import io
import json
import sys
from pathlib import Path
from typing import Any

from PIL import Image

from support_browser import WebPage, open_chromium
from support_server import real_server

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
        {"id": "1", "role": "user", "content": QUESTION},
        {"id": "2", "role": "assistant", "content": ANSWER.replace("no\nlonger", "no longer"), "reasoning": REASONING,
         "toolCalls": [], "stats": stats, "finish": "stop"},
    ]  # fmt: skip


def save(page: WebPage, path: Path) -> None:
    """Write the window as a PNG, compressed as far as its colors allow."""
    Image.open(io.BytesIO(page.page.screenshot())).convert("RGB").save(path, optimize=True)


def main(folder: Path) -> None:
    """Write chat-{desktop,phone}-{light,dark}.png into a folder."""
    titles = ["Continuous batching", *TITLES]
    with real_server("--served-model-name", "chairlift-demo") as server, open_chromium() as browser:
        for phone in (False, True):
            for dark in (False, True):
                page = WebPage(browser, server.url, phone=phone, dark=dark).open()
                page.page.evaluate(FILL, [titles, json.loads(json.dumps(messages()))])
                page.page.reload()
                page.page.wait_for_selector(".code")
                page.page.wait_for_selector(".state[data-state=ready]")
                page.page.wait_for_timeout(500)
                save(page, folder / f"chat-{'phone' if phone else 'desktop'}-{'dark' if dark else 'light'}.png")
                page.check()
                page.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
