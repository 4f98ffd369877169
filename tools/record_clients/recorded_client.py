"""RecordedClient: how one client is started against a server, and which of its tools the stand-in server calls."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from record_clients.answer_formats import MODEL
from record_clients.scripted_answer import TEXT, ScriptedCall

TOOLS = Path(__file__).parents[1]
KEY = "sk-recorded"
"""The key that every client sends."""

PROMPT = "Read note.txt, then write answer.txt. When is lunch?"
NOTE = "Lunch is at noon.\n"
"""Content of the file note.txt in the client's working folder."""


@dataclass(frozen=True, slots=True)
class RecordedClient:
    """One client and its session.

    In commands, variables, files and calls {url} is the server's address without a path, {model} the model, {prompt}
    what the user asks, {key} the key, {home} the folder of the client's settings and {work} its working folder;
    {programs} is the folder of its program, {python} and {tools} are those of this repository.

    Attributes:
        name: the client's name in the file of its session.
        commands: command lines that are run one after another; the first word is a program of its installation.
        version: command line that writes its version.
        environ: environment variables beside PATH, HOME and the folders of settings.
        files: path below {home} -> content of a settings file.
        script: the calls with which the server answers.
        texts: the texts behind them.
        prompts: lines for its standard input.
        needs_git: whether the working folder is a repository.
    """

    name: str
    commands: Sequence[Sequence[str]]
    version: Sequence[str]
    environ: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    script: Sequence[ScriptedCall] = ()
    texts: Sequence[str] = (TEXT,)
    prompts: Sequence[str] = ()
    needs_git: bool = False


def client_environ(client: RecordedClient, values: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a client, which has nothing of this process but PATH."""
    home = values["home"]
    return {
        "PATH": f"{values['programs']}:{os.environ['PATH']}", "HOME": home, "LANG": "C.UTF-8", "TERM": "dumb",
        "XDG_CONFIG_HOME": f"{home}/.config", "XDG_DATA_HOME": f"{home}/.local/share",
        "XDG_CACHE_HOME": f"{home}/.cache", "XDG_STATE_HOME": f"{home}/.local/state",
        **{name: fill(value, values) for name, value in client.environ.items()},
    }  # fmt: skip


def fill(text: str, values: Mapping[str, str]) -> str:
    """Return a text with each {name} of the values replaced; other braces stay."""
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    return text


def prepare_folders(
    client: RecordedClient, folder: Path, url: str, programs: Path, *, model: str = MODEL, prompt: str = PROMPT
) -> dict[str, str]:
    """Write a client's settings and working folder below a folder; return the values for `fill`."""
    home, work = folder / "home", folder / "work"
    home.mkdir(parents=True)
    work.mkdir()
    values = {"url": url, "model": model, "prompt": prompt, "key": KEY, "home": str(home), "work": str(work),
              "programs": str(programs), "python": sys.executable, "tools": str(TOOLS)}  # fmt: skip
    (work / "note.txt").write_text(NOTE, encoding="utf-8")
    for name, content in client.files.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fill(content, values), encoding="utf-8")
    if client.needs_git:
        identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
        for words in (["init", "--quiet"], ["add", "."], [*identity, "commit", "--quiet", "--message", "First"]):
            subprocess.run(["git", *words], cwd=work, check=True)
    return values
