"""A whole server over a fake engine in a child process, for tests: `python replica_main.py '{"fake": {...}, ...}'`.

Options: fake (FakeConfig), scheduler (SchedulerConfig), server (ServerConfig, with head, admission, tenant and
files), keys (a file), tokens (jwt_secret_file, jwt_jwks_file), token_config (JWTConfig), tls (certificate, key,
client_ca), factory (of support_process; by default FakeRunner's), watch (LivenessConfig), log_level, registration
(settings of --register).
"""

import json
import logging
import os
import random
import sys
from pathlib import Path
from typing import Any

from chairlift.cli.registration_options import replica_registration
from chairlift.cli.tracing_options import open_tracer
from chairlift.engine.client.process import ProcessClient, start_engine_process
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.ipc.liveness_limits import LivenessConfig
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.llm.model_defaults import ModelDefaults
from chairlift.llm.text_service import TextService
from chairlift.server.server_process import ServerParts, run
from chairlift.text.chat_template import ChatTemplate
from chairlift.web.admission import AdmissionLimits
from chairlift.web.auth.credentials import CredentialSources
from chairlift.web.auth.jwt_verifier import JWTConfig
from chairlift.web.batch_api.files_config import FilesConfig
from chairlift.web.bounded_http_protocol import HeadLimits
from chairlift.web.service.listen_address import ListenAddress
from chairlift.web.tenant_limits import TenantLimits
from support_config import make_server_config
from support_process import fake_spec, spec_of
from support_services import TEMPLATE, AsciiTokenizer


def print_line(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _files(files_folder: str | None = None, **limits: Any) -> FilesConfig:
    return FilesConfig(files_folder=None if files_folder is None else Path(files_folder), **limits)


def main(parameters: dict[str, Any]) -> int:
    logging.basicConfig(stream=sys.stderr, level=parameters.get("log_level", logging.WARNING))
    fake = parameters["fake"]
    config = FakeConfig(**{**fake, "windows": tuple(fake["windows"])})
    factory = parameters.get("factory")
    if factory is None:
        spec = fake_spec(config)
    else:
        import support_process

        spec = spec_of(getattr(support_process, factory), config)
    scheduler = SchedulerConfig(**parameters.get("scheduler", {}))
    watch = LivenessConfig(**{"first_backoff": 0.05, **parameters.get("watch", {})})

    def start() -> TextService:
        tokenizer = AsciiTokenizer()
        return TextService(
            client=start_engine_process(spec, scheduler, watch=watch), tokenizer=tokenizer,
            chat_template=ChatTemplate({"default": TEMPLATE}, tokenizer), defaults=ModelDefaults(), model="fake",
            max_queue_size=scheduler.max_queue_size, seeds=random.Random(5),
        )  # fmt: skip

    def engine_pid(service: TextService) -> int | None:
        assert isinstance(service.client, ProcessClient)
        process = service.client.process
        return None if process is None else process.pid

    server = parameters.get("server", {})
    server_config = make_server_config(
        "fake", head=HeadLimits(**server.pop("head", {})),
        admission=AdmissionLimits(**server.pop("admission", {})), tenant=TenantLimits(**server.pop("tenant", {})),
        files=_files(**server.pop("files", {})), **server,
    )  # fmt: skip
    tls = {name: Path(file) for name, file in parameters.get("tls", {}).items()}
    listening = ListenAddress(port=parameters.get("port", 0), **tls)
    files = {"key_file": parameters.get("keys"), **parameters.get("tokens", {})}
    sources = CredentialSources(**{name: Path(file) for name, file in files.items() if file is not None},
                                token_config=JWTConfig(**parameters.get("token_config", {})))  # fmt: skip
    tracer = open_tracer({}, os.environ, "chairlift-server")
    code = run(ServerParts(
        config=server_config, listening=listening, tls=listening.tls_context(),
        registration=replica_registration(parameters.get("registration", {}), listening, ("fake",)),
        read_credentials=lambda: sources.read(os.environ),
        start=start, engine_pid=engine_pid, budget=scheduler.max_batch_tokens,
        max_running=scheduler.max_running_sequences,
        print_line=print_line, tracer=tracer,
    ))  # fmt: skip
    if tracer is not None:
        tracer.close()
    return code


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
