"""`chairlift chat`: a conversation in the terminal with a local model or with a server."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from chairlift.cli.chat_backends import AnswerStats, ChatBackend, LocalBackend, Message, RemoteBackend
from chairlift.cli.console import Console
from chairlift.cli.escape_control_chars import escape_control_chars
from chairlift.cli.settings import settings
from chairlift.cli.settings.resolve_settings import process_environment, resolve_group
from chairlift.core.errors import ChairliftError, ConfigError
from chairlift.core.file_writes import write_whole
from chairlift.llm.build import prepare
from chairlift.llm.builtin_models import no_model_given
from chairlift.llm.options import Options

PROMPT = "> "
HELP = """/help            list the commands
/new             start a new conversation, with the same system message
/system [TEXT]   set the system message; without TEXT remove it
/retry           answer the last question again
/undo            remove the last question and its answer
/set NAME VALUE  set a sampling setting, such as /set temperature 0.7; without VALUE reset it; /set alone lists them
/stats           turn tokens and speed after each answer on or off
/show            print the conversation
/save FILE       save the conversation as JSON
/load FILE       load a saved conversation
/quit            quit (also Ctrl-D); Ctrl-C stops an answer"""


def run(arguments: argparse.Namespace) -> int:
    """Chat until the user quits; returns the exit code.

    Raises ConfigError, ModelError and ChatFailed.
    """
    console, environ = Console(quiet=arguments.quiet), process_environment()
    sampling = resolve_group(settings.CHAT_SETTINGS, arguments, environ)
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
        self, backend: ChatBackend, console: Console, options: dict[str, Any], *, shows_stats: bool = False
    ) -> None:
        self._backend = backend
        self._console = console
        self._options = dict(options)
        self._shows_stats = shows_stats
        self.messages: list[Message] = []
        self._commands: dict[str, Callable[[str], None]] = {
            "help": lambda _: print(HELP), "new": self._new, "system": self.system, "retry": self._retry,
            "undo": self._undo, "set": self._set, "stats": self._stats, "show": self._show, "save": self._save,
            "load": self._load,
        }  # fmt: skip

    def run(self, lines: Iterator[str]) -> int:
        """Process lines until the last one or /quit; returns the exit code."""
        for line in lines:
            text = line.strip()
            if text in ("/quit", "/exit"):
                break
            if text.startswith("/"):
                self._command(text[1:])
            elif text:
                self.ask(line)
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
            with closing(self._backend.stream_answer(self.messages, self._options, stats)) as stream:  # type: ignore[type-var]
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

    def _command(self, text: str) -> None:
        name, _, argument = text.partition(" ")
        command = self._commands.get(name)
        if command is None:
            self._console.print_error(f"unknown command /{name}; /help lists the commands")
            return
        try:
            command(argument.strip())
        except (ChairliftError, OSError, ValueError, argparse.ArgumentTypeError) as error:
            self._console.print_error(getattr(error, "message", None) or str(error))

    def system(self, text: str) -> None:
        """Set the system message; "" removes it."""
        others = [message for message in self.messages if message["role"] != "system"]
        self.messages = ([{"role": "system", "content": text}] if text else []) + others

    def _new(self, _: str) -> None:
        self.messages = [message for message in self.messages if message["role"] == "system"]

    def _undo(self, _: str) -> None:
        self._remove_last_turn()

    def _retry(self, _: str) -> None:
        question, answer = self._remove_last_turn()
        if not self.ask(question):
            self.messages += [{"role": "user", "content": question}, *answer]

    def _remove_last_turn(self) -> tuple[str, list[Message]]:
        """Remove the last question and the messages after it; returns both."""
        questions = [index for index, message in enumerate(self.messages) if message["role"] == "user"]
        if not questions:
            raise ConfigError("the conversation has no question yet")
        question, *answer = self.messages[questions[-1] :]
        del self.messages[questions[-1] :]
        return str(question["content"]), answer

    def _set(self, text: str) -> None:
        known = {setting.name: setting for setting in settings.CHAT_SETTINGS}
        name, _, value = text.replace("-", "_", 1).partition(" ")
        if not name:
            print(json.dumps(self._options, ensure_ascii=False))
        elif name not in known:
            raise ConfigError(f"unknown setting {name!r}; available are {', '.join(known)}")
        elif value:
            try:
                parsed = known[name].parse(value.strip())
            except argparse.ArgumentTypeError as error:
                raise ConfigError(f"{name} {error}") from None
            self._options[name] = [parsed] if known[name].is_repeatable else parsed
        else:
            self._options.pop(name, None)

    def _stats(self, _: str) -> None:
        self._shows_stats = not self._shows_stats

    def _show(self, _: str) -> None:
        for message in self.messages:
            print(escape_control_chars(f"{message['role']}: {message['content']}", sys.stdout))

    def _save(self, name: str) -> None:
        if not name:
            raise ConfigError("/save needs a file name")
        text = json.dumps(self.messages, ensure_ascii=False, indent=1) + "\n"
        write_whole(name, text.encode("utf-8", "backslashreplace"))

    def _load(self, name: str) -> None:
        if not name:
            raise ConfigError("/load needs a file name")
        messages = json.loads(Path(name).read_text(encoding="utf-8"))
        if not isinstance(messages, list) or not all(
            isinstance(each, dict) and isinstance(each.get("role"), str) and isinstance(each.get("content"), str)
            for each in messages
        ):
            raise ConfigError(f"{name} is not a saved conversation: a list of messages with role and content")
        self.messages = messages
