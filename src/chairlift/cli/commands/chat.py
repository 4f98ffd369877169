"""`chairlift chat`: a conversation in the terminal with a local model or with a server."""

import argparse
import difflib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from chairlift.cli.chat_backends import AnswerStats, ChatBackend, LocalBackend, Message, RemoteBackend
from chairlift.cli.chat_sampling import ChatSampling
from chairlift.cli.console import Console
from chairlift.cli.escape_control_chars import escape_control_chars, escape_line
from chairlift.cli.http_request import error_reason
from chairlift.cli.settings import settings
from chairlift.cli.settings.resolve_settings import process_environment, resolve_group
from chairlift.core.errors import ChairliftError, ConfigError
from chairlift.core.file_writes import write_whole
from chairlift.llm.build import prepare
from chairlift.llm.builtin_models import no_model_given
from chairlift.llm.options import Options

PROMPT = "> "
SHOWN_CHARS = 50
"""Most characters of a message in the answer of a command."""

HELP = """\
/help            list the commands
/new             start a new conversation, with the same system message
/system [TEXT]   set the system message; without TEXT remove it
/retry           answer the last question again
/undo            remove the last question and its answer
/set NAME VALUE  set a sampling setting, such as /set temperature 0.7
                 /set NAME resets it, /set alone lists all
/stats           turn tokens and speed after each answer on or off
/show            print the conversation
/save FILE       save the conversation as JSON
/load FILE       load a saved conversation
/quit            quit (also Ctrl-D); Ctrl-C stops an answer

//TEXT asks the question /TEXT, which begins with a slash."""

ALIASES = {
    "": "help", "?": "help", "h": "help", "clear": "new", "reset": "new", "regenerate": "retry", "history": "show",
    "bye": "quit", "exit": "quit", "q": "quit",
}  # fmt: skip
"""Names that other chats have for commands."""


def run(arguments: argparse.Namespace) -> int:
    """Chat until the user quits; returns the exit code.

    Raises ConfigError, InvalidRequest, ModelError and ChatFailed.
    """
    console, environ = Console(quiet=arguments.quiet), process_environment()
    sampling = ChatSampling(resolve_group(settings.CHAT_SETTINGS, arguments, environ))
    with _open_backend(arguments, console, environ) as backend:
        chat = ChatSession(backend, console, sampling, shows_stats=arguments.stats)
        if arguments.system is not None:
            chat.system(arguments.system)
        if arguments.quick is not None:
            return 0 if chat.ask(_read_question(arguments.quick)) else 1
        console.print_line(f"{backend.name}; /help lists the commands")
        return chat.run(_read_lines())


@contextmanager
def _open_backend(arguments: argparse.Namespace, console: Console, environ: Any) -> Iterator[ChatBackend]:
    if arguments.url is not None:
        yield RemoteBackend(arguments.url, arguments.model, environ.get("CHAIRLIFT_API_KEY", ""))
        return
    options = resolve_group(settings.ENGINE, arguments, environ)
    prepared = prepare(arguments.model, cast("Options", options))
    console.print_line(f"loading {arguments.model}" if arguments.model else no_model_given())
    service = prepared.start()
    try:
        yield LocalBackend(service)
    finally:
        service.client.close()


def _read_question(text: str) -> str:
    return sys.stdin.read() if text == "-" else text


def _read_lines() -> Iterator[str]:
    """Yield the lines that the user types, with the terminal's line editing, until Ctrl-D."""
    if sys.stdin.isatty():
        with suppress(ImportError):
            import readline  # noqa: F401  # its import gives input() line editing and history
    while True:
        try:
            yield input(PROMPT if sys.stdin.isatty() else "")
        except EOFError:
            return
        except KeyboardInterrupt:
            sys.stderr.write("\n/quit or Ctrl-D quits\n")


class ChatSession:
    """One conversation: its messages and the sampling settings of its answers."""

    def __init__(
        self, backend: ChatBackend, console: Console, sampling: ChatSampling, *, shows_stats: bool = False
    ) -> None:
        self._backend = backend
        self._console = console
        self._sampling = sampling
        self._shows_stats = shows_stats
        self.messages: list[Message] = []
        self._commands: dict[str, Callable[[str], str]] = {
            "help": self._help, "new": self._new, "system": self.system, "retry": self._retry,
            "undo": self._undo, "set": self._set, "stats": self._stats, "show": self._show, "save": self._save,
            "load": self._load,
        }  # fmt: skip

    def run(self, lines: Iterator[str]) -> int:
        """Process lines until the last one or /quit; returns the exit code."""
        for line in lines:
            text = line.strip()
            if text.startswith("//"):
                self.ask(text[1:])
            elif not text.startswith("/"):
                if text:
                    self.ask(line)
            elif not self._run_command(text[1:]):
                break
        return 0

    def ask(self, question: str) -> bool:
        """Get the reply to a question and add both messages to the conversation.

        Returns False after an error, which adds neither.
        """
        self.messages.append({"role": "user", "content": question})
        answer = self._stream_answer()
        if answer is None:
            del self.messages[-1]
            return False
        self.messages.append({"role": "assistant", "content": answer})
        return True

    def _stream_answer(self) -> str | None:
        """Print an answer as it is generated and return it; Ctrl-C ends it early.

        Returns None after an error.
        """
        stats, deltas = AnswerStats(), list[str]()
        try:
            with closing(self._backend.stream_answer(self.messages, self._sampling.values, stats)) as stream:  # type: ignore[type-var]
                for delta in stream:
                    deltas.append(delta)
                    sys.stdout.write(escape_control_chars(delta, sys.stdout))
                    sys.stdout.flush()
        except KeyboardInterrupt:
            self._console.print_error(" (stopped)")
            return "".join(deltas)
        except ChairliftError as error:
            print()
            self._console.print_error(error.message)
            return None
        print(flush=True)
        if self._shows_stats:
            self._console.print_error(stats.summary())
        return "".join(deltas)

    # -- commands --------------------------------------------------------------------------------------------------

    def _run_command(self, text: str) -> bool:
        """Run a command and print its answer; returns False for /quit."""
        written, _, argument = text.partition(" ")
        name = ALIASES.get(written.lower(), written.lower())
        if name == "quit":
            return False
        command = self._commands.get(name)
        if command is None:
            similar = difflib.get_close_matches(name, [*self._commands, "quit", *ALIASES], n=1)
            shown = escape_line(written)
            hint = f"did you mean /{similar[0]}?" if similar else f"/help lists the commands, //{shown} asks /{shown}"
            self._console.print_error(f"unknown command /{shown}; {hint}")
            return True
        try:
            if answer := command(argument.strip()):
                self._console.print_line(answer)
        except (ChairliftError, OSError, ValueError) as error:
            self._console.print_error(getattr(error, "message", None) or str(error))
        return True

    def _help(self, _: str) -> str:
        print(HELP)
        return ""

    def system(self, text: str) -> str:
        """Set the system message; "" removes it. Returns what changed."""
        before = [message["content"] for message in self.messages if message["role"] == "system"]
        others = [message for message in self.messages if message["role"] != "system"]
        self.messages = ([{"role": "system", "content": text}] if text else []) + others
        if text:
            return f"the system message is {_shortened(text)}"
        return f"removed the system message {_shortened(before[0])}" if before else "there is no system message"

    def _new(self, _: str) -> str:
        num_before = len(self.messages)
        self.messages = [message for message in self.messages if message["role"] == "system"]
        kept = " with the same system message" if self.messages else ""
        return f"new conversation{kept}, without {_num_messages(num_before - len(self.messages))} from before"

    def _undo(self, _: str) -> str:
        question, _answer = self._remove_last_turn()
        return f"removed the question {_shortened(question)} and its answer"

    def _retry(self, _: str) -> str:
        question, answer = self._remove_last_turn()
        if not self.ask(question):
            self.messages += [{"role": "user", "content": question}, *answer]
        return ""

    def _remove_last_turn(self) -> tuple[str, list[Message]]:
        """Remove the last question and the messages after it; returns both."""
        questions = [index for index, message in enumerate(self.messages) if message["role"] == "user"]
        if not questions:
            raise ConfigError("the conversation has no question yet")
        question, *answer = self.messages[questions[-1] :]
        del self.messages[questions[-1] :]
        return str(question["content"]), answer

    def _set(self, text: str) -> str:
        name, _, value = text.partition(" ")
        if name == "system":  # as Ollama has it
            return self.system(value.strip().strip('"'))
        if text not in ("", "parameter"):
            return self._sampling.set(text)
        print("\n".join(self._sampling.lines()))
        return ""

    def _stats(self, _: str) -> str:
        self._shows_stats = not self._shows_stats
        return f"tokens and speed after each answer are {'on' if self._shows_stats else 'off'}"

    def _show(self, _: str) -> str:
        for message in self.messages:
            print(escape_control_chars(f"{message['role']}: {message['content']}", sys.stdout))
        return "" if self.messages else "the conversation is empty"

    def _save(self, name: str) -> str:
        if not name:
            raise ConfigError("/save needs a file name")
        name = os.path.expanduser(name)  # no shell does it here
        text = json.dumps(self.messages, ensure_ascii=False, indent=1) + "\n"
        write_whole(name, text.encode("utf-8", "backslashreplace"))
        return f"saved {_num_messages(len(self.messages))} to {name}"

    def _load(self, name: str) -> str:
        if not name:
            raise ConfigError("/load needs a file name")
        name = os.path.expanduser(name)
        try:
            messages = json.loads(Path(name).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read {name}: {error_reason(error)}") from None
        except (ValueError, RecursionError):
            messages = None
        if not isinstance(messages, list) or not all(
            isinstance(each, dict) and isinstance(each.get("role"), str) and isinstance(each.get("content"), str)
            for each in messages
        ):
            raise ConfigError(f"{name} is not a saved conversation: a list of messages with role and content")
        num_before, self.messages = len(self.messages), messages
        dropped = f", without {_num_messages(num_before)} from before" if num_before else ""
        return f"loaded {_num_messages(len(messages))} from {name}{dropped}"


def _num_messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"


def _shortened(text: str) -> str:
    """Return the beginning of a text in quotes, on one line."""
    line = escape_line(" ".join(text.split()))
    return f'"{line}"' if len(line) <= SHOWN_CHARS else f'"{line[:SHOWN_CHARS]} ..."'
