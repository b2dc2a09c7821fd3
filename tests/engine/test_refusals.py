"""Who has no token, other code or another Clew is refused, before anything of it is unpickled."""

import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from clew import __version__
from clew.errors import SetupFailed
from clew.runtime.engine import InlineEngine
from clew.serve import token_in
from clew.spark.client import RemoteEngine
from clew.spark.service import Listening
from tests.engine.served import CODE, TOKEN, Told, asked, job, numbers, read, served

HEADERS = {"authorization": f"Bearer {TOKEN}", "clew-version": __version__, "clew-code": CODE}


class Trap:
    """Leaves a file where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = str(file)

    def __reduce__(self) -> Any:
        return os.mkdir, (self._file,)


def exchange(url: str, headers: dict[str, str], content: Any) -> None:
    """Ask for a turn by hand."""
    options = flight.FlightCallOptions(headers=[(name.encode(), value.encode()) for name, value in headers.items()])
    descriptor = flight.FlightDescriptor.for_command(pickle.dumps(content))
    _, reader = flight.FlightClient(url).do_exchange(descriptor, options)
    reader.read_chunk()


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer another", TOKEN])
def test_without_the_token_nothing_is_unpickled(tmp_path: Path, authorization: str | None) -> None:
    headers = {name: value for name, value in HEADERS.items() if name != "authorization"}
    if authorization is not None:
        headers["authorization"] = authorization
    with served(Told()) as service:
        with pytest.raises(flight.FlightUnauthenticatedError, match="this engine wants its token"):
            exchange(service.url, headers, Trap(tmp_path / "trap"))
        for ask in (lambda c: list(c.do_action("hello")), lambda c: list(c.list_flights()), lambda c: c.list_actions()):
            with pytest.raises(flight.FlightUnauthenticatedError):
                ask(flight.FlightClient(service.url))
    assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize("name", ["clew-version", "clew-code"])
def test_nor_is_what_another_version_or_other_code_sends(tmp_path: Path, name: str) -> None:
    with served(Told()) as service:
        with pytest.raises(flight.FlightServerError):
            exchange(service.url, {**HEADERS, name: "another"}, Trap(tmp_path / "trap"))
        assert not (tmp_path / "trap").exists()
        with pytest.raises(flight.FlightServerError, match="cannot do what is asked"):
            exchange(service.url, HEADERS, Trap(tmp_path / "trap"))
    assert (tmp_path / "trap").exists(), "the trap works"


def test_a_wrong_token_is_said() -> None:
    with served(Told()) as service, pytest.raises(SetupFailed) as refused:
        RemoteEngine(lambda: (service.url, "another"), CODE)
    assert str(refused.value) == (
        f"the engine at {service.url} does not know this token; give both sides the same --token-file"
    )


def test_other_code_is_said() -> None:
    with served(Told()) as service, pytest.raises(SetupFailed) as refused:
        RemoteEngine(lambda: (service.url, TOKEN), "numbers@2")
    assert str(refused.value) == (
        f"the engine at {service.url} serves the code numbers@1, and numbers@2 was asked for; start both from the same "
        "files"
    )


def test_another_clew_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.spark.client.versions", lambda: {"clew": "0.0.1"})
    with served(Told()) as service, pytest.raises(SetupFailed) as refused:
        RemoteEngine(lambda: (service.url, TOKEN), CODE)
    assert str(refused.value) == (
        f"the engine at {service.url} is Clew {__version__}, and Clew 0.0.1 asks it; install the same version on both "
        "sides"
    )


class Broken:
    """Something that cannot be unpickled."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


def test_what_a_service_cannot_read_is_said_and_not_sent_again() -> None:
    with served(Told()) as service, asked(service) as engine, pytest.raises(SetupFailed) as refused:
        engine.map(job(), [Broken()])  # type: ignore[list-item]
    assert str(refused.value) == (
        f"the engine at {service.url} cannot do what is asked of it: ValueError: invalid literal for int() with base "
        "10: 'no number'; see that both sides have the same packages, and start them from the same files"
    )


def test_no_other_actions_are_known() -> None:
    options = flight.FlightCallOptions(headers=[(name.encode(), value.encode()) for name, value in HEADERS.items()])
    with served(Told()) as service, pytest.raises(NotImplementedError, match="dance"):
        list(flight.FlightClient(service.url).do_action("dance", options))


# Where it listens.


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_certificate(host: str) -> None:
    assert Listening(host).location == f"grpc://{f'[{host}]' if ':' in host else host}:0"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org"])
def test_all_else_does(host: str) -> None:
    with pytest.raises(SetupFailed) as refused:
        Listening(host)
    assert str(refused.value) == (
        f"an engine on {host} is reached from other machines, and without TLS who listens on the way can read its "
        "token, and then have any code run; give it a certificate with --tls-cert and --tls-key, or let it listen on "
        "127.0.0.1"
    )
    assert Listening(host, 0, "cert", "key").location.startswith("grpc+tls://")


def test_an_address_for_all_is_told_by_the_machines_name() -> None:
    assert Listening("0.0.0.0", 0, "cert", "key").url(7) == f"grpc+tls://{os.uname().nodename}:7"


def test_a_place_that_is_taken_is_said() -> None:
    with (
        served(Told()) as service,
        pytest.raises(SetupFailed) as refused,
        served(Told(), listening=Listening(port=service.port)),
    ):
        pass
    assert str(refused.value).startswith(f"no engine can listen on grpc://127.0.0.1:{service.port}: ")
    assert "or PORT 0 for any that is free" in str(refused.value)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Listening:
    place = tmp_path_factory.mktemp("tls")
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    files = ["-keyout", str(place / "key.pem"), "-out", str(place / "cert.pem")]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*words.split(), *files, *names], check=True, capture_output=True)
    return Listening("127.0.0.1", 0, str(place / "cert.pem"), str(place / "key.pem"))


def test_turns_pass_over_tls(certificate: Listening) -> None:
    roots = Path(str(certificate.certificate)).read_bytes()
    with served(InlineEngine(numbers()), listening=certificate) as service:
        assert service.url.startswith("grpc+tls://")
        with asked(service, roots=roots) as engine:
            assert engine.map(job(), read()).results[0].pieces == 1
        with pytest.raises(Exception, match="no engine has answered"):
            RemoteEngine(lambda: (service.url, TOKEN), CODE, patience=0.0)
        with pytest.raises(Exception, match="no engine has answered"):
            RemoteEngine(lambda: (service.url.replace("+tls", ""), TOKEN), CODE, patience=0.0)


def test_a_certificate_that_is_not_there_is_said(certificate: Listening) -> None:
    gone = Listening("127.0.0.1", 0, "/nowhere/cert.pem", certificate.key)
    with pytest.raises(SetupFailed) as refused, served(Told(), listening=gone):
        pass
    assert str(refused.value) == (
        "/nowhere/cert.pem cannot be read (No such file or directory); give --tls-cert and --tls-key files in PEM form"
    )


# The token.


def test_a_token_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "new" / "token"
    token = token_in(str(file))
    assert len(token) > 40
    assert token_in(str(file)) == token
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["token"]


def test_a_token_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").touch()
    with pytest.raises(SetupFailed, match="is empty; remove it: the engine makes a new one"):
        token_in(str(tmp_path / "token"))
    with pytest.raises(SetupFailed, match=r"no token can be written to .* give another --token-file"):
        token_in(str(tmp_path / "token" / "below"))
