"""`chairlift autoscaler`: invalid input is one sentence before it listens."""

import pytest

from chairlift.cli.main import main
from support_cli import rejection_sentence

WEBHOOK = ["--cluster", "http://127.0.0.1:9/scale"]
PROMETHEUS = ["--prometheus-url", "http://127.0.0.1:9"]


@pytest.mark.parametrize(("words", "sentence"), [
    ([], "an autoscaler needs the cluster of its replicas: ray, kubernetes://NAMESPACE/deployment/NAME or the URL"),
    (["--cluster", "docker"], "--cluster 'docker' must be local, ray"),
    ([*WEBHOOK, "--query", "queue"], "--query 'queue' must be NAME=PROMQL"),
    ([*WEBHOOK, "--query", "queue=sum(x)"], "--query needs --prometheus-url, the server to ask"),
    ([*WEBHOOK, *PROMETHEUS, "--query", "queue=sum(x)"], "--query 'queue' needs a target: --query-target queue=X"),
    ([*WEBHOOK, "--query-target", "queue=5"], "--query-target names 'queue', for which there is no query"),
    ([*WEBHOOK, *PROMETHEUS, "--query", "a=x", "--query-target", "a=0"], "target of the external metric 'a' must be"),
    ([*WEBHOOK, "--max-replicas", "0"], "--max-replicas must be above 0, got 0"),
    ([*WEBHOOK, "--policy", "prefix"], "unknown option --policy"),
])  # fmt: skip
def test_invalid_input_is_one_sentence_and_exit_code_two(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rejection_sentence(capsys, main(["autoscaler", "--port", "0", *words])).startswith(sentence)
