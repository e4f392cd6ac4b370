"""A slate store in a bucket: the same as in a folder, on a real S3 server."""

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import penstock
from penstock import InvalidArgument, StoreUnreachable
from penstock.stores.slate.objects import Bucket
from tests.stores.slate.servers import S3


def test_a_store_in_a_bucket_keeps_what_it_was_given(bucket: str) -> None:
    with penstock.open(bucket) as store:
        queue = store.create("jobs", keep_done=60)
        ids = queue.put_many([b"a", penstock.Draft(b"b", priority=7, headers={"kind": "größe"}), b"c"])
        queue.claim(1, consumer="me")[0].ack()
        [held] = queue.claim(1, lease=600)
        before = list(queue.messages())
    with penstock.open(bucket) as store:
        queue = store.queue("jobs")
        assert list(queue.messages()) == before
        assert [message.id for message in before] == ids
        queue.ack(held.receipt or "")
        assert queue.counts() == {"delayed": 0, "available": 1, "in_flight": 0, "done": 2, "failed": 0}


def test_a_payload_that_is_too_large_for_a_record_is_an_object(s3: S3, bucket: str) -> None:
    objects = Bucket(f"{bucket.removeprefix('slate:')}/objects", 30)
    with penstock.open(bucket) as store:
        queue = store.queue()
        [message_id] = queue.put_many([bytes(70_000)])
        assert objects.list() == [message_id]
        assert objects.get(message_id) == bytes(70_000)
    with penstock.open(bucket) as store:
        [message] = store.queue().claim()
        assert message.payload == bytes(70_000)
        message.ack()
        assert objects.list() == []


def test_a_second_store_in_the_same_bucket_has_its_own_queues(bucket: str) -> None:
    with penstock.open(bucket) as first, penstock.open(f"{bucket}-2") as second:
        first.queue().put(b"a")
        assert len(second.queue()) == 0


@pytest.mark.parametrize(
    "url", ["slate:s3://", "slate:s3://UPPER/x", "slate:ftp://bucket/x", "slate:gs://UPPER/x"]
)
def test_what_is_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match=r"is no bucket: give slate:s3://bucket/prefix"):
        penstock.open(url)


def test_without_credentials_the_error_names_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    with pytest.raises(InvalidArgument, match="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        penstock.open("slate:s3://bucket/x")


def test_credentials_that_are_renewed_need_no_keys(
    s3: S3, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a container gets them: from an address, which is asked again before they end."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers["Authorization"])
            keys = {"AccessKeyId": "lent", "SecretAccessKey": "lent-secret", "Token": "lent-token"}
            body = json.dumps({**keys, "Expiration": "2099-01-01T00:00:00Z"}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
            pass

    asked: list[str] = []
    (tmp_path / "token").write_text("mine")
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        url = f"http://127.0.0.1:{server.server_port}/credentials"
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url)
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
        with penstock.open(bucket, share=False) as store:
            store.queue().put(bytes(70_000))
            [message] = store.queue().claim()
            assert message.payload == bytes(70_000)
        server.shutdown()
    assert set(asked) == {"mine"}


def test_objects_have_any_names_and_are_listed_all(s3: S3, bucket: str) -> None:
    objects = Bucket(f"{bucket.removeprefix('slate:')} & more", 30)
    names = ["a", "b&c", "ü", *(f"many/{number:04}" for number in range(1_200))]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: objects.put(name, name.encode()), names))
    assert sorted(objects.list()) == sorted(names)
    assert len(objects.sizes("many", "many/0199")) == 1_000
    assert objects.sizes("man") == {}
    assert objects.get("ü") == "ü".encode()
    objects.delete("a")
    objects.delete("a")
    for missing in (lambda: objects.get("a"), lambda: objects.copy("a", "z")):
        with pytest.raises(FileNotFoundError):
            missing()
    assert (objects.has("a"), objects.has("ü"), objects.has_folder("many"), objects.has_folder("a")) == (
        False, True, True, False
    )  # fmt: skip


def test_a_bucket_that_refuses_or_does_not_answer_is_unreachable(s3: S3, bucket: str) -> None:
    objects = Bucket(bucket.removeprefix("slate:"), 0.5)
    s3.pause()
    try:
        for ask in (lambda: objects.get("a"), lambda: objects.put("a", b"1"), objects.list):
            with pytest.raises(StoreUnreachable, match=f"the bucket at {s3.url} cannot be used"):
                ask()
    finally:
        s3.resume()


def test_a_child_of_a_process_that_has_used_a_bucket_is_told_so_and_does_not_hang(s3: S3, bucket: str) -> None:
    code = """
import os, sys, penstock
from penstock.contract.kinds import exists
exists(sys.argv[1])
child = os.fork()
if not child:
    try:
        exists(sys.argv[1])
    except penstock.NotSupported as error:
        os._exit(7 if "forked" in str(error) else 1)
    os._exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    told = subprocess.run([sys.executable, "-c", code, bucket], capture_output=True, text=True, check=True)
    assert told.stdout == "7\n"


def test_a_container_of_azure_is_asked_where_the_variables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreUnreachable, match=r"the bucket at az://box cannot be used \(.*Account must be"):
        penstock.open("slate:az://box/x", timeout=1)
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")  # on this machine, where there is none
    with pytest.raises(StoreUnreachable, match="the bucket at az://box cannot be used"):
        penstock.open("slate:az://box/x", timeout=1)
