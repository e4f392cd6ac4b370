"""Web pages of others are kept out of a server without tokens: every route, as browsers ask."""

import asyncio
import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import penstock
import penstock.aio
from penstock import Forbidden, InvalidArgument
from penstock.cli import cli
from penstock.contract import roles
from penstock.http.server import Access, RunningServer, serve_in_thread, tokens
from tests.harness.children import ServerChild
from tests.http.serving import serving
from tests.http.test_server_access import ROUTES

BROWSER = "User-Agent: Mozilla/5.0 (X11; Linux x86_64)"
FOREIGN = {
    "another origin": ["Origin: https://evil.example"],
    "another port": ["Origin: http://localhost:3000", "Sec-Fetch-Site: same-site"],
    "another port, as an image": [BROWSER, "Sec-Fetch-Site: same-site"],
    "no origin": ["Origin: null"],
    "two origins": ["Origin: http://{host}", "Origin: http://evil.example"],
    "an empty origin": ["Origin:"],
    "an origin of another scheme": ["Origin: file://{host}"],
    "another site": ["Sec-Fetch-Site: cross-site"],
    "another site, by a link": [BROWSER, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"],
    "a site of no kind": ["Sec-Fetch-Site: some-day"],
}
NAMES = [
    "evil.example", "evil.example:{port}", "localhost.evil.example", "127.0.0.1.evil.example:{port}", "127.0.0.1.",
    "evil.example@localhost", "localhost:x", "[evil.example]", "0x7f.1", "2130706433", "", "penstock", ":{port}",
]  # fmt: skip
OWN = [
    ["Host: {host}"],
    ["Host: localhost"],
    ["Host: LOCALHOST:{port}"],
    ["Host: [::1]:{port}"],
    ["Host: 10.1.2.3"],
    ["Host: {host}", "Origin: http://{host}", "Sec-Fetch-Site: same-origin"],
    ["Host: LocalHost:{port}", "Origin: http://localhost:{port}"],
    ["Host: {host}", BROWSER, "Sec-Fetch-Site: none"],
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[penstock.Store]:
    with penstock.open(tmp_path_factory.mktemp("pages") / "store", sync="never") as store:
        store.create("jobs").put(b"untouched")
        yield store


@pytest.fixture(scope="module")
def server(store: penstock.Store) -> Iterator[RunningServer]:
    with serving(store, allow_hosts=["Queue.example"]) as running:
        yield running


def say(url: str, method: str, path: str, *headers: str, version: str = "1.1") -> tuple[int, bytes]:
    """What a server answers to a request with these headers: its status and its body."""
    host = url.partition("://")[2]
    lines = [f"{method} {path} HTTP/{version}", *headers, "Connection: close", "", ""]
    filled = "\r\n".join(lines).replace("{host}", host).replace("{port}", host.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", int(host.rpartition(":")[2]))) as raw:
        raw.sendall(filled.encode())
        head, _, body = b"".join(iter(lambda: raw.recv(1 << 16), b"")).partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def target(path: str) -> str:
    return path.replace("{queue}", "jobs").replace("{number}", "0").replace("{", "").replace("}", "")


def test_every_route_refuses_pages_of_others(server: RunningServer, store: penstock.Store) -> None:
    routes = [*ROUTES, ("OPTIONS", "/{queue}/messages"), ("GET", "/-/nothing"), ("GET", "/-/share/stored")]
    for method, path in routes:
        for headers in FOREIGN.values():
            status, body = say(server.url, method, target(path), "Host: {host}", *headers)
            assert status == 403, (method, path, headers)
            assert not body or json.loads(body)["error"] == "Forbidden" or method == "HEAD"
    assert [(each.payload, each.attempts) for each in store.queue("jobs").messages()] == [(b"untouched", 0)]


def test_every_route_refuses_names_that_are_not_the_servers(server: RunningServer, store: penstock.Store) -> None:
    for method, path in ROUTES:
        for name in NAMES:
            status, body = say(server.url, method, target(path), f"Host: {name}")
            assert status == 403, (method, path, name)
            assert not body or "--allow-host" in json.loads(body)["detail"]
    assert [(each.payload, each.attempts) for each in store.queue("jobs").messages()] == [(b"untouched", 0)]


@pytest.mark.parametrize("headers", OWN)
def test_clients_and_pages_of_the_server_itself_are_answered(server: RunningServer, headers: list[str]) -> None:
    assert say(server.url, "GET", "/-/docs", *headers)[0] == 200
    assert say(server.url, "POST", "/default/messages", *headers, "Content-Length: 0")[0] == 201
    assert say(server.url, "GET", "/default/messages", *headers)[0] == 200


def test_a_name_that_was_allowed_is_a_name_of_the_server(server: RunningServer) -> None:
    assert say(server.url, "GET", "/jobs", "Host: queue.example:8390")[0] == 200
    proxied = ["Host: queue.EXAMPLE", "Origin: https://queue.example", "Sec-Fetch-Site: same-origin"]
    assert say(server.url, "GET", "/jobs", *proxied)[0] == 200
    assert say(server.url, "GET", "/jobs", "Host: queue.example", "Origin: https://evil.example")[0] == 403
    assert say(server.url, "GET", "/jobs", "Host: other.queue.example")[0] == 403


def test_an_image_of_a_page_takes_no_message_where_browsers_do_not_say_whose_it_is(
    server: RunningServer, store: penstock.Store
) -> None:
    """Without TLS, and by an address that is not loopback, browsers send neither Origin nor Sec-Fetch-Site."""
    image = ["Host: 10.1.2.3:8390", BROWSER, "Accept: image/avif,image/webp,*/*"]
    assert say(server.url, "GET", "/jobs/messages?lease=43200", *image)[0] == 403
    assert store.queue("jobs").counts()["available"] == 1
    assert say(server.url, "GET", "/-/docs", *image)[0] == 200


def test_http_1_0_without_a_host_is_no_browser(server: RunningServer) -> None:
    assert say(server.url, "GET", "/jobs", version="1.0")[0] == 200
    assert say(server.url, "GET", "/jobs", "Host: evil.example", version="1.0")[0] == 403
    assert say(server.url, "GET", "/jobs", "Origin: http://localhost", version="1.0")[0] == 403


def test_a_target_in_absolute_form_names_the_server_as_well(server: RunningServer) -> None:
    for version in ("1.0", "1.1"):
        for name in ("localhost", "127.0.0.1:{port}", "[::1]", "QUEUE.example:80"):
            assert say(server.url, "GET", f"http://{name}/jobs", "Host: {host}", version=version)[0] == 200
        for name in ("evil.example", "evil.example:{port}", "localhost@evil.example", "evil.example?localhost"):
            assert say(server.url, "GET", f"http://{name}/jobs", "Host: {host}", version=version)[0] == 403
    assert say(server.url, "GET", "http://evil.example/jobs", version="1.0")[0] == 403
    assert say(server.url, "GET", "http://localhost/jobs", "Host: evil.example")[0] == 403


def test_a_head_that_is_known_is_known_with_its_origin(server: RunningServer) -> None:
    asked = b"GET /jobs HTTP/1.1\r\nHost: localhost\r\n%b\r\n"
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as raw:
        for _ in range(3):
            raw.sendall(asked % b"")
            assert raw.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        raw.sendall(asked % b"Origin: http://evil.example\r\n")
        assert raw.recv(1 << 16).startswith(b"HTTP/1.1 403 ")


def test_our_clients_and_curl_are_no_pages(server: RunningServer) -> None:
    port = server.url.rpartition(":")[2]
    for host in ("127.0.0.1", "localhost"):
        with penstock.open(f"http://{host}:{port}") as store:
            assert store.queue("jobs").count() == 1

    async def count() -> int:
        async with penstock.aio.open(server.url) as store:
            return await (await store.queue("jobs")).count()

    assert asyncio.run(count()) == 1
    done = subprocess.run(["curl", "-sf", f"localhost:{port}/-/healthz"], capture_output=True, check=True)
    assert json.loads(done.stdout) == {"status": "ok"}
    assert CliRunner().invoke(cli, ["--store", f"http://localhost:{port}", "list"]).exit_code == 0


def test_tokens_tell_more_than_names(store: penstock.Store, tmp_path: Path) -> None:
    """No browser adds a token by itself: a page that has one was given it."""
    secret = tokens.create(str(tmp_path / "tokens"), "me", roles.ADMIN)
    with serving(store, access=Access(str(tmp_path / "tokens"))) as running:
        page = ["Host: queue.example", "Origin: https://app.example", "Sec-Fetch-Site: cross-site"]
        assert say(running.url, "GET", "/jobs/messages", *page)[0] == 401
        assert say(running.url, "GET", "/jobs", *page, f"Authorization: Bearer {secret}")[0] == 200


@pytest.mark.parametrize("name", ["http://queue.example", "queue.example:80", "", "a/b", "a,b", "*"])
def test_an_allowed_host_is_a_name(store: penstock.Store, name: str) -> None:
    with pytest.raises(InvalidArgument, match="without scheme and port"):
        serve_in_thread(store, allow_hosts=[name])


@pytest.mark.parametrize("setting", ['["one.example", "two.example"]', '"one.example"'])
def test_the_command_and_its_file_name_hosts(tmp_path: Path, setting: str) -> None:
    config = tmp_path / "serve.toml"
    config.write_text(f"[serve]\nallow_host = {setting}\n")
    with ServerChild(tmp_path / "data", "--config", str(config)) as served:
        assert say(served.url, "GET", "/default", "Host: one.example")[0] == 200
        assert say(served.url, "GET", "/default", "Host: two.example")[0] == (200 if "two" in setting else 403)
        assert served.stop() == 0
    with ServerChild(tmp_path / "data", "--allow-host", "a.example", "--allow-host", "b.example") as served:
        statuses = [say(served.url, "GET", "/default", f"Host: {name}.example")[0] for name in "abc"]
        assert statuses == [200, 200, 403]


def test_a_client_that_uses_another_name_is_told_what_to_do(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as store, serving(store) as running:
        port = running.url.rpartition(":")[2]
        with pytest.raises(Forbidden, match="--allow-host"):
            penstock.open(f"http://127.1:{port}")
