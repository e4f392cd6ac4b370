"""Loads that clients send to a slate store: what is special there. The rest is in test_server_loads.py."""

from pathlib import Path

import pytest

import penstock
from penstock.contract.loads import Sent
from penstock.contract.message import Entry
from penstock.contract.operations import Messages
from penstock.stores.slate.binding import Row
from penstock.stores.slate.store import SlateBackend, open_slate
from penstock.wire.frames import encode_entries


def begun(backend: SlateBackend) -> str:
    """A load of two messages."""
    load = backend.uploads().begin({})
    for number in range(2):
        backend.uploads().add(load, "a", number, "default", encode_entries([Entry(b"%d" % number)]))
    return load


def in_doubt(backend: SlateBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on what is written is written, but nobody is told in time."""
    write = backend._writer.write_now

    def late(rows: list[Row]) -> None:
        write(rows)
        raise penstock.StoreUnreachable("no answer")

    monkeypatch.setattr(backend._writer, "write_now", late)


def payloads(backend: SlateBackend) -> list[bytes]:
    return [message.payload for message in backend.run(Messages("default"))]


def test_a_commit_in_doubt_is_repeated_and_takes_effect_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = open_slate(f"slate:{tmp_path}")
    load = begun(backend)
    with monkeypatch.context() as patch:
        in_doubt(backend, patch)
        with pytest.raises(penstock.StoreUnreachable):
            backend.uploads().commit(load, [Sent("a", 2)], "run")
    for _ in range(2):
        assert backend.uploads().commit(load, [Sent("a", 2)], "run") == (True, 2)
    assert payloads(backend) == [b"0", b"1"]
    assert backend.loads._place.list_loads() == []
    backend.close()


@pytest.mark.parametrize("aborted", [True, False])
def test_what_may_count_is_kept_until_the_store_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aborted: bool
) -> None:
    backend = open_slate(f"slate:{tmp_path}")
    load = begun(backend)
    with monkeypatch.context() as patch:
        in_doubt(backend, patch)
        with pytest.raises(penstock.StoreUnreachable):
            backend.uploads().commit(load, [Sent("a", 2)], None)
    if aborted:
        backend.uploads().abort(load)
    backend.close()
    backend = open_slate(f"slate:{tmp_path}")
    assert payloads(backend) == [b"0", b"1"]
    assert backend.loads._place.list_loads() == []
    backend.close()


def test_a_batch_that_could_not_be_kept_is_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_slate(f"slate:{tmp_path}")
    load = begun(backend)
    with monkeypatch.context() as patch:

        def unreachable(*arguments: object) -> None:
            raise penstock.StoreUnreachable("no answer")

        patch.setattr(backend.loads._place, "stage", unreachable)
        with pytest.raises(penstock.StoreUnreachable):
            backend.uploads().add(load, "a", 2, "default", encode_entries([Entry(b"2")]))
    backend.uploads().add(load, "a", 2, "default", encode_entries([Entry(b"2")]))
    backend.uploads().commit(load, [Sent("a", 3)], None)
    assert payloads(backend) == [b"0", b"1", b"2"]
    backend.close()


def test_a_load_goes_into_a_bucket(bucket: str) -> None:
    backend = open_slate(bucket)
    load = begun(backend)
    assert backend.uploads().commit(load, [Sent("a", 2)], None) == (True, 2)
    forgotten = begun(backend)
    assert backend.loads._place.list_loads() == [forgotten]
    backend.close()
    backend = open_slate(bucket)
    assert backend.loads._place.list_loads() == []
    assert backend.uploads().commit(load, [Sent("a", 2)], None) == (True, 2)
    assert payloads(backend) == [b"0", b"1"]
    backend.close()
