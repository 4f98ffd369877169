"""Command line: declares the options of every command without importing its module.

A command's `run(arguments) -> exit code` is in the module that its parser names, which is imported to run it.
"""

import argparse
from collections.abc import Sequence

from chairlift import __version__
from chairlift.cli import help_texts as texts
from chairlift.cli.arg_parser import Parser, UsageError
from chairlift.cli.batch_command_line import add_run_batch
from chairlift.cli.bench_command_line import add_bench
from chairlift.cli.settings import bench_settings, plan_settings, router_settings, settings, value_parsers
from chairlift.cli.settings.fleet_settings import AUTOSCALER, AUTOSCALER_FLEET, FLEET, REPLICA_OPTION, SIGNALS
from chairlift.cli.settings.foreign_flag_actions import add_foreign_flags
from chairlift.cli.settings.sampling_settings import SAMPLING
from chairlift.cli.settings.service_settings import TOKEN_COMMAND
from chairlift.cli.shared_arguments import Subcommands, add_command, add_model, add_settings, add_verbosity
from chairlift.cli.unknown_command import WORD_COMMANDS, unknown_command_message

FLEET_UPDATE = "fleet-update"
"""The command `fleet update`: argparse has no subcommands beside a positional MODEL."""


def build_parser(words: Sequence[str] = ()) -> Parser:
    """Return the parser of the command line.

    A parsed command has `module`, the module whose run() executes it, and `parser`, the command's own parser.

    Args:
        words: what will be parsed. If the first one is the name of a command, the parser has no other commands: all
            of them have thousands of options, which take a tenth of a second to declare.
    """
    parser = Parser(
        prog="chairlift", description="Run and serve large language models with continuous batching.",
        epilog="`chairlift help COMMAND` or `chairlift COMMAND --help` describes a command and its options. "
        "`chairlift version` prints the version.",
    )  # fmt: skip
    parser.add_argument(
        "--version", action="version", version=f"chairlift {__version__}", help="print the version and exit"
    )
    subcommands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=Parser, title="commands"
    )
    adders = {
        "serve": _serve, "router": _router, "fleet": _fleet, FLEET_UPDATE: _fleet, "autoscaler": _fleet,
        "generate": _generate, "run-batch": add_run_batch, "chat": _chat, "bench": add_bench, "config": _config,
        "key": _key, "token": _token, "doctor": _doctor, "debug-dump": _debug_dump, "plan": _plan, "top": _top,
    }  # fmt: skip
    named = adders.get(words[0]) if words else None
    for add in dict.fromkeys(adders.values()) if named is None else (named,):
        add(subcommands)
    return parser


def check_command(parser: Parser, words: Sequence[str]) -> None:
    """Raise UsageError when the first words name no command.

    The message of argparse itself is not a sentence.
    """
    names: list[str] = []
    for word in (*words, ""):
        inner = next((act for act in parser._actions if isinstance(act, argparse._SubParsersAction)), None)
        if inner is None or word in parser._option_string_actions:
            return
        choices = [name for name in inner.choices if name != FLEET_UPDATE]
        if not word or word.startswith("-"):
            parent, before = " ".join(["chairlift", *names]), f" before {word.partition('=')[0]}" if word else ""
            raise UsageError(f"`{parent}` needs a command{before}: {', '.join(choices)}")
        if word not in inner.choices:
            raise UsageError(unknown_command_message(names, word, choices))
        names.append(word)
        parser = inner.choices[word]


def _serve(subcommands: "Subcommands[Parser]") -> None:
    parser = add_command(
        subcommands, "serve", help="serve a model to OpenAI clients",
        description=texts.SERVE_HELP, epilog=texts.SERVE_END,
        usage="chairlift serve [MODEL] [--port N] [--key-file FILE] [options]",
    )  # fmt: skip
    add_model(parser)
    add_verbosity(parser)
    _add_api_key(parser)
    parser.add_setting(settings.SERVE_SEED, parser)
    add_settings(parser, "server", settings.SERVER)
    add_settings(parser, "engine", settings.SERVE_SETTINGS)
    add_settings(parser, "logging", settings.LOGGING)
    add_foreign_flags(parser, in_help=True)


def _router(subcommands: "Subcommands[Parser]") -> None:
    parser = add_command(
        subcommands, "router", help="serve many replicas at one address",
        description=texts.ROUTER_HELP, epilog=texts.ROUTER_END,
        usage="chairlift router --replica URL [--replica URL ..] [--policy NAME] [--discovery SOURCE] [options]",
    )  # fmt: skip
    add_verbosity(parser)
    _add_api_key(parser)
    add_settings(parser, "router", router_settings.ROUTER)
    add_settings(parser, "server", settings.ROUTER_SERVER)
    add_settings(parser, "logging", settings.LOGGING)


def _fleet(subcommands: "Subcommands[Parser]") -> None:
    parser = add_command(
        subcommands, "fleet", help="serve a model by as many replicas as the load needs",
        description=texts.FLEET_HELP, epilog=texts.FLEET_END,
        usage="chairlift fleet [MODEL] [--min-replicas N] [--max-replicas N] [options]\n"
        "       chairlift fleet update [MODEL] [--replica-option NAME=VALUE ..] [--url URL]",
    )  # fmt: skip
    add_model(parser)
    add_verbosity(parser)
    _add_api_key(parser)
    add_settings(parser, "fleet", FLEET)
    add_settings(parser, "autoscaler", AUTOSCALER)
    add_settings(parser, "signals", SIGNALS)
    add_settings(parser, "router", router_settings.FLEET_ROUTER)
    add_settings(parser, "server", settings.ROUTER_SERVER)
    add_settings(parser, "logging", settings.LOGGING)
    _autoscaler(subcommands)
    update = add_command(
        subcommands, "fleet_update", name=FLEET_UPDATE, help=argparse.SUPPRESS, description=texts.FLEET_UPDATE_HELP,
        usage="chairlift fleet update [MODEL] [--replica-option NAME=VALUE ..] [--url URL]",
    )  # fmt: skip
    add_model(update)
    update.add_argument(
        "--url",
        metavar="URL",
        default="http://127.0.0.1:8000",
        help="URL of the fleet (default: http://127.0.0.1:8000)",
    )
    update.add_argument("--wait", action="store_true", help="wait until all replicas are replaced")
    add_verbosity(update)
    add_settings(update, "new options of the replicas, instead of all before", (REPLICA_OPTION,))
    add_settings(update, "logging", settings.LOGGING)


def _autoscaler(subcommands: "Subcommands[Parser]") -> None:
    parser = add_command(
        subcommands, "autoscaler", help="scale replicas that run behind another router",
        description=texts.AUTOSCALER_HELP, epilog=texts.FLEET_END,
        usage="chairlift autoscaler --cluster CLUSTER [--min-replicas N] [--max-replicas N] [--dry-run] [options]",
    )  # fmt: skip
    add_model(parser)
    add_verbosity(parser)
    _add_api_key(parser)
    add_settings(parser, "fleet", AUTOSCALER_FLEET)
    add_settings(parser, "autoscaler", AUTOSCALER)
    add_settings(parser, "signals", SIGNALS)
    add_settings(parser, "router", router_settings.REPLICA_ACCESS)
    add_settings(parser, "server", settings.AUTOSCALER_SERVER)
    add_settings(parser, "logging", settings.LOGGING)


def command_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command line as the parser has them.

    The command `fleet update` is one word, `help COMMAND` is the command with --help, and `version` is --version.
    """
    if words and words[0] == "help":
        words = [*(word for word in words[1:] if not word.startswith("-") and word not in WORD_COMMANDS), "--help"]
    elif words and words[0] == "version":
        words = ["--version", *words[1:]]
    return [FLEET_UPDATE, *words[2:]] if list(words[:2]) == ["fleet", "update"] else list(words)


def _add_api_key(parser: Parser) -> None:
    parser.add_argument(
        "--api-key", action="append", default=[], metavar="KEY",
        help="API key of the tenant default; every user of the machine can see it, unlike --key-file (default: none)",
    )  # fmt: skip


def _chat(subcommands: "Subcommands[Parser]") -> None:
    parser = add_command(
        subcommands, "chat", help="chat with a model in the terminal", description=texts.CHAT_HELP,
        usage="chairlift chat [MODEL] [--url URL] [--quick TEXT] [options]",
    )  # fmt: skip
    add_model(parser)
    parser.add_argument("--url", metavar="URL", help="URL of a server to chat with (default: run the model locally)")
    parser.add_argument("--quick", metavar="TEXT", help="answer one question and exit; - reads it from standard input")
    parser.add_argument("--system", metavar="TEXT", help="system message of the conversation (default: none)")
    parser.add_argument("--stats", action="store_true", help="print tokens and speed after each answer")
    add_verbosity(parser)
    add_settings(parser, "sampling", settings.CHAT_SETTINGS)
    add_settings(parser, "engine", settings.ENGINE)
    add_settings(parser, "logging", settings.LOGGING)
    add_foreign_flags(parser)


def _key(subcommands: "Subcommands[Parser]") -> None:
    parser = add_command(
        subcommands, "key", help="create an API key", description=texts.KEY_HELP,
        usage="chairlift key TENANT [--admin] [--key-file FILE]",
    )  # fmt: skip
    parser.add_argument(
        "tenant", metavar="TENANT", help="tenant that the key belongs to; 1 to 128 characters of a-z A-Z 0-9 . _ -"
    )
    parser.add_argument("--admin", action="store_true", help="create a key for the /admin/ routes only")
    parser.add_argument("--key-file", metavar="FILE", help="append the line of the key to FILE (default: print it)")
    add_verbosity(parser)
    add_settings(parser, "logging", settings.LOGGING)


def _token(subcommands: "Subcommands[Parser]") -> None:
    parser = add_command(
        subcommands, "token", help="create a JSON Web Token", description=texts.TOKEN_HELP,
        usage="chairlift token TENANT [--role ROLE] [--lifetime TIME] [--jwt-secret-file FILE] [options]",
    )  # fmt: skip
    parser.add_argument(
        "tenant", metavar="TENANT", help="tenant that the token belongs to; 1 to 128 characters of a-z A-Z 0-9 . _ -"
    )
    parser.add_argument(
        "--role", action="append", type=value_parsers.one_of("user", "admin"), metavar="ROLE",
        help="role of the token: user, or admin for the /admin/ routes only; may be given several times "
        "(default: user)",
    )  # fmt: skip
    parser.add_argument(
        "--lifetime", type=value_parsers.duration, default=3600, metavar="TIME",
        help="time until the token expires: seconds, or a number with s, m, h or d (default: 1h)",
    )  # fmt: skip
    add_verbosity(parser)
    add_settings(parser, "tokens", TOKEN_COMMAND)
    add_settings(parser, "logging", settings.LOGGING)


def _config(subcommands: "Subcommands[Parser]") -> None:
    parser = subcommands.add_parser("config", help="show or validate settings", description=texts.CONFIG_HELP)
    inner = parser.add_subparsers(
        dest="config_command", required=True, metavar="COMMAND", parser_class=Parser, title="commands"
    )
    show = add_command(
        inner, "config_show", help="show every setting with its value and source", description=texts.SHOW_HELP,
        usage="chairlift config show [MODEL] [--config FILE.yaml] [--json] [options]",
    )  # fmt: skip
    add_model(show)
    show.add_argument("--json", action="store_true", help="print one JSON object")
    add_verbosity(show)
    add_settings(show, "server", settings.SERVER)
    add_settings(show, "engine", settings.SERVE_SETTINGS)
    add_settings(show, "sampling", SAMPLING)
    add_settings(show, "logging", settings.LOGGING)
    add_settings(show, "router", router_settings.ROUTER)
    add_foreign_flags(show)
    show.settings += bench_settings.WORKLOAD  # shown, although this command has no flags for them
    validate = add_command(
        inner, "config_validate", help="print every problem of a settings file", description=texts.VALIDATE_HELP,
        usage="chairlift config validate [FILE.yaml]",
    )  # fmt: skip
    validate.add_argument(
        "path", nargs="?", metavar="FILE.yaml", help="settings file (default: the variable CHAIRLIFT_CONFIG)"
    )
    add_verbosity(validate, takes_file=False)
    add_settings(validate, "logging", settings.LOGGING)


def _generate(subcommands: "Subcommands[Parser]") -> None:
    parser = add_command(
        subcommands, "generate", help="generate text from one prompt or a file of prompts",
        description=texts.GENERATE_HELP, epilog=texts.GENERATE_END,
        usage="chairlift generate [MODEL] [--prompt TEXT | --prompts FILE.jsonl] [--output FILE.jsonl] [options]",
    )  # fmt: skip
    add_model(parser)
    parser.unexpected_word_message += ", and a prompt follows --prompt"
    parser.add_argument(
        "--prompt",
        metavar="TEXT",
        help="prompt; - reads standard input (default: standard input if it is a pipe)",
    )
    parser.add_argument("--prompts", metavar="FILE.jsonl", help="file of prompts, one per line; - is standard input")
    parser.add_argument(
        "--output", metavar="FILE.jsonl", help="write results to this file as JSON lines (default: standard output)"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print results as JSON on standard output (default: only for --prompts without --output)",
    )
    parser.add_argument(
        "--chat", action=argparse.BooleanOptionalAction, default=None,
        help="apply the model's chat template to prompts (default: true for the demo model, else false)",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=value_parsers.number, metavar="SECONDS",
        help="time limit of each request in seconds (default: no limit)",
    )  # fmt: skip
    add_verbosity(parser)
    add_settings(parser, "sampling", SAMPLING)
    add_settings(parser, "engine", settings.ENGINE)
    add_settings(parser, "logging", settings.LOGGING)
    add_foreign_flags(parser)


def _doctor(subcommands: "Subcommands[Parser]") -> None:
    parser = add_command(
        subcommands, "doctor", help="check whether this machine can run a model",
        description=texts.DOCTOR_HELP,
        usage="chairlift doctor [MODEL] [--json] [options]\n       chairlift doctor --url URL [--json] [options]",
    )  # fmt: skip
    add_model(parser)
    parser.add_argument(
        "--url", metavar="URL", help="URL of a live router or replica to check (default: check this machine)"
    )
    _add_live_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_verbosity(parser)
    add_settings(parser, "engine", settings.ENGINE)
    add_settings(parser, "logging", settings.LOGGING)
    add_foreign_flags(parser)


def _add_url(parser: Parser) -> None:
    parser.add_argument(
        "--url", metavar="URL", default="http://127.0.0.1:8000",
        help="URL of a router or of one replica (default: http://127.0.0.1:8000)",
    )  # fmt: skip


def _debug_dump(subcommands: "Subcommands[Parser]") -> None:
    parser = add_command(
        subcommands, "debug_dump", name="debug-dump", help="write the state of a live server to an archive",
        description=texts.DEBUG_DUMP_HELP, usage="chairlift debug-dump [--url URL] [--output FILE.tar.gz] [options]",
    )  # fmt: skip
    _add_url(parser)
    parser.add_argument(
        "--output", metavar="FILE.tar.gz", help="the archive (default: chairlift-debug-HOST-PORT-TIME.tar.gz)"
    )
    parser.add_argument("--force", action="store_true", help="replace the file of --output if it exists")
    _add_live_options(parser)
    add_verbosity(parser)
    add_settings(parser, "logging", settings.LOGGING)


def _add_live_options(parser: Parser) -> None:
    parser.add_argument(
        "--interval", type=value_parsers.number, default=3.0, metavar="SECONDS",
        help="seconds between the two readings of a live server (default: 3)",
    )  # fmt: skip
    parser.add_argument(
        "--replica-key-file", metavar="FILE",
        help="file with the API key of a router's replicas in its first line (default: CHAIRLIFT_API_KEY)",
    )  # fmt: skip
    _add_tls(parser)


def _add_tls(parser: Parser) -> None:
    parser.add_argument(
        "--tls-ca", metavar="FILE",
        help="CAs (PEM) that sign the certificates of live servers, besides the system's (default: only the system's)",
    )  # fmt: skip
    parser.add_argument(
        "--tls-client-cert", metavar="FILE",
        help="certificate chain (PEM) of this command, for servers with --tls-client-ca, mutual TLS (default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--tls-client-key", metavar="FILE", help="private key (PEM) of --tls-client-cert (default: none)"
    )


def _plan(subcommands: "Subcommands[Parser]") -> None:
    parser = add_command(
        subcommands, "plan", help="plan the memory and the replicas for a load", description=texts.PLAN_HELP,
        epilog=texts.OFFLINE_END, usage="chairlift plan [MODEL] [--gpus N --gpu-memory GB] [--rate R] [options]",
    )  # fmt: skip
    add_model(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_verbosity(parser)
    add_settings(parser, "plan", plan_settings.PLAN)
    chosen = [setting for setting in settings.ENGINE if setting.name in plan_settings.PLAN_ENGINE]
    add_settings(parser, "engine", chosen)
    add_settings(parser, "logging", settings.LOGGING)


def _top(subcommands: "Subcommands[Parser]") -> None:
    parser = add_command(
        subcommands, "top", help="show a server's replicas in a live table", description=texts.TOP_HELP,
        usage="chairlift top [--url URL] [--interval SECONDS] [--once] [--json] [options]",
    )  # fmt: skip
    _add_url(parser)
    parser.add_argument(
        "--interval", type=value_parsers.number, default=2.0, metavar="SECONDS",
        help="seconds between two readings (default: 2)",
    )  # fmt: skip
    _add_tls(parser)
    parser.add_argument("--once", action="store_true", help="print one table, with the rates of one interval, and exit")
    parser.add_argument("--json", action="store_true", help="print a JSON object for each reading, one a line")
    add_verbosity(parser)
    add_settings(parser, "logging", settings.LOGGING)
