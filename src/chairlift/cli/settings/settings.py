"""Settings: each option declared once; its flag, its names in the environment and in a file, and its help follow.

A flag wins over the environment, the environment over the file, the file over the default. Imports no other room, so
that --help is fast.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from chairlift.cli.settings.value_parsers import (
    Kind,
    biases,
    factories,
    flag,
    goals,
    ids,
    number,
    numbers,
    one_of,
    share_or_bytes,
    shares,
    size,
    structure,
    whole,
)

PREFIX = "CHAIRLIFT_"
SECRETS = ("CHAIRLIFT_API_KEY", "CHAIRLIFT_ADMIN_KEY")
"""Variables that hold keys themselves, which no file holds and nothing prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One option.

    Attributes:
        name: of the keyword that takes its value.
        help: one line for --help.
        kind: turns text into the value; raises ArgumentTypeError.
        metavar: what stands for the value in --help.
        default: what holds when it is not given; "" where that is nothing, or `unset` says it.
        unset: what holds when it is not given, in words, where no value can say that: "the model's, else 1".
        many: may be given several times; the value is a list.
        spelled: the flag's name where it is not `name`.
        is_word: it is a word of the command line and has no flag.
        is_renewed: a server that is told to read its files again takes it over.
    """

    name: str
    help: str
    kind: Kind = str
    metavar: str = "NAME"
    default: str | int | float = ""
    default_text: str = ""
    many: bool = False
    flag_name: str = ""
    is_positional: bool = False
    is_reloadable: bool = False

    @property
    def dest(self) -> str:
        """Where argparse keeps it, and its key in a file; two settings may be for keywords of the same name."""
        return self.flag_name or self.name

    @property
    def flag(self) -> str:
        """What one types: --max-tokens."""
        return self.metavar if self.is_positional else "--" + self.dest.replace("_", "-")

    @property
    def environment(self) -> str:
        """The name in the environment: CHAIRLIFT_MAX_TOKENS."""
        return PREFIX + self.dest.upper()

    @property
    def shown_help(self) -> str:
        """What --help says of it."""
        if self.default_text:
            return f"{self.help} (default: {self.default_text})"
        if isinstance(self.default, bool):
            return f"{self.help} (default)" if self.default else self.help
        return self.help if self.default == "" else f"{self.help} (default {self.default})"

    def add_to(self, group: argparse._ActionsContainer) -> None:
        """Declare it to argparse; not given means absent, or None for a word."""
        if self.is_positional:
            group.add_argument(self.dest, nargs="?", metavar=self.metavar, help=self.shown_help)
        elif self.kind is flag:
            action: Any = argparse.BooleanOptionalAction
            group.add_argument(
                self.flag, dest=self.dest, action=action, default=argparse.SUPPRESS, help=self.shown_help
            )
        else:
            group.add_argument(
                self.flag, dest=self.dest, type=self.kind, metavar=self.metavar, default=argparse.SUPPRESS,
                help=self.shown_help, action="append" if self.many else "store",
            )  # fmt: skip

    def from_environment(self, text: str) -> Any:
        """Read the environment's text. Raises ArgumentTypeError naming the variable."""
        try:
            value = self.kind(text)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"{self.environment} {error}") from None
        return [value] if self.many else value


class SettingsFile(Protocol):
    """What a file says of settings."""

    def read(self, setting: Setting) -> tuple[Any, str] | None:
        """Return the value and where it stands ("serve.yaml line 3"), None for what is not there.

        Raises ArgumentTypeError with the place for what cannot be read.
        """
        ...


FLAG, ENVIRONMENT, FILE = "flag", "environment", "file"


@dataclass(frozen=True, slots=True)
class ResolvedSetting:
    """A setting that somebody made.

    Attributes:
        value: of it.
        source: FLAG, ENVIRONMENT or FILE.
        where: the flag, the variable, or the file with its line.
    """

    value: Any
    source: str
    where: str


CONFIG = Setting(name="config", metavar="FILE.yaml", help="a file of settings: max_batch_tokens: 4096")
MODEL = Setting(
    name="model", metavar="MODEL", is_positional=True, default_text="the embedded demo model",
    help="a Hugging Face model folder or hub id",
)  # fmt: skip

SAMPLING = (
    Setting(name="max_tokens", kind=whole, metavar="N", default=256, help="output tokens at most"),
    Setting(name="min_tokens", kind=whole, metavar="N", default=0, help="output tokens at least"),
    Setting(name="temperature", kind=number, metavar="T", default_text="the model's, else 1",
            help="0 is greedy, at most 2"),
    Setting(name="top_k", kind=whole, metavar="K", default_text="the model's, else 0",
            help="keep the K likeliest tokens, 0 keeps all"),
    Setting(name="top_p", kind=number, metavar="P", default_text="the model's, else 1",
            help="keep the likeliest tokens that reach this probability"),
    Setting(name="min_p", kind=number, metavar="P", default_text="the model's, else 0",
            help="drop tokens below this share of the likeliest one"),
    Setting(name="typical_p", kind=number, metavar="P", default_text="the model's, else 1",
            help="keep the tokens of typical surprise that reach this"),
    Setting(name="epsilon_cutoff", kind=number, metavar="P", default_text="the model's, else 0",
            help="drop tokens less likely than this"),
    Setting(name="eta_cutoff", kind=number, metavar="P", default_text="the model's, else 0",
            help="the same, with a bound that falls with the entropy"),
    Setting(name="repetition_penalty", kind=number, metavar="X", default_text="the model's, else 1",
            help="divide the logits of tokens seen anywhere"),
    Setting(name="presence_penalty", kind=number, metavar="X", default=0, help="subtract for tokens in the output"),
    Setting(name="frequency_penalty", kind=number, metavar="X", default=0, help="subtract for each time in the output"),
    Setting(name="no_repeat_ngram_size", kind=whole, metavar="N", default_text="the model's, else 0",
            help="no run of N tokens appears twice"),
    Setting(name="bad_words", many=True, metavar="TEXT", flag_name="bad_word", help="this is not written"),
    Setting(name="bad_words_ids", kind=ids, many=True, metavar="ID,..", help="these tokens do not follow each other"),
    Setting(name="allowed_token_ids", kind=ids, metavar="ID,..", help="only these tokens are drawn"),
    Setting(name="logit_bias", kind=biases, metavar="ID=X,..", help="add to the logits of these token ids"),
    Setting(name="seed", kind=whole, metavar="N", default_text="one is drawn, and shown", help="of the draws"),
    Setting(name="stop", many=True, metavar="TEXT", help="end where this text appears; may be given several times"),
    Setting(name="stop_token_ids", kind=ids, metavar="ID,..", help="end at these token ids, too"),
    Setting(name="include_stop_str_in_output", kind=flag, default=False, help="keep the stop text"),
    Setting(name="ignore_eos", kind=flag, default=False, help="the model's end-of-text tokens do not end the output"),
    Setting(name="skip_special_tokens", kind=flag, default=True, help="leave special tokens out of the text"),
    Setting(name="logprobs", kind=whole, metavar="K", help="log-probabilities of each token and the K likeliest"),
    Setting(name="prompt_logprobs", kind=whole, metavar="K", help="the same of the prompt's tokens"),
    Setting(name="n", kind=whole, metavar="N", default=1, help="choices"),
    Setting(name="best_of", kind=whole, metavar="N", help="draw so many and keep the n likeliest"),
    Setting(name="echo", kind=flag, default=False, help="the text begins with the prompt"),
    Setting(name="structured", kind=structure, metavar="KIND=TEXT",
            help="json_schema=, regex=, grammar= (TEXT or @FILE), json_object, choice=A|B: what the output has to be"),
    Setting(name="logits_processors", many=True, metavar="NAME", flag_name="logits_processor",
            help="one of those that --logits-processor-factories names"),
)  # fmt: skip

ENGINE = (
    Setting(name="dtype", default="auto", help="auto (the checkpoint's), float64, float32, bfloat16, float16"),
    Setting(name="device", default="auto", help="auto, cpu, cuda, cuda:1 or another torch device"),
    Setting(name="revision", help="branch, tag or commit of a hub id"),
    Setting(name="max_model_len", kind=whole, metavar="N", default_text="the model's own limit",
             help="tokens of a request, prompt and output"),
    Setting(name="max_batch_tokens", kind=whole, metavar="N", default=2048, help="tokens in one step"),
    Setting(name="max_running_requests", kind=whole, metavar="N", default=256, help="requests that ride at once"),
    Setting(name="max_prefill_tokens", kind=whole, metavar="N", default_text="256 on native kernels, else all that fit",
            help="prompt tokens in one step"),
    Setting(name="long_prefill_threshold", kind=whole, metavar="N", help="those of one request while others want some"),
    Setting(name="max_chunk_tokens", kind=whole, metavar="N", help="those of one request in any step"),
    Setting(name="max_queue_size", kind=whole, metavar="N", default=100_000, help="requests in line"),
    Setting(name="block_size", kind=whole, metavar="N", default=16, help="tokens in a page of the KV cache"),
    Setting(name="num_blocks", kind=whole, metavar="N", default_text="what memory allows",
            help="pages of the KV cache"),
    Setting(name="max_memory", kind=share_or_bytes, metavar="X", default_text="0.9 on a device, 0.5 on a host",
            help="for the KV cache: a share of the free, or 4GiB"),
    Setting(name="enable_prefix_caching", kind=flag, default=True,
            help="share equal prefixes"),
    Setting(name="overlap", kind=flag, default=False, help="two launches in flight"),
    Setting(name="scheduling_policy", default="fifo", help="order of the line: fifo, priority, fair, cache_aware"),
    Setting(name="priority_ageing", kind=number, metavar="S", default=10,
            help="of scheduling_policy priority: waiting that equals one level"),
    Setting(name="tenant_weights", kind=shares, metavar="T=W,..",
            help="of scheduling_policy fair: shares of service, 1 for others"),
    Setting(name="batching_policy", default="mixed", help="mixed, fifo, prefill_first, decode_first, static"),
    Setting(name="safety_margin", kind=number, metavar="X",
            help="of batching_policy fifo: free blocks kept for generating"),
    Setting(name="target_itl_ms", kind=number, metavar="MS", help="milliseconds of a step in which somebody generates"),
    Setting(name="attention_backend", default="auto", help="how attention is computed: torch, reference"),
    Setting(name="kernels", default="auto", help="of a CPU: native (Chairlift's own), torch"),
    Setting(name="quantization", default="none", help="of the weights: none, int8 (groups of 32), int8-channel"),
    Setting(name="cpu_threads", kind=whole, metavar="N", default_text="one a core, from three cores on one less",
            help="of the native kernels"),
    Setting(name="packed_weights_dir", metavar="DIR",
            help="keep weights packed for the native kernels there: fast starts"),
    Setting(name="logits_processor_factories", kind=factories,
            metavar="NAME=MODULE:FUNCTION,..", help="logits processors that requests may choose"),
    Setting(name="profile", metavar="FILE", help="write a trace of the steps there; it opens in Perfetto"),
    Setting(name="engine_mode", default="inline", help="inline: the engine in a thread; process: in its own process"),
)  # fmt: skip


LOGGING = (
    Setting(name="log_level", kind=one_of("debug", "info", "warning", "error"), metavar="LEVEL", default="warning",
            is_reloadable=True, help="what is logged: debug, info, warning, error"),
    Setting(name="log_format", kind=one_of("human", "json"), metavar="FORMAT", default="human", help="human or json"),
    Setting(name="log_file", metavar="FILE", help="log there too"),
    Setting(name="log_file_size", kind=size, metavar="BYTES", default="50MB", help="at which the file is rotated"),
    Setting(name="log_backups", kind=whole, metavar="N", default=5, help="rotated files that are kept"),
)  # fmt: skip

SERVER = (
    Setting(name="host", default="127.0.0.1", metavar="ADDRESS", help="where to listen"),
    Setting(name="port", kind=whole, metavar="N", default=8000, help="0 takes any that is free"),
    Setting(name="served_model_name", many=True, default_text="the model's",
             help="name of the model in the API; may be given several times"),
    Setting(name="key_file", metavar="FILE", help="API keys, a line each: TENANT sha256:HEX [admin]"),
    Setting(name="insecure", kind=flag, default=False, help="serve a public address without keys"),
    Setting(name="public_metrics", kind=flag, default=False, help="/metrics needs no key"),
    Setting(name="tls_cert", metavar="FILE", help="certificate chain (PEM); with --tls-key the server speaks TLS"),
    Setting(name="tls_key", metavar="FILE", help="its private key (PEM)"),
    Setting(name="cors_origins", many=True, metavar="ORIGIN", flag_name="cors_origin",
            help="its pages may use the API"),
    Setting(name="reject_unknown_fields", kind=flag, default=False,
            help="refuse requests with fields that have no effect"),
    Setting(name="max_body_bytes", kind=size, metavar="BYTES", default="4MB",
            help="of a request"),
    Setting(name="body_timeout", kind=number, metavar="S", default=30,
            help="in which a request's body has to come"),
    Setting(name="write_timeout", kind=number, metavar="S", default=30,
            help="in which a client has to take what is sent"),
    Setting(name="idle_timeout", kind=number, metavar="S", default=30,
            help="that a connection without a request is kept"),
    Setting(name="drain_timeout", kind=number, metavar="S", default=30,
            help="that open requests have when the server leaves"),
    Setting(name="max_waiting_requests", kind=whole, metavar="N", default=1024,
            is_reloadable=True, help="that wait for a first token"),
    Setting(name="max_waiting_tokens", kind=whole, metavar="N", default=1_000_000,
            is_reloadable=True, help="prompt tokens of those"),
    Setting(name="max_queue_wait", kind=number, metavar="S", default=2,
            is_reloadable=True, help="who would wait longer is refused, where 16 wait already"),
    Setting(name="tenant_requests_per_minute", kind=number, metavar="N",
            default_text="no limit", is_reloadable=True, help="that a tenant may begin in a minute"),
    Setting(name="tenant_tokens_per_minute", kind=number, metavar="N",
            default_text="no limit", is_reloadable=True, help="that a tenant may use in a minute"),
    Setting(name="tenant_max_open_requests", kind=whole, metavar="N",
            default_text="no limit", is_reloadable=True, help="that a tenant may have open"),
    Setting(name="metric_aliases", many=True, kind=one_of("vllm", "transformers"), metavar="SYSTEM",
            flag_name="metric_alias", help="metrics under these names, too: vllm, transformers"),
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

LOAD_SETTINGS = (
    *(setting for setting in WORKLOAD if setting.name in ("workload", "seed")),
    Setting(name="requests", kind=whole, metavar="N", help="of a phase at most"),
    Setting(name="rate", kind=numbers, metavar="R,..",
            help="requests a second, whatever the answers do; several are phases"),
    Setting(name="concurrency", kind=whole, metavar="N", help="so many at a time (default 32, for overload 64)"),
    Setting(name="overload", kind=numbers, metavar="X,..",
            help="find the capacity, then ask for 1, X, .. times as much"),
    Setting(name="rounds", kind=whole, metavar="N", default=1, help="of --overload; medians of all are judged"),
    Setting(name="duration", kind=number, metavar="S", default=30, help="of a phase, where --requests does not end it"),
    Setting(name="pause", kind=number, metavar="S", default=2, help="between phases"),
    Setting(name="arrivals", kind=one_of("poisson", "even"), metavar="KIND", default="poisson", help="poisson or even"),
    Setting(name="timeout", kind=number, metavar="S", default=120, help="that a request may take"),
    Setting(name="slo", kind=goals, metavar="ttft=S,..",
            help="limits of a good answer: ttft, tpot, itl, e2e (default: it ended well)"),
    Setting(name="chat", kind=flag, default=False, help="ask /v1/chat/completions, in words"),
    Setting(name="text", kind=flag, default=False, help="ask /v1/completions in words instead of token ids"),
    Setting(name="vocab_size", kind=whole, metavar="N", default=1000, help="token ids of prompts are below this"),
    Setting(name="ignore_eos", kind=flag, default=True, help="outputs are as long as the workload says"),
    Setting(name="openai_fields_only", kind=flag, default=False,
            help="OpenAI's own fields alone: no ignore_eos, no output ids"),
    Setting(name="request_timeout_ms", kind=whole, metavar="N",
            help="the header x-request-timeout-ms of every request"),
    Setting(name="api_key_file", metavar="FILE", help="its first line is the key (default: CHAIRLIFT_API_KEY)"),
)  # fmt: skip
"""Those of `bench serve`."""

SIMULATE_SETTINGS = tuple(
    setting for setting in ENGINE
    if setting.name
    not in (
        "dtype", "device", "revision", "max_memory", "attention_backend", "kernels", "quantization", "cpu_threads",
        "packed_weights_dir", "logits_processor_factories", "profile", "engine_mode",
    )
)  # fmt: skip
"""Those of ENGINE that mean something without a model."""


CHAT_SETTINGS = tuple(
    setting for setting in SAMPLING
    if setting.name in ("max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty",
                        "presence_penalty", "frequency_penalty", "seed", "stop")
)  # fmt: skip
"""Those of SAMPLING that a chat in the terminal has, here and with any server."""

OF_SERVE = {
    "engine_mode": Setting(
        name="engine_mode", default="process", help="process: the engine in its own process; inline: in a thread"
    ),
    "max_queue_size": Setting(
        name="max_queue_size", kind=whole, metavar="N",
        default_text="128 choices for each of max_waiting_requests and max_running_requests",
        help="sequences in the engine's waiting queue",
    ),
}  # fmt: skip
SERVE_SETTINGS = tuple(OF_SERVE.get(setting.name, setting) for setting in ENGINE)
"""ENGINE as a server has it."""


GROUPS: tuple[tuple[str, Sequence[Setting]], ...] = (
    ("model", (MODEL,)), ("server", SERVER), ("engine", ENGINE), ("sampling", SAMPLING), ("logging", LOGGING),
    ("workload", WORKLOAD), ("load", LOAD_SETTINGS),
)  # fmt: skip
"""Everything that a file may hold, under the titles of --help."""


def find(setting: Setting, arguments: argparse.Namespace, environ: Mapping[str, str]) -> ResolvedSetting | None:
    """Return what was asked for and where; None when nobody did. `arguments.file` is what a file says, if there is one.

    Raises ArgumentTypeError for a variable, or a line of the file, that cannot be read.
    """
    if (value := getattr(arguments, setting.dest, None)) is not None:
        return ResolvedSetting(value, FLAG, setting.flag)
    if text := environ.get(setting.environment, ""):
        return ResolvedSetting(setting.from_environment(text), ENVIRONMENT, setting.environment)
    file: SettingsFile | None = getattr(arguments, "file", None)
    read = None if file is None else file.read(setting)
    return None if read is None else ResolvedSetting(read[0], FILE, read[1])


def given(settings: Sequence[Setting], arguments: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what was asked for, by name; what nobody set is absent. See find."""
    found = ((setting.name, find(setting, arguments, environ)) for setting in settings)
    return {name: each.value for name, each in found if each is not None}


def environment() -> Mapping[str, str]:
    """The process's own."""
    return os.environ
