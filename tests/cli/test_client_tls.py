"""tls_context: a certificate needs its own key, and errors name the option."""

from pathlib import Path

import pytest

from chairlift.cli.client_tls import tls_context
from chairlift.core.errors import ConfigError
from support_certificates import CertificateAuthority


def test_a_certificate_needs_its_key(tmp_path: Path) -> None:
    certificate, key = (str(file) for file in CertificateAuthority(tmp_path, "ca").issue("client"))
    other = str(CertificateAuthority(tmp_path, "other").issue("stranger")[1])
    assert tls_context(None) is None and tls_context(None, certificate, key) is not None
    for files, option, words in (
        ((certificate, None), "tls_client_cert", "--tls-client-cert needs --tls-client-key"),
        ((None, key), "tls_client_key", "--tls-client-key needs --tls-client-cert"),
        ((certificate, other), "tls_client_cert", "they are no pair in PEM"),
        ((certificate, str(tmp_path / "none")), "tls_client_cert", "No such file"),
    ):
        with pytest.raises(ConfigError, match=words) as caught:
            tls_context(None, *files)
        assert caught.value.details["option"] == option
