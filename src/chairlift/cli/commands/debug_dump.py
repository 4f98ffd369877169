"""`chairlift debug-dump`: writes what explains a live server's behaviour to one archive."""

import argparse
from pathlib import Path

from chairlift.cli.console import Console
from chairlift.cli.diagnosis.archive import check_output, default_name, write_archive
from chairlift.cli.diagnosis.diagnosis import diagnose
from chairlift.cli.diagnosis.live_options import live_server
from chairlift.cli.output_file_checks import check_output as check_output_path
from chairlift.core.errors import ConfigError


def run(arguments: argparse.Namespace) -> int:
    """Read the server and its replicas, and write the archive.

    Returns the exit code, 1 if the server does not answer; the archive says why then.
    Raises ConfigError and FileNotWritten.
    """
    reader, replica_keys, interval = live_server(arguments)
    if arguments.output == "-":
        raise ConfigError("--output must name a file: the archive is not written to standard output", option="output")
    path = Path(arguments.output or default_name(reader.url))
    check_output_path(str(path))
    check_output(path, may_replace=arguments.force)
    diagnosis = diagnose(reader, replica_keys, interval)
    write_archive(diagnosis, path, [reader.keys, replica_keys], may_replace=arguments.force)
    first, *replicas = diagnosis.snapshots
    num_problems = len(diagnosis.findings)
    num_read = sum(each.is_reachable for each in replicas)
    behind = f", {num_read} of {len(replicas)} replicas" if replicas else ""
    Console(quiet=arguments.quiet).print_line(
        f"{path}: {'the server' if first.is_reachable else 'the server does not answer'}{behind}, "
        f"{num_problems} problem{'s' * (num_problems != 1)}"
    )
    return 0 if first.is_reachable else 1
