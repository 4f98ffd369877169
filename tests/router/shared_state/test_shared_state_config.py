"""SharedStateConfig: other URLs and files without a URL are rejected; files are read by the check only."""

from pathlib import Path

import pytest

from chairlift.core.errors import ConfigError
from chairlift.router.shared_state.shared_state_config import SharedStateConfig
from support_certificates import CertificateAuthority


def test_another_url_is_rejected() -> None:
    with pytest.raises(ConfigError, match="must look like redis://host:port/db"):
        SharedStateConfig(url="memcached://h")


@pytest.mark.parametrize("field", ["password_file", "sentinel_password_file", "tls_ca"])
def test_a_file_without_a_url_is_rejected(field: str) -> None:
    with pytest.raises(ConfigError, match=f"shared_state_{field} needs shared_state") as caught:
        SharedStateConfig(**{field: Path("file")})  # type: ignore[arg-type]
    assert caught.value.details["option"] == f"shared_state_{field}"


def test_cas_without_tls_are_rejected() -> None:
    with pytest.raises(ConfigError, match="shared_state_tls_ca needs a URL with TLS: rediss://"):
        SharedStateConfig(url="redis://h", tls_ca=Path("ca.pem"))


def test_the_files_are_read_by_the_check_only(tmp_path: Path) -> None:
    files = {"password_file": tmp_path / "password", "sentinel_password_file": tmp_path / "sentinel"}
    config = SharedStateConfig(url="rediss+sentinel://h/fleet", tls_ca=tmp_path / "ca.pem", **files)
    for name, file in files.items():
        with pytest.raises(ConfigError, match=f"cannot read shared_state_{name} {file}: No such file") as caught:
            config.check_files()
        assert caught.value.details["option"] == f"shared_state_{name}"
        file.write_text("s3cret\n")
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(ConfigError, match=f"cannot read shared_state_tls_ca {tmp_path}"):
        config.check_files()
    CertificateAuthority(tmp_path, "ca").file.rename(tmp_path / "ca.pem")
    config.check_files()
