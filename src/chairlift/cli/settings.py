"""Settings: each option of the command line declared once; its flag, environment name and help come from there.

A flag wins over the environment, the environment over the default. Imports no other room, so that --help is fast.
"""

import argparse
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PREFIX = "CHAIRLIFT_"
STRUCTURES = ("json_schema", "regex", "grammar", "choice")
TRUE, FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def whole(text: str) -> int:
    """Read an integer."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be an integer, got {text!r}") from None


def number(text: str) -> float:
    """Read a number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {text!r}") from None


def share_or_bytes(text: str) -> float | int:
    """Read a share such as 0.8, or bytes such as 4000000000, 4GiB, 500MB."""
    units = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
    amount = text.strip().upper()
    try:
        for unit, size in units.items():
            if amount.endswith(unit):
                return int(float(amount.removesuffix(unit)) * size)
        share = int(amount) if amount.isdecimal() and amount != "1" else float(amount)
        if not -math.inf < share < math.inf:
            raise ValueError
        return share
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"must be a share like 0.8 or bytes like 4GiB, got {text!r}") from None


def flag(text: str) -> bool:
    """Read a yes or no of the environment."""
    if text.lower() not in TRUE + FALSE:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(TRUE + FALSE)}, got {text!r}")
    return text.lower() in TRUE


def ids(text: str) -> tuple[int, ...]:
    """Read token ids with commas between them."""
    return tuple(whole(part) for part in text.split(","))


def biases(text: str) -> dict[int, float]:
    """Read ID=BIAS pairs with commas between them."""
    pairs = [part.partition("=") for part in text.split(",")]
    return {whole(token): number(bias) for token, _, bias in pairs}


def structure(text: str) -> dict[str, Any]:
    """Read KIND=TEXT, or KIND=@FILE, of a StructuredOutput."""
    kind, equals, value = text.partition("=")
    if kind == "json_object" and not equals:
        return {kind: True}
    if kind not in STRUCTURES or not equals:
        raise argparse.ArgumentTypeError(f"must be json_object or one of {', '.join(STRUCTURES)} with =, got {text!r}")
    if kind == "choice":
        return {kind: value.split("|")}
    if value.startswith("@"):
        try:
            with open(value[1:], encoding="utf-8") as file:
                value = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise argparse.ArgumentTypeError(f"cannot read {value[1:]}: {error}") from None
    return {kind: value}


def factories(text: str) -> dict[str, str]:
    """Read NAME=MODULE:FUNCTION pairs with commas between them."""
    pairs = [part.partition("=") for part in text.split(",")]
    return {name: where for name, _, where in pairs}


def size(text: str) -> int:
    """Read bytes such as 50000000, 50MB or 64MiB."""
    amount = share_or_bytes(text)
    if isinstance(amount, float) and not amount.is_integer():
        raise argparse.ArgumentTypeError(f"must be bytes like 50MB, got {text!r}")
    return int(amount)


def one_of(*names: str) -> Callable[[str], str]:
    """Make what reads one of these names."""

    def read(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"must be one of {', '.join(names)}, got {text!r}")
        return text

    return read


def shares(text: str) -> dict[str, float]:
    """Read NAME=SHARE pairs with commas between them; a name alone has the share 1."""
    pairs = [part.partition("=") for part in text.split(",")]
    return {name: number(share) if equals else 1.0 for name, equals, share in pairs}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One option.

    Attributes:
        name: of the keyword that takes its value.
        help: one line for --help.
        kind: turns text into the value; raises ArgumentTypeError.
        metavar: what stands for the value in --help.
        default: what holds when it is not given, as --help shows it; "" where the help says it.
        many: may be given several times; the value is a list.
        spelled: the flag's name where it is not `name`.
    """

    name: str
    help: str
    kind: Callable[[str], Any] = str
    metavar: str = "NAME"
    default: str | int | float = ""
    many: bool = False
    spelled: str = ""

    @property
    def dest(self) -> str:
        """Where argparse keeps it: two settings of one command may be for keywords of the same name."""
        return self.spelled or self.name

    @property
    def flag(self) -> str:
        """What one types: --max-tokens."""
        return "--" + (self.spelled or self.name).replace("_", "-")

    @property
    def environment(self) -> str:
        """The name in the environment: CHAIRLIFT_MAX_TOKENS."""
        return PREFIX + (self.spelled or self.name).upper()

    def add_to(self, group: argparse._ArgumentGroup) -> None:
        """Declare it to argparse; not given means absent."""
        shown = self.help if self.default == "" else f"{self.help} (default {self.default})"
        if self.kind is flag:
            action: Any = argparse.BooleanOptionalAction
            group.add_argument(self.flag, dest=self.dest, action=action, default=argparse.SUPPRESS, help=shown)
        else:
            group.add_argument(
                self.flag, dest=self.dest, type=self.kind, metavar=self.metavar, default=argparse.SUPPRESS,
                help=shown, action="append" if self.many else "store",
            )  # fmt: skip

    def from_environment(self, text: str) -> Any:
        """Read the environment's text. Raises ArgumentTypeError naming the variable."""
        try:
            value = self.kind(text)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"{self.environment} {error}") from None
        return [value] if self.many else value


SAMPLING = (
    Setting(name="max_tokens", kind=whole, metavar="N", default=256, help="output tokens at most"),
    Setting(name="min_tokens", kind=whole, metavar="N", default=0, help="output tokens at least"),
    Setting(name="temperature", kind=number, metavar="T", help="0 is greedy, at most 2 (default: the model's, else 1)"),
    Setting(name="top_k", kind=whole, metavar="K", help="keep the K likeliest tokens, 0 keeps all"),
    Setting(name="top_p", kind=number, metavar="P", help="keep the likeliest tokens that reach this probability"),
    Setting(name="min_p", kind=number, metavar="P", help="drop tokens below this share of the likeliest one"),
    Setting(name="typical_p", kind=number, metavar="P", help="keep the tokens of typical surprise that reach this"),
    Setting(name="epsilon_cutoff", kind=number, metavar="P", help="drop tokens less likely than this"),
    Setting(name="eta_cutoff", kind=number, metavar="P", help="the same, with a bound that falls with the entropy"),
    Setting(name="repetition_penalty", kind=number, metavar="X", help="divide the logits of tokens seen anywhere"),
    Setting(name="presence_penalty", kind=number, metavar="X", default=0, help="subtract for tokens in the output"),
    Setting(name="frequency_penalty", kind=number, metavar="X", default=0, help="subtract for each time in the output"),
    Setting(name="no_repeat_ngram_size", kind=whole, metavar="N", help="no run of N tokens appears twice"),
    Setting(name="bad_words", many=True, metavar="TEXT", spelled="bad_word", help="this is not written"),
    Setting(name="bad_words_ids", kind=ids, many=True, metavar="ID,..", help="these tokens do not follow each other"),
    Setting(name="allowed_token_ids", kind=ids, metavar="ID,..", help="only these tokens are drawn"),
    Setting(name="logit_bias", kind=biases, metavar="ID=X,..", help="add to the logits of these token ids"),
    Setting(name="seed", kind=whole, metavar="N", help="of the draws (default: one is drawn, and shown)"),
    Setting(name="stop", many=True, metavar="TEXT", help="end where this text appears; may be given several times"),
    Setting(name="stop_token_ids", kind=ids, metavar="ID,..", help="end at these token ids, too"),
    Setting(name="include_stop_str_in_output", kind=flag, spelled="include_stop", help="keep the stop text"),
    Setting(name="ignore_eos", kind=flag, help="the model's end-of-text tokens do not end the output"),
    Setting(name="skip_special_tokens", kind=flag, help="leave special tokens out of the text (default)"),
    Setting(name="logprobs", kind=whole, metavar="K", help="log-probabilities of each token and the K likeliest"),
    Setting(name="prompt_logprobs", kind=whole, metavar="K", help="the same of the prompt's tokens"),
    Setting(name="n", kind=whole, metavar="N", default=1, help="choices"),
    Setting(name="best_of", kind=whole, metavar="N", help="draw so many and keep the n likeliest"),
    Setting(name="echo", kind=flag, help="the text begins with the prompt"),
    Setting(name="structured", kind=structure, metavar="KIND=TEXT",
            help="json_schema=, regex=, grammar= (TEXT or @FILE), json_object, choice=A|B: what the output has to be"),
    Setting(name="logits_processors", many=True, metavar="NAME", spelled="logits_processor",
            help="one of those that --logits-processor-factories names"),
)  # fmt: skip

ENGINE = (
    Setting(name="dtype", default="auto", help="auto (the checkpoint's), float64, float32, bfloat16, float16"),
    Setting(name="device", default="auto", help="auto, cpu, cuda, cuda:1 or another torch device"),
    Setting(name="revision", help="branch, tag or commit of a hub id"),
    Setting(name="max_model_len", kind=whole, metavar="N", help="tokens of a request, prompt and output"),
    Setting(name="max_batch_tokens", kind=whole, metavar="N", default=2048, help="tokens in one step"),
    Setting(name="max_running_requests", kind=whole, metavar="N", default=256, help="requests that ride at once"),
    Setting(name="max_prefill_tokens", kind=whole, metavar="N", help="prompt tokens in one step"),
    Setting(name="long_prefill_threshold", kind=whole, metavar="N", help="those of one request while others want some"),
    Setting(name="max_chunk_tokens", kind=whole, metavar="N", help="those of one request in any step"),
    Setting(name="max_queue_size", kind=whole, metavar="N", default=100_000, help="requests in line"),
    Setting(name="block_size", kind=whole, metavar="N", default=16, help="tokens in a page of the KV cache"),
    Setting(name="num_blocks", kind=whole, metavar="N", help="pages of the KV cache (default: what memory allows)"),
    Setting(name="max_memory", kind=share_or_bytes, metavar="X", help="for the KV cache: a share of the free, or 4GiB"),
    Setting(name="enable_prefix_caching", kind=flag, spelled="prefix_caching", help="share equal prefixes (default)"),
    Setting(name="overlap", kind=flag, help="two launches in flight"),
    Setting(name="policy", default="fifo", help="order of the line: fifo, priority, fair, cache_aware"),
    Setting(name="priority_ageing", kind=number, metavar="S", default=10, help="of priority: waiting worth one step"),
    Setting(name="tenant_weights", kind=shares, metavar="T=W,..", help="of fair: shares of service, 1 for others"),
    Setting(name="batching", default="mixed", help="mixed, fifo, prefill_first, decode_first, static"),
    Setting(name="safety_margin", kind=number, metavar="X", help="of batching fifo: free blocks kept for generating"),
    Setting(name="target_itl_ms", kind=number, metavar="MS", help="milliseconds of a step in which somebody generates"),
    Setting(name="attention_backend", default="auto", help="how attention is computed: torch, reference"),
    Setting(name="logits_processors", kind=factories, metavar="NAME=MODULE:FUNCTION,..",
            spelled="logits_processor_factories", help="logits processors that requests may choose"),
    Setting(name="profile", metavar="FILE", help="write a trace of the steps there; it opens in Perfetto"),
    Setting(name="client", default="inline", help="inline: the engine in a thread; process: in its own process"),
)  # fmt: skip


LOGGING = (
    Setting(name="log_level", kind=one_of("debug", "info", "warning", "error"), metavar="LEVEL", default="warning",
            help="what is logged: debug, info, warning, error"),
    Setting(name="log_format", kind=one_of("human", "json"), metavar="FORMAT", default="human", help="human or json"),
    Setting(name="log_file", metavar="FILE", help="log there too"),
    Setting(name="log_file_size", kind=size, metavar="BYTES", default="50MB", help="at which the file is rotated"),
    Setting(name="log_backups", kind=whole, metavar="N", default=5, help="rotated files that are kept"),
)  # fmt: skip

DEFAULT_WORKLOAD = "longtail"
WORKLOAD = (
    Setting(
        name="workload",
        default=DEFAULT_WORKLOAD,
        help="longtail, broadtail, uniform, prefix, w1, w2, w3 or a FILE.jsonl",
    ),
    Setting(name="requests", kind=whole, metavar="N", help="how many (default: the workload's own number)"),
    Setting(name="rate", kind=number, metavar="R", help="they arrive at random, R a second (default: all at once)"),
    Setting(name="tenants", kind=shares, metavar="A=10,B=1", help="they belong to these, by shares of the load"),
    Setting(name="seed", kind=whole, metavar="N", default=0, help="of everything drawn"),
)


SIMULATED = tuple(
    setting for setting in ENGINE
    if setting.name
    not in (
        "dtype", "device", "revision", "max_memory", "attention_backend", "logits_processors", "profile", "client",
    )
)  # fmt: skip
"""Those of ENGINE that mean something without a model."""


def given(settings: Sequence[Setting], arguments: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what was asked for, by name: flags first, then the environment; what nobody set is absent.

    Raises ArgumentTypeError for an environment variable that cannot be read.
    """
    values: dict[str, Any] = {}
    for setting in settings:
        if hasattr(arguments, setting.dest):
            values[setting.name] = getattr(arguments, setting.dest)
        elif text := environ.get(setting.environment, ""):
            values[setting.name] = setting.from_environment(text)
    return values


def environment() -> Mapping[str, str]:
    """The process's own."""
    return os.environ
