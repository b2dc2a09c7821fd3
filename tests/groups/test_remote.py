"""Processes that were started by hand, as on machines of their own: one engine service with TLS, one group each."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.groups.runs import Apart, groups, wait_for


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[str, str]:
    """The files of a certificate that is its own root, and of its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate, and is not installed")
    certificate, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    named = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command = ["openssl", *words, *named, "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return certificate, key


@pytest.fixture
def engine(apart: Apart, certificate: tuple[str, str]) -> Iterator[str]:
    """An engine service on a certificate, and where it is."""
    apart.events = 12
    address, (cert, key) = apart.directory / "address", certificate
    where = ("--listen", "127.0.0.1:0", "--address-file", str(address), "--token-file", str(apart.directory / "token"))
    service = apart.clew("engine", apart.file, "--engine", "inline", *where, "--tls-cert", cert, "--tls-key", key)
    try:
        wait_for(lambda: address.exists() or service.poll() is not None, "the engine does not serve")
        assert address.exists(), service.communicate()
        yield address.read_text().strip()
    finally:
        service.terminate()
        service.communicate(timeout=60)


def test_groups_that_know_token_and_certificate_run_a_pipeline_without_a_supervisor(
    apart: Apart, engine: str, certificate: tuple[str, str]
) -> None:
    apart.let(apart.events)
    assert engine.startswith("grpc+tls://127.0.0.1:")
    known = ("--engine", engine, "--token-file", str(apart.directory / "token"), "--tls-ca", certificate[0])
    names = [role.removeprefix("group ") for role in groups(apart)]
    processes = [apart.clew("group", name, "--pipeline", apart.file, *apart.log, *known) for name in names]
    said = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(names), said
    assert apart.held() == apart.expected
