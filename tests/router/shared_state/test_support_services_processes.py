"""support_services_processes.py: a missing program skips a test, or fails it where services are required."""

import pytest

import support_services_processes
from support_services_processes import require_service


def test_a_missing_program_skips_the_test_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHAIRLIFT_REQUIRE_SERVICES", raising=False)
    monkeypatch.setattr(support_services_processes, "find_program", lambda program: None)
    with pytest.raises(pytest.skip.Exception, match=r"etcd is not installed \(Debian's package etcd-server\)"):
        require_service("etcd")


def test_a_missing_program_fails_the_test_where_services_are_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAIRLIFT_REQUIRE_SERVICES", "1")
    monkeypatch.setattr(support_services_processes, "find_program", lambda program: None)
    with pytest.raises(pytest.fail.Exception, match="redis-server is not installed"):
        require_service("redis-server")
