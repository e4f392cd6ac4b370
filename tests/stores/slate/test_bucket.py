"""A slate store in a bucket: the same as in a folder, on a real S3 server."""

import pytest

import penstock
from penstock import InvalidArgument
from penstock.stores.slate.s3 import Account, Bucket, signed
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
    name, prefix = bucket.removeprefix("slate:s3://").split("/")
    objects = Bucket(Account.from_environment(), name, f"{prefix}/objects/", 30)
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


@pytest.mark.parametrize("url", ["slate:s3://", "slate:s3://UPPER/x", "slate:gs://bucket/x"])
def test_what_is_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match=r"is no bucket: give slate:s3://bucket/prefix"):
        penstock.open(url)


def test_without_credentials_the_error_names_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    with pytest.raises(InvalidArgument, match="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        penstock.open("slate:s3://bucket/x")


def test_requests_are_signed_as_in_amazons_example() -> None:
    account = Account("", "us-east-1", "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "")
    headers = signed(
        account, "examplebucket.s3.amazonaws.com", "GET", "/", "max-keys=2&prefix=J", b"", 1369353600.0
    )
    assert headers["x-amz-date"] == "20130524T000000Z"
    assert headers["authorization"].endswith(
        "SignedHeaders=host;x-amz-content-sha256;x-amz-date, "
        "Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
    )


def test_objects_are_listed_page_by_page(s3: S3, bucket: str) -> None:
    name = bucket.removeprefix("slate:s3://").split("/")[0]
    objects = Bucket(Account.from_environment(), name, "odd name & more/", 30)
    for each in ("a", "b&c", "ü"):
        objects.put(each, each.encode())
    assert sorted(objects.list()) == ["a", "b&c", "ü"]
    assert objects.get("ü") == "ü".encode()
    objects.delete("a")
    objects.delete("a")
    with pytest.raises(FileNotFoundError):
        objects.get("a")
