"""Loads that the owner of a slate store takes in: they take effect once, whatever interrupts."""

import os
from pathlib import Path

import pytest

import penstock
from penstock.contract.loads import Sent, SinkCommit
from penstock.contract.message import Entry
from penstock.contract.operations import Counts, Messages, Put
from penstock.stores.slate.binding import Row
from penstock.stores.slate.bucket import BucketPlace
from penstock.stores.slate.loads import Frame, Load, _Progress, new_name
from penstock.stores.slate.store import SlateBackend, open_slate
from penstock.wire.frames import encode_entries


def staged(backend: SlateBackend, sink: SinkCommit | None = None, run: str | None = None) -> Load:
    """A load of two messages, in frames of their own."""
    name = new_name(os.getpid())
    for number in range(2):
        backend.loads._place.stage(name, f"frame-{number}", encode_entries([Entry(b"x")]))
    return Load(name, [Frame("default", f"frame-{number}", 1, 1) for number in range(2)], {}, run, sink)


def waiting(backend: SlateBackend) -> int:
    return backend.run(Counts("default"))["available"]


def test_a_batch_lands_once_and_a_new_query_must_say_that_it_is_one(tmp_path: Path) -> None:
    backend = open_slate(f"slate:{tmp_path}")
    assert backend.loads.commit(staged(backend, SinkCommit("s", "q", 4)))
    assert not backend.loads.commit(staged(backend, SinkCommit("s", "q", 4)))
    assert not backend.loads.commit(staged(backend, SinkCommit("s", "q", 3)))
    with pytest.raises(penstock.StreamMismatch, match="of a new query"):
        backend.loads.commit(staged(backend, SinkCommit("s", "another", 4)))
    assert waiting(backend) == 2
    assert backend.loads.commit(staged(backend, SinkCommit("s", "another", 5)))
    assert backend.loads.commit(staged(backend, SinkCommit("t", "q", 4)))
    backend.close()
    backend = open_slate(f"slate:{tmp_path}")
    assert not backend.loads.commit(staged(backend, SinkCommit("s", "another", 5)))
    assert waiting(backend) == 6
    backend.close()


def test_a_batch_that_a_crash_interrupted_has_landed_when_the_store_is_open_again(tmp_path: Path) -> None:
    backend = open_slate(f"slate:{tmp_path}")
    load = staged(backend, SinkCommit("s", "q", 1))
    backend._writer.lead(lambda: backend._writer.write_now([_Progress(load, 0).row]))
    backend.close()
    backend = open_slate(f"slate:{tmp_path}")
    assert waiting(backend) == 2
    assert not backend.loads.commit(staged(backend, SinkCommit("s", "q", 1)))
    assert waiting(backend) == 2
    backend.close()


@pytest.mark.parametrize("what", [{"sink": SinkCommit("s", "q", 1)}, {"run": "nightly"}])
def test_what_an_error_interrupted_is_finished_before_the_same_comes_under_another_name(
    tmp_path: Path, what: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = open_slate(f"slate:{tmp_path}")
    get, failing = backend.loads._place.staged, [True]

    def unreachable(load: str, name: str) -> bytes:
        if failing and failing.pop():
            raise penstock.StoreUnreachable("not now")
        return get(load, name)

    monkeypatch.setattr(backend.loads._place, "staged", unreachable)
    with pytest.raises(penstock.StoreUnreachable):
        backend.loads.commit(staged(backend, **what))  # type: ignore[arg-type]
    assert not backend.loads.commit(staged(backend, **what))  # type: ignore[arg-type]
    assert waiting(backend) == 2
    assert backend.loads._place.list_loads() == []
    backend.close()


def test_a_load_that_counts_and_is_missing_or_damaged_is_named_and_nothing_else_is_lost(url: str) -> None:
    backend = open_slate(url)
    backend.run(Put("default", [Entry(b"before")]))
    load, place = staged(backend), backend.loads._place
    backend._writer.lead(lambda: backend._writer.write_now([_Progress(load, 0).row]))
    backend.close()
    frame = place.staged(load.name, "frame-1")
    two = encode_entries([Entry(b"x"), Entry(b"y")])
    for damaged in (b"", frame[:-1], frame[:3], bytes(len(frame)), b"\xff" * len(frame), two):
        place.stage(load.name, "frame-1", damaged)
        with pytest.raises(penstock.StoreCorrupt, match=f"staged/{load.name}/frame-1"):
            open_slate(url)
    place.remove_load(load.name)
    with pytest.raises(penstock.StoreCorrupt, match=f"staged/{load.name}/frame-0"):
        open_slate(url)
    place.stage(load.name, "frame-0", frame)
    place.stage(load.name, "frame-1", frame)
    backend = open_slate(url)
    assert waiting(backend) == 3
    assert place.list_loads() == []
    backend.close()


def test_a_load_that_was_given_up_is_set_aside_when_the_store_is_opened(url: str) -> None:
    backend = open_slate(url)
    given_up, alive = "0-0-1767225600000.0123456789abcdef", new_name(os.getpid())
    for load in (given_up, alive):
        backend.loads._place.stage(load, "a-0", load.encode())
    backend.close()
    backend = open_slate(url)
    assert backend.loads._place.list_loads() == [alive]
    place = backend._place
    if isinstance(place, BucketPlace):
        found = {name: place._bucket.get(name) for name in place._bucket.list("aside")}
    else:
        aside = Path(place.subfolder, "aside")
        found = {str(path): path.read_bytes() for path in aside.rglob("a-0")}
    assert list(found.values()) == [given_up.encode()]
    assert next(iter(found)).endswith(f"staged/{given_up}/a-0")
    backend.close()


# Loads that clients send: what is special of slate stores. The rest is in tests/http/test_server_loads.py.


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
