"""Who may do what: every route against every kind of token, the token file, and TLS."""

import asyncio
import http.client
import json
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

import penstock
import penstock.aio
from penstock import Forbidden, InvalidArgument, StoreUnreachable, Unauthorized
from penstock.cli import cli
from penstock.contract import roles
from penstock.http.server import Access, Limits, RunningServer, serve_in_thread, tokens
from penstock.http.server.openapi import document
from penstock.http.server.routes import find
from penstock.sharing.backend import engine_of
from tests.harness.children import ServerChild
from tests.http.serving import ask, make_certificate, serving, until

PATHS = document()["paths"]
ROUTES = [(method.upper(), path) for path, methods in PATHS.items() for method in methods]
NO_HASH = "0" * 64
HELD = {"nobody": None, "wrong": None, **roles.ROLES}
EXPECTED = {  # said once more, by hand, as a table that is only compared with itself proves nothing
    "anyone": {"start", "console", "docs", "openapi", "healthz", "whoami"},
    "any role": {"get_queue", "show_queue"},
    "read": {
        "list_streams", "start_following", "look_ahead", "list_entered", "stop_following",
        "list_queues", "list_figures", "show_message", "peek", "messages", "parts", "all_attempts", "attempts",
        "find_messages",
        "run", "readyz", "metrics", "show_overview", "show_total_history", "show_history", "list_reasons",
        "show_server", "show_activity", "wait_for_change",
    },
    "write": {"post_message", "put", "publish", "begin_load", "add_to_load", "commit_load", "abort_load", "run"},
    "consume": {
        "get_message", "claim", "pop", "ack", "fail", "release", "extend", "remove", "delete_message",
        "begin_stream", "next_batch", "follow_queue", "read_batch", "list_batch", "fail_in_batch", "settle_batch",
    },
    "admin": {
        "put_queue", "create_queue", "update_queue", "delete_queue", "drop_queue", "revoke", "redrive",
        "move", "purge", "release_stream", "delete_stream",
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("access")


@pytest.fixture(scope="module")
def secrets(folder: Path) -> dict[str, str]:
    made = {name: tokens.create(str(folder / "tokens"), name, role) for name, role in roles.ROLES.items()}
    return {**made, "wrong": "pst_" + "x" * 43}


@pytest.fixture(scope="module")
def store(folder: Path) -> Iterator[penstock.Store]:
    with penstock.open(folder / "secret-place", sync="never") as store:
        yield store


@pytest.fixture(scope="module")
def server(store: penstock.Store, folder: Path, secrets: dict[str, str]) -> Iterator[RunningServer]:
    with serving(store, access=Access(str(folder / "tokens"))) as running:
        yield running


@pytest.mark.parametrize("who", HELD)
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_lets_in_whom_it_is_for(
    server: RunningServer, secrets: dict[str, str], method: str, path: str, who: str
) -> None:
    operation = PATHS[path][method.lower()]["operationId"].removeprefix("head_")
    groups = {group for group, operations in EXPECTED.items() if operation in operations}
    assert groups, f"{operation} is in no group"
    # Of queues and loads that are not there, so that nothing happens that a later case would notice.
    target = path.replace("{queue}", "nobody").replace("{number}", "0").replace("{load}", "0").replace("{", "")
    bearer: dict[str, Any] = {"Authorization": f"Bearer {secrets[who]}"} if who in secrets else {}
    status, headers, body = ask(server.url, target.replace("}", ""), method, **bearer)
    allowed = "anyone" in groups or (who in roles.ROLES and (who == "admin" or groups & {"any role", who}))
    if allowed:
        assert status not in (401, 403)
    elif who in roles.ROLES:
        assert status == 403
        named = sorted(groups)
        assert 'error="insufficient_scope"' in headers["WWW-Authenticate"]
        if method != "HEAD":
            problem = json.loads(body)
            assert problem["error"] == "Forbidden"
            assert f"lacks the role {' or '.join(named)}" in problem["detail"]
    else:
        assert status == 401
        assert headers["WWW-Authenticate"].startswith("Bearer")
        if method != "HEAD":
            assert json.loads(body)["error"] == "Unauthorized"


def test_the_table_of_roles_is_complete_and_what_the_document_says() -> None:
    operations = {each["operationId"] for methods in PATHS.values() for each in methods.values()}
    assert {name for name in operations if not name.startswith("head_")} == set().union(*EXPECTED.values())
    for path, methods in PATHS.items():
        for method, described in methods.items():
            needed = find(method.upper().encode(), path.encode())[0].roles
            said = {role for each in described.get("security", ()) for role in each.get("token", ())}
            assert said == (set() if needed == roles.ANY_ROLE else set(roles.names(needed)))


@pytest.mark.parametrize(
    "header",
    ["Basic {}", "bearer", "Bearer", "Bearer  ", "{}", "Token {}", "Bearer {}x", "Bearer {} {}", "Bearer \xff{}"],
)
def test_what_is_not_a_token_is_none(server: RunningServer, secrets: dict[str, str], header: str) -> None:
    assert ask(server.url, "/default", Authorization=header.replace("{}", secrets["admin"]))[0] == 401


@pytest.mark.parametrize(
    "lines",
    [
        "Authorization: Bearer {read}\r\nAuthorization: Bearer {admin}\r\n",
        "Content-Length: 9999\r\nExpect: 100-continue\r\n",
    ],
    ids=["two tokens", "a body that has not come"],
)
def test_a_head_without_one_known_token_is_refused(
    server: RunningServer, secrets: dict[str, str], lines: str
) -> None:
    host, port = urlsplit(server.url).netloc.split(":")
    with socket.create_connection((host, int(port)), 60) as client:
        client.sendall(f"POST /default/messages HTTP/1.1\r\nHost: a\r\n{lines.format(**secrets)}\r\n".encode())
        assert client.recv(65_536).startswith(b"HTTP/1.1 401")


def test_the_token_counts_for_each_request_of_a_connection(server: RunningServer, secrets: dict[str, str]) -> None:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc)
    for token, status in ((secrets["read"], 200), (secrets["read"], 200), (secrets["wrong"], 401)):
        connection.request("GET", "/-/api/queues", headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == status
    connection.close()


def test_monitoring_can_be_open_to_all(store: penstock.Store, folder: Path, secrets: dict[str, str]) -> None:
    with serving(store, access=Access(str(folder / "tokens"), open_monitoring=True)) as running:
        for path, status in (("/-/readyz", 200), ("/-/metrics", 200), ("/-/healthz", 200), ("/-/api/queues", 401)):
            assert ask(running.url, path)[0] == status


# Clients


def test_clients_bring_their_token(
    server: RunningServer, store: penstock.Store, secrets: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)
    with pytest.raises(Unauthorized, match="PENSTOCK_TOKEN"):
        penstock.open(server.url)
    with pytest.raises(Unauthorized, match="not, or no longer, known"):
        penstock.open(server.url, token=secrets["wrong"])
    with penstock.open(server.url, token=secrets["admin"]) as remote:
        remote.create("clients")
    with penstock.open(server.url, token=secrets["write"]) as remote:
        queue = remote.queue("clients")
        queue.put(b"a")
        with pytest.raises(Forbidden, match="lacks the role consume"):
            queue.claim()
        with pytest.raises(Forbidden, match="lacks the role read"):
            list(queue.messages())
    monkeypatch.setenv("PENSTOCK_TOKEN", secrets["consume"])
    with penstock.open(server.url) as remote:
        [message] = remote.queue("clients").claim()
        assert message.payload == b"a"
        message.ack()
        with pytest.raises(Forbidden):
            remote.queue("clients").put(b"b")
    with pytest.raises(InvalidArgument, match="characters that none has") as raised:
        penstock.open(server.url, token="a\r\nX-Evil: b")
    assert "Evil" not in str(raised.value)


def test_coroutines_bring_their_token(server: RunningServer, secrets: dict[str, str]) -> None:
    async def life() -> None:
        with pytest.raises(Unauthorized):
            await penstock.aio.open(server.url, token="")
        async with penstock.aio.open(server.url, token=secrets["admin"]) as remote:
            queue = await remote.create("coroutines")
            await queue.put(b"a")
            for message in await queue.claim():
                await message.ack()

    asyncio.run(life())


def test_the_command_line_brings_its_token(server: RunningServer, secrets: dict[str, str]) -> None:
    def run(token: str) -> Any:
        return CliRunner().invoke(cli, ["--store", server.url, "list"], env={"PENSTOCK_TOKEN": token})

    assert run(secrets["read"]).exit_code == 0
    refused = run(secrets["wrong"])
    assert refused.exit_code == 1
    assert "token" in refused.stderr
    assert "Traceback" not in refused.output


# The token file


def test_the_file_has_hashes_and_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    before = os.umask(0)
    try:
        secret = tokens.create(str(path), "me", roles.READ)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert secret not in path.read_text()
    assert len(secret) >= 43
    assert tokens.find(tokens.read(str(path)), secret.encode()) is not None
    assert tokens.find(tokens.read(str(path)), secret.encode()[:-1]) is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644, 0o666])
def test_a_file_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "tokens"
    tokens.create(str(path), "me", roles.READ)
    path.chmod(mode)
    for attempt in (
        lambda: Access(str(path)),
        lambda: tokens.create(str(path), "you", roles.READ),
        lambda: tokens.revoke(str(path), "me"),
    ):
        with pytest.raises(InvalidArgument, match="chmod 600"):
            attempt()


@pytest.mark.parametrize(
    "line",
    ["me", "me read", "me read sha256:abc", f"me king sha256:{NO_HASH}", f"a/b read sha256:{NO_HASH}"],
)  # fmt: skip
def test_a_line_that_is_no_token_is_refused_by_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "tokens"
    tokens.create(str(path), "you", roles.READ)
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InvalidArgument, match="line 3"):
        tokens.read(str(path))


def test_names_are_given_once_and_can_be_given_again(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens")
    first = tokens.create(path, "me", roles.READ)
    other = tokens.create(path, "you", roles.WRITE)
    with pytest.raises(InvalidArgument, match="already"):
        tokens.create(path, "me", roles.READ)
    assert tokens.revoke(path, "me")
    assert not tokens.revoke(path, "me")
    second = tokens.create(path, "me", roles.ADMIN)
    known = tokens.read(path)
    assert tokens.find(known, first.encode()) is None
    found = tokens.find(known, second.encode())
    assert found is not None
    assert found.roles == roles.ADMIN
    assert tokens.find(known, other.encode()) is not None
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_a_server_reads_the_file_again_when_it_changes(
    store: penstock.Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens"
    first = tokens.create(str(path), "first", roles.READ)
    with serving(store, access=Access(str(path))) as running:

        def status(secret: str) -> int:
            return ask(running.url, "/-/api/queues", Authorization=f"Bearer {secret}")[0]

        second = tokens.create(str(path), "second", roles.READ)
        until(lambda: status(second) == 200)
        tokens.revoke(str(path), "first")
        until(lambda: status(first) == 401)
        path.chmod(0o644)
        until(lambda: "chmod 600" in caplog.text)
        assert status(second) == 200


@pytest.mark.parametrize(
    "path", ["/default/messages?wait=60", "/-/api/queues/default/claim", "/-/api/queues/default/pop"]
)
def test_a_token_that_is_revoked_ends_its_long_polls(store: penstock.Store, tmp_path: Path, path: str) -> None:
    tokens_file = str(tmp_path / "tokens")
    secrets = {name: tokens.create(tokens_file, name, roles.CONSUME) for name in ("revoked", "good")}
    method, body = ("GET", b"") if "?" in path else ("POST", b'{"wait": 60}')
    queue = engine_of(store).find("default")  # type: ignore[union-attr]
    store.queue().purge()
    polls = {}
    with serving(store, access=Access(tokens_file)) as running, ExitStack() as sockets:
        for name, secret in secrets.items():
            address = ("127.0.0.1", int(running.url.rpartition(":")[2]))
            polls[name] = sockets.enter_context(socket.create_connection(address))
            head = f"{method} {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {secret}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            polls[name].sendall(head.encode() + body)
        until(lambda: queue.in_line == 2)
        tokens.revoke(tokens_file, "revoked")
        answer = b"".join(iter(lambda: polls["revoked"].recv(1 << 16), b""))  # and the connection ends
        assert answer.startswith(b"HTTP/1.1 401 ")
        until(lambda: queue.in_line == 1)
        store.queue().put(b"for the other")
        assert polls["good"].recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def test_the_commands_make_list_and_revoke_tokens(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens")

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(cli, ["token", *arguments], env={"PENSTOCK_TOKENS": path})

    made = json.loads(run("create", "shop", "--role", "write", "--role", "read", "--json").stdout)
    assert made["roles"] == ["read", "write"]
    assert tokens.find(tokens.read(path), made["token"].encode()) is not None
    secret = run("create", "me", "--role", "admin").stdout.strip()
    assert tokens.find(tokens.read(path), secret.encode()) is not None
    assert run("list").stdout == "shop read,write\nme admin\n"
    assert run("revoke", "shop").exit_code == 0
    assert run("revoke", "shop").exit_code == 2
    assert json.loads(run("list", "--json").stdout) == [{"name": "me", "roles": ["admin"]}]
    for arguments in (("create", "me", "--role", "read"), ("create", "a b", "--role", "read"), ("create", "x")):
        assert run(*arguments).exit_code == 2


# Where a server listens


def test_only_this_machine_is_let_in_without_tokens(store: penstock.Store, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="--insecure"):
        serve_in_thread(store, host="0.0.0.0")
    path = str(tmp_path / "tokens")
    tokens.create(path, "me", roles.READ)
    serve_in_thread(store, host="0.0.0.0", access=Access(path)).stop()
    serve_in_thread(store, host="0.0.0.0", insecure=True).stop()
    refused = CliRunner().invoke(cli, ["--store", str(tmp_path / "store"), "serve", "--host", "0.0.0.0"])
    assert refused.exit_code == 2
    assert "--tokens FILE" in refused.stderr


# TLS


@pytest.fixture(scope="module")
def certificate(folder: Path) -> tuple[str, str]:
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    make_certificate(cert, key)
    return cert, key


def test_tls_and_tokens_work_together(
    tmp_path: Path,
    folder: Path,
    secrets: dict[str, str],
    certificate: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cert, key = certificate
    options = ("--tls-cert", cert, "--tls-key", key, "--tokens", str(folder / "tokens"))
    with ServerChild(tmp_path / "store", *options) as server:
        assert server.url.startswith("https://")
        with pytest.raises(StoreUnreachable, match="certificate"):
            penstock.open(server.url, token=secrets["admin"])
        with penstock.open(server.url, token=secrets["admin"], ca=cert) as store:
            queue = store.create("jobs")
            queue.put_many([b"x" * 1_000_000] * 10)
            assert [len(message.payload) for message in queue.claim(10)] == [1_000_000] * 10

        async def life() -> None:
            async with penstock.aio.open(server.url, token=secrets["admin"], ca=cert) as store:
                queue = await store.queue("jobs")
                await queue.put(b"a")
                assert (await queue.pop()) is not None

        asyncio.run(life())
        with pytest.raises(Unauthorized):
            penstock.open(server.url, ca=cert)
        monkeypatch.setenv("SSL_CERT_FILE", cert)
        monkeypatch.setenv("PENSTOCK_TOKEN", secrets["read"])
        with penstock.open(server.url.replace("127.0.0.1", "localhost")) as store:
            assert [info.name for info in store.queues()] == ["default", "jobs"]
        with pytest.raises(StoreUnreachable):  # who speaks no TLS
            penstock.open(server.url.replace("https", "http"))
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with (
            socket.create_connection(("127.0.0.1", server.port)) as raw,
            pytest.raises(OSError, match=r"alert|reset|EOF|rotocol"),
        ):
            old.wrap_socket(raw)
        assert server.stop() == 0
        assert server.errors.read_text() == ""


def test_who_does_not_finish_the_handshake_is_cut_off(store: penstock.Store, certificate: tuple[str, str]) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    with serving(store, tls=context, limits=Limits(arriving=1.0)) as running:
        with socket.create_connection(("127.0.0.1", urlsplit(running.url).port), 60) as raw:
            raw.sendall(b"\x16\x03\x01")
            assert raw.recv(100) == b""
        with penstock.open(running.url, ca=certificate[0]) as remote:
            assert remote.queues()


def test_sighup_reads_tokens_and_certificate_again(tmp_path: Path, certificate: tuple[str, str]) -> None:
    cert, key, path = tmp_path / "cert.pem", tmp_path / "key.pem", str(tmp_path / "tokens")
    secret = tokens.create(path, "me", roles.ADMIN)
    for file, source in ((cert, certificate[0]), (key, certificate[1])):
        file.write_bytes(Path(source).read_bytes())
    options = ("--tls-cert", str(cert), "--tls-key", str(key), "--tokens", path, "--log-level", "info")
    with ServerChild(tmp_path / "store", *options) as server:
        make_certificate(str(cert), str(key))
        server.process.send_signal(signal.SIGHUP)
        until(lambda: "read 1 tokens" in server.errors.read_text())
        with pytest.raises(StoreUnreachable, match="certificate"):
            penstock.open(server.url, token=secret, ca=certificate[0])
        with penstock.open(server.url, token=secret, ca=str(cert)) as store:
            assert store.queues()
        cert.write_text("nonsense")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: "the old one stays in use" in server.errors.read_text())
        assert server.stop() == 0


def test_a_certificate_that_is_none_is_refused(tmp_path: Path, certificate: tuple[str, str]) -> None:
    def run(*options: str) -> Any:
        return CliRunner().invoke(cli, ["--store", str(tmp_path / "store"), "serve", *options])

    for options in (("--tls-cert", str(tmp_path / "none")), ("--tls-cert", certificate[1]), ("--tls-key", "a")):
        refused = run(*options)
        assert refused.exit_code == 2
        assert "Traceback" not in refused.output
    with pytest.raises(InvalidArgument, match="PEM file"):
        penstock.open("https://localhost:1", ca=str(tmp_path / "none"))
