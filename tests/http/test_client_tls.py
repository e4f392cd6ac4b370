"""Mistakes with TLS: clients say what is wrong and what to do; in threads, in coroutines, at the command line."""

import asyncio
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import penstock
import penstock.aio
from penstock.cli import cli
from penstock.errors import StoreUnreachable
from tests.http.serving import make_certificate, serving

Opening = Callable[[str, str | None], StoreUnreachable]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The paths of a certificate for localhost and 127.0.0.1 that signs itself, and of its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    make_certificate(cert, key)
    return cert, key


@pytest.fixture(scope="module")
def encrypted(certificate: tuple[str, str]) -> Iterator[str]:
    """The host and port of a server that speaks TLS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    with penstock.open("memory:") as store, serving(store, tls=context) as server:
        yield server.url.removeprefix("https://").replace("127.0.0.1", "localhost")


@pytest.fixture(scope="module")
def plain() -> Iterator[str]:
    """The host and port of a server that speaks no TLS."""
    with penstock.open("memory:") as store, serving(store) as server:
        yield server.url.removeprefix("http://")


def in_a_thread(url: str, ca: str | None) -> StoreUnreachable:
    with pytest.raises(StoreUnreachable) as refused:
        penstock.open(url, ca=ca)
    return refused.value


def in_a_coroutine(url: str, ca: str | None) -> StoreUnreachable:
    async def opening() -> StoreUnreachable:
        with pytest.raises(StoreUnreachable) as refused:
            async with penstock.aio.open(url, ca=ca):
                pass
        return refused.value

    return asyncio.run(opening())


@pytest.fixture(params=[in_a_thread, in_a_coroutine])
def opening(request: pytest.FixtureRequest) -> Opening:
    """Opens a store, and returns the error."""
    made: Opening = request.param
    return made


def test_a_certificate_that_signs_itself_is_named_and_how_to_trust_it(opening: Opening, encrypted: str) -> None:
    said = str(opening(f"https://{encrypted}", None))
    assert f"the certificate of the server at https://{encrypted} is not trusted: self-signed certificate" in said
    assert "Give ca= the PEM file" in said
    assert "SSL_CERT_FILE" in said


def test_the_certificate_of_another_host_is_named_with_its_hosts(
    opening: Opening, encrypted: str, certificate: tuple[str, str]
) -> None:
    other = encrypted.replace("localhost", "127.1")  # another name of 127.0.0.1
    said = str(opening(f"https://{other}", certificate[0]))
    assert "is not for '127.1', but for localhost, 127.0.0.1: use one of these in the address" in said


def test_http_to_a_port_with_tls_says_https(opening: Opening, encrypted: str) -> None:
    error = opening(f"http://{encrypted}", None)
    assert str(error) == f"the server at http://{encrypted} speaks TLS: use https://{encrypted}"


def test_https_to_a_port_without_tls_says_http(opening: Opening, plain: str) -> None:
    assert f"does not speak TLS: use http://{plain}" in str(opening(f"https://{plain}", None))


def test_the_command_line_says_what_to_set(
    encrypted: str, certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    refused = CliRunner().invoke(cli, ["--store", f"https://{encrypted}", "list"])
    assert refused.exit_code == 1
    assert "is not trusted: self-signed certificate" in refused.stderr
    assert "hint: Set SSL_CERT_FILE to the PEM file" in refused.stderr
    assert "ca=" not in refused.stderr
    for name, why in (("none.pem", "No such file or directory"), (certificate[1], "no certificates in it")):
        monkeypatch.setenv("SSL_CERT_FILE", name)
        refused = CliRunner().invoke(cli, ["--store", f"https://{encrypted}", "list"])
        assert f"self-signed certificate, and SSL_CERT_FILE is {name!r}: {why}." in refused.stderr
    monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
    assert CliRunner().invoke(cli, ["--store", f"https://{encrypted}", "list"]).exit_code == 0


def test_a_server_that_is_not_there_is_not_blamed_on_tls(opening: Opening, tmp_path: Path) -> None:
    for scheme in ("http", "https"):
        assert "cannot be reached: Connection refused" in str(opening(f"{scheme}://127.0.0.1:1", None))
