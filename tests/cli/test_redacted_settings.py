"""shown_settings shows what a process runs with, and no secret in any place where one may stand."""

import json

from chairlift.cli.redacted_settings import shown_settings
from support_shares import for_each


@for_each(
    ("name", "value", "shown"),
    [
        ("shared_state", "redis://user:hunter2@redis:6379/1", "redis://***@redis:6379/1"),
        ("shared_state", "redis://user:hunter2@hunter2@redis", "redis://***@redis"),
        ("shared_state", "redis+sentinel://:hunter2@a:1,b:2/main", "redis+sentinel://***@a:1,b:2/main"),
        ("notify_url", "https://hooks.example/services/hunter2", "https://hooks.example/***"),
        ("prometheus_url", "http://prometheus:9090/?token=hunter2", "http://prometheus:9090/?***"),
        ("replica", ["http://u:hunter2@a:8000;weight=2"], ["http://***@a:8000;weight=2"]),
        ("replica_option", ["api-key=hunter2", "max-model-len=99"], ["api-key=***", "max-model-len=99"]),
        ("replica_option", ["--jwt-secret=hunter2"], ["--jwt-secret=***"]),
        ("replica_option", ["key-file=/keys", "max-batch-tokens=64"], ["key-file=/keys", "max-batch-tokens=64"]),
        ("query_target", {"ttft": 0.5}, {"ttft": 0.5}),
        ("key_file", "/run/keys", "/run/keys"),
        ("max_batch_tokens", 2048, 2048),
        ("discovery", ["dns://replicas:8000"], ["dns://replicas:8000"]),
    ],
)  # fmt: skip
def test_a_setting_is_shown_without_its_secrets(name: str, value: object, shown: object) -> None:
    settings = shown_settings({name: value}, {})
    assert settings[name] == shown and "hunter2" not in json.dumps(settings)


def test_of_secret_variables_only_the_name_is_shown() -> None:
    settings = shown_settings({}, {"CHAIRLIFT_API_KEY": "hunter2", "CHAIRLIFT_ADMIN_KEY": ""})
    assert settings == {
        "CHAIRLIFT_API_KEY": "set", "CHAIRLIFT_ADMIN_KEY": "unset", "CHAIRLIFT_JWT_SECRET": "unset",
    }  # fmt: skip
