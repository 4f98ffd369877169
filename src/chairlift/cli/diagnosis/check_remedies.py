"""CHECKS: what can be wrong with a live server, each with its remedy and its section of the troubleshooting page."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

PAGE = "docs/troubleshooting.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What is examined.

    Attributes:
        section: heading in the troubleshooting page.
        remedy: what to do, in one sentence.
    """

    section: str
    remedy: str


CHECKS: Mapping[str, Check] = {
    "unreachable": Check(
        section="The server does not answer",
        remedy="check the address, the port and the network, and read the log of the process",
    ),
    "untrusted": Check(
        section="The server does not answer",
        remedy="give the file of a private authority with --tls-ca or in the variable SSL_CERT_FILE; the certificate "
        "must be valid now and name the host of the URL",
    ),
    "client_certificate": Check(
        section="The server does not answer",
        remedy="a server with --tls-client-ca closes connections without a certificate that it trusts: give one with "
        "--tls-client-cert and --tls-client-key; without --tls-client-ca read its log",
    ),
    "partial": Check(
        section="The server does not answer", remedy="read the log of the process; run the command again with -v"
    ),
    "not_chairlift": Check(
        section="The server does not answer", remedy="check the address and the port: another program answers there"
    ),
    "not_understood": Check(
        section="The server does not answer", remedy="use the version of Chairlift that the server has"
    ),
    "key_rejected": Check(
        section="A key is rejected", remedy="set CHAIRLIFT_API_KEY to a key of the server that is no admin key"
    ),
    "no_key": Check(
        section="A key is rejected",
        remedy="set CHAIRLIFT_API_KEY to a key of the server that is no admin key; --replica-key-file names that of "
        "replicas",
    ),
    "admin_key": Check(
        section="A key is rejected",
        remedy="set CHAIRLIFT_ADMIN_KEY to an admin key of the server, so that the engine and the replicas are checked",
    ),
    "server_admin_key": Check(
        section="A key is rejected",
        remedy="give the server an admin key (chairlift key NAME --admin --key-file FILE), and set CHAIRLIFT_ADMIN_KEY "
        "to it",
    ),
    "not_ready": Check(section="The server is not ready", remedy="read the reason and the log of the start"),
    "memory": Check(
        section="Out of memory", remedy="lower --max-memory, or give the container or the machine more memory"
    ),
    "gpu_memory": Check(section="Out of memory", remedy="lower --max-memory, or end other programs on the GPU"),
    "cache_full": Check(
        section="The KV cache is full",
        remedy="add replicas, raise --max-memory, or lower --max-running-requests and the length of prompts",
    ),
    "preemptions": Check(
        section="The KV cache is full", remedy="lower --max-running-requests, raise --max-memory, or add replicas"
    ),
    "queue_wait": Check(section="The first token comes late", remedy="add replicas, or send shorter prompts"),
    "first_token": Check(
        section="The first token comes late",
        remedy="compare it with the queue time: if requests wait, add replicas; else lower --max-batch-tokens",
    ),
    "token_latency": Check(
        section="Answers are slow", remedy="set --target-itl-ms, lower --max-running-requests, or add replicas"
    ),
    "errors": Check(section="Requests fail", remedy="look up the outcomes in errors.md, and read the log"),
    "rejections": Check(section="Requests fail", remedy="add replicas, or send less"),
    "hang": Check(
        section="A replica hangs",
        remedy="run again with a longer --interval, as a long step looks the same; then write a debug dump and restart "
        "the replica",
    ),
    "restarts": Check(
        section="A replica restarts again and again",
        remedy="read the log from before the restart, and look for out of memory",
    ),
    "no_replica": Check(
        section="Replicas are ejected or unhealthy", remedy="read the reason of each replica, and its log"
    ),
    "replica_state": Check(
        section="Replicas are ejected or unhealthy", remedy="read the reason and the replica's log and /readyz"
    ),
    "replica_not_read": Check(
        section="Replicas are ejected or unhealthy",
        remedy="run the command where the replicas can be reached, with --replica-key-file if they have another key, "
        "with --tls-ca if a private authority signs their certificates, and with --tls-client-cert if they ask for "
        "certificates",
    ),
    "source_down": Check(
        section="No replicas are found", remedy="check that the source answers, and the router's access to it"
    ),
    "source_empty": Check(section="No replicas are found", remedy="look why the source names no replica"),
    "shared_state": Check(section="The shared state is down", remedy="check Redis, its password file and the network"),
    "versions": Check(section="Replicas differ", remedy="finish the update, so that all replicas run one version"),
    "weights": Check(
        section="Replicas differ", remedy="give all replicas of a model name the same weights, dtype and tokenizer"
    ),
    "certificate": Check(
        section="The certificate expires", remedy="renew the certificate, then send the server SIGHUP"
    ),
    "autoscaler_failing": Check(
        section="The fleet does not grow or shrink", remedy="read the fleet's log: the cluster refuses, or is down"
    ),
    "autoscaler_stuck": Check(
        section="The fleet does not grow or shrink",
        remedy="read the log of a replica that starts; look at free GPUs and memory",
    ),
    "autoscaler_data": Check(
        section="The fleet does not grow or shrink", remedy="see which replica's /load or which query does not answer"
    ),
    "open_files": Check(
        section="Open files run out", remedy="raise `ulimit -n`, and look for clients that leave connections open"
    ),
    "clock": Check(section="The clocks differ", remedy="let NTP set the clocks of both machines"),
    "integrity": Check(
        section="Other tokens than expected",
        remedy="write a debug dump, restart the replica, and report the bug with the dump",
    ),
}


def anchor(heading: str) -> str:
    """Return the anchor that a Markdown heading has."""
    return re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
