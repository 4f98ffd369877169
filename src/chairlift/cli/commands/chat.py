"""`chairlift chat`: a conversation in the terminal, with a model of this process or with a server elsewhere."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from chairlift.cli.chat_backends import AnswerStats, ChatBackend, LocalBackend, Message, RemoteBackend
from chairlift.cli.console import Console, escape_control_chars
from chairlift.cli.settings import settings
from chairlift.core.errors import ChairliftError, ConfigError
from chairlift.llm.build import prepare
from chairlift.llm.model_names import no_model_given
from chairlift.llm.options import Options

PROMPT = "> "
HELP = """/help            this
/new             forget the conversation (the system message stays)
/system [TEXT]   say what the assistant is told first, or nothing
/retry           answer the last question again
/undo            forget the last question and its answer
/set NAME VALUE  a sampling option: /set temperature 0.7; /set alone shows them
/stats           show or hide what an answer took
/show            the conversation so far
/save FILE       write it as JSON
/load FILE       go on with one that was saved
/quit            leave (Ctrl-D, too); Ctrl-C ends an answer"""


def run(arguments: argparse.Namespace) -> int:
    """Chat until the user leaves; returns the exit code. Raises ConfigError, ModelError and ChatFailed."""
    console, environ = Console(quiet=arguments.quiet), settings.environment()
    sampling = settings.given(settings.CHAT_SETTINGS, arguments, environ)
    with _talker(arguments, console, environ) as talker:
        chat = ChatSession(talker, console, sampling, shows_counts=arguments.stats)
        if arguments.system is not None:
            chat.system(arguments.system)
        if arguments.quick is not None:
            return 0 if chat.ask(_quick(arguments.quick)) else 1
        console.say(f"{talker.name}; /help tells what can be done")
        return chat.run(_lines())


@contextmanager
def _talker(arguments: argparse.Namespace, console: Console, environ: Any) -> Iterator[ChatBackend]:
    if arguments.url is not None:
        yield RemoteBackend(arguments.url, arguments.model, environ.get("CHAIRLIFT_API_KEY", ""))
        return
    options = settings.given(settings.ENGINE, arguments, environ)
    prepared = prepare(arguments.model, cast("Options", options))
    console.say(f"loading {arguments.model}" if arguments.model else no_model_given())
    service = prepared.start()
    try:
        yield LocalBackend(service)
    finally:
        service.client.close()


def _quick(text: str) -> str:
    return sys.stdin.read() if text == "-" else text


def _lines() -> Iterator[str]:
    """Yield what the user types, line by line, with the terminal's own editing; ends with Ctrl-D."""
    if sys.stdin.isatty():
        with suppress(ImportError):
            import readline  # noqa: F401  # input() edits and remembers lines once it is there
    while True:
        try:
            yield input(PROMPT if sys.stdin.isatty() else "")
        except EOFError:
            return
        except KeyboardInterrupt:
            sys.stderr.write("\n/quit or Ctrl-D leaves\n")


class ChatSession:
    """One conversation. Owns its messages and the options of its answers."""

    def __init__(
        self, talker: ChatBackend, console: Console, options: dict[str, Any], *, shows_counts: bool = False
    ) -> None:
        self._talker = talker
        self._console = console
        self._options = dict(options)
        self._shows_counts = shows_counts
        self.messages: list[Message] = []
        self._commands: dict[str, Callable[[str], None]] = {
            "help": lambda _: print(HELP), "new": self._new, "system": self.system, "retry": self._retry,
            "undo": self._undo, "set": self._set, "stats": self._stats, "show": self._show, "save": self._save,
            "load": self._load,
        }  # fmt: skip

    def run(self, lines: Iterator[str]) -> int:
        """Answer line by line until there are no more, or until /quit; returns the exit code."""
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
        """Have a question answered; the conversation goes on with both only where there was an answer."""
        self.messages.append({"role": "user", "content": question})
        answer = self._answered()
        if answer is None:
            del self.messages[-1]
            return False
        self.messages.append({"role": "assistant", "content": answer})
        return True

    def _answered(self) -> str | None:
        """Print an answer as it comes; Ctrl-C keeps what there is of it."""
        counted, pieces = AnswerStats(), list[str]()
        try:
            with closing(self._talker.answer(self.messages, self._options, counted)) as said:  # type: ignore[type-var]
                for piece in said:
                    pieces.append(piece)
                    sys.stdout.write(escape_control_chars(piece, sys.stdout))
                    sys.stdout.flush()
        except KeyboardInterrupt:
            self._console.complain(" (ended)")
            return "".join(pieces)
        except ChairliftError as error:
            print()
            self._console.complain(error.message)
            return None
        print(flush=True)
        if self._shows_counts:
            self._console.complain(counted.line())
        return "".join(pieces)

    # -- commands --------------------------------------------------------------------------------------------------

    def _command(self, text: str) -> None:
        name, _, rest = text.partition(" ")
        command = self._commands.get(name)
        if command is None:
            self._console.complain(f"there is no /{name}; /help tells what there is")
            return
        try:
            command(rest.strip())
        except (ChairliftError, OSError, ValueError, argparse.ArgumentTypeError) as error:
            self._console.complain(getattr(error, "message", None) or str(error))

    def system(self, text: str) -> None:
        """Say what the assistant is told first; "" for nothing."""
        rest = [message for message in self.messages if message["role"] != "system"]
        self.messages = ([{"role": "system", "content": text}] if text else []) + rest

    def _new(self, _: str) -> None:
        self.messages = [message for message in self.messages if message["role"] == "system"]

    def _undo(self, _: str) -> None:
        self._taken_back()

    def _retry(self, _: str) -> None:
        question, answer = self._taken_back()
        if not self.ask(question):
            self.messages += [{"role": "user", "content": question}, *answer]

    def _taken_back(self) -> tuple[str, list[Message]]:
        """Forget the last question and what followed; returns both."""
        places = [place for place, message in enumerate(self.messages) if message["role"] == "user"]
        if not places:
            raise ConfigError("there is no question yet")
        question, *rest = self.messages[places[-1] :]
        del self.messages[places[-1] :]
        return str(question["content"]), rest

    def _set(self, text: str) -> None:
        known = {setting.name: setting for setting in settings.CHAT_SETTINGS}
        name, _, value = text.replace("-", "_", 1).partition(" ")
        if not name:
            print(json.dumps(self._options, ensure_ascii=False))
        elif name not in known:
            raise ConfigError(f"there is no option {name!r}; there is {', '.join(known)}")
        elif value:
            found = known[name].kind(value.strip())
            self._options[name] = [found] if known[name].many else found
        else:
            self._options.pop(name, None)

    def _stats(self, _: str) -> None:
        self._shows_counts = not self._shows_counts

    def _show(self, _: str) -> None:
        for message in self.messages:
            print(escape_control_chars(f"{message['role']}: {message['content']}", sys.stdout))

    def _save(self, name: str) -> None:
        if not name:
            raise ConfigError("/save needs the name of a file")
        Path(name).write_text(json.dumps(self.messages, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    def _load(self, name: str) -> None:
        if not name:
            raise ConfigError("/load needs the name of a file")
        found = json.loads(Path(name).read_text(encoding="utf-8"))
        if not isinstance(found, list) or not all(
            isinstance(each, dict) and isinstance(each.get("role"), str) and isinstance(each.get("content"), str)
            for each in found
        ):
            raise ConfigError(f"{name} holds no conversation")
        self.messages = found
