"""Start Open WebUI and hold a chat with a tool in it, as its web page does: python open_webui_chat.py PROGRAM.

The environment names the server. The process ends when Open WebUI has sent the requests for title, tags and questions.
"""

import json
import subprocess
import sys
import time
import urllib.request
from typing import Any

from server_process.free_port import free_port

START_SECONDS, CHAT_SECONDS = 120.0, 20.0
MODEL, PROMPT = "recorded-model", "Read the note. When is lunch?"
QUESTION_ID, ANSWER_ID = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
TOOL = '''"""
title: Notes
"""


class Tools:
    def read_note(self, name: str) -> str:
        """
        Read a note.

        :param name: Its name.
        """
        return "Lunch is at noon."
'''
"""A tool of a user, which Open WebUI runs itself."""


class OpenWebUi:
    """A client of Open WebUI's own API.

    Args:
        url: its address.
    """

    def __init__(self, url: str) -> None:
        self._url, self._token = url, ""

    def sign_in(self) -> None:
        """Wait until it serves, and sign in as the one user of a server without accounts."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self._token = self.call("/api/v1/auths/signin", {"email": "", "password": ""})["token"]
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)

    def call(self, path: str, body: Any = None) -> Any:
        """Send a request, POST if it has a body, and return the answer's JSON."""
        headers = {"content-type": "application/json", "authorization": f"Bearer {self._token}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)

    def hold_chat(self) -> None:
        """Create the tool and a chat, and ask a question whose answer needs the tool."""
        self.call("/api/models")
        tool = {"id": "notes", "name": "Notes", "content": TOOL, "meta": {"description": "Notes"}}
        self.call("/api/v1/tools/create", tool)
        chat = self.call("/api/v1/chats/new", {"chat": _new_chat()})
        question = {
            "stream": True, "model": MODEL, "messages": [{"role": "user", "content": PROMPT}], "tool_ids": ["notes"],
            "params": {"function_calling": "native"}, "session_id": "1", "chat_id": chat["id"], "id": ANSWER_ID,
            "features": {"web_search": False, "image_generation": False, "code_interpreter": False},
            "background_tasks": {"title_generation": True, "tags_generation": True, "follow_up_generation": True},
        }  # fmt: skip
        self.call("/api/chat/completions", question)


def _new_chat() -> dict[str, Any]:
    shared = {"timestamp": 1_767_225_600, "content": ""}
    question = {**shared, "id": QUESTION_ID, "role": "user", "content": PROMPT, "parentId": None,
                "childrenIds": [ANSWER_ID], "models": [MODEL]}  # fmt: skip
    answer = {
        **shared,
        "id": ANSWER_ID,
        "role": "assistant",
        "parentId": QUESTION_ID,
        "childrenIds": [],
        "model": MODEL,
    }
    history = {"messages": {QUESTION_ID: question, ANSWER_ID: answer}, "currentId": ANSWER_ID}
    return {"title": "New Chat", "models": [MODEL], "messages": [], "history": history}


def main() -> None:
    """Run Open WebUI for one chat."""
    port = free_port()
    process = subprocess.Popen([sys.argv[1], "serve", "--host", "127.0.0.1", "--port", str(port)])
    try:
        client = OpenWebUi(f"http://127.0.0.1:{port}")
        client.sign_in()
        client.hold_chat()
        time.sleep(CHAT_SECONDS)
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
