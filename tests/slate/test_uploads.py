"""Loads that clients send to a slate store: what is special there. The rest is in test_server_loads.py."""

from pathlib import Path

import pytest

import penstock
from penstock.message import Entry
from penstock.slate.binding import Row
from penstock.slate.opening import open_slate
from penstock.slate.store import SlateKeeper
from penstock.uploads import Sent
from penstock.wire.frames import encode_entries


def begun(keeper: SlateKeeper) -> str:
    """A load of two messages."""
    load = keeper.uploads().begin({})
    for number in range(2):
        keeper.uploads().add(load, "a", number, "default", encode_entries([Entry(b"%d" % number)]))
    return load


def in_doubt(keeper: SlateKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on what is written is written, but nobody is told in time."""
    write = keeper._writer.write_now

    def late(rows: list[Row]) -> None:
        write(rows)
        raise penstock.StoreUnreachable("no answer")

    monkeypatch.setattr(keeper._writer, "write_now", late)


def payloads(keeper: SlateKeeper) -> list[bytes]:
    return [message.payload for message in keeper.messages("default", None)]


def test_a_commit_in_doubt_is_repeated_and_takes_effect_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = open_slate(f"slate:{tmp_path}")
    load = begun(keeper)
    with monkeypatch.context() as patch:
        in_doubt(keeper, patch)
        with pytest.raises(penstock.StoreUnreachable):
            keeper.uploads().commit(load, [Sent("a", 2)], "run")
    for _ in range(2):
        assert keeper.uploads().commit(load, [Sent("a", 2)], "run") == (True, 2)
    assert payloads(keeper) == [b"0", b"1"]
    assert keeper.intake._staging.loads() == []
    keeper.close()


@pytest.mark.parametrize("aborted", [True, False])
def test_what_may_count_is_kept_until_the_store_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aborted: bool
) -> None:
    keeper = open_slate(f"slate:{tmp_path}")
    load = begun(keeper)
    with monkeypatch.context() as patch:
        in_doubt(keeper, patch)
        with pytest.raises(penstock.StoreUnreachable):
            keeper.uploads().commit(load, [Sent("a", 2)], None)
    if aborted:
        keeper.uploads().abort(load)
    keeper.close()
    keeper = open_slate(f"slate:{tmp_path}")
    assert payloads(keeper) == [b"0", b"1"]
    assert keeper.intake._staging.loads() == []
    keeper.close()


def test_a_batch_that_could_not_be_kept_is_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = open_slate(f"slate:{tmp_path}")
    load = begun(keeper)
    with monkeypatch.context() as patch:

        def unreachable(*arguments: object) -> None:
            raise penstock.StoreUnreachable("no answer")

        patch.setattr(keeper.intake._staging, "put", unreachable)
        with pytest.raises(penstock.StoreUnreachable):
            keeper.uploads().add(load, "a", 2, "default", encode_entries([Entry(b"2")]))
    keeper.uploads().add(load, "a", 2, "default", encode_entries([Entry(b"2")]))
    keeper.uploads().commit(load, [Sent("a", 3)], None)
    assert payloads(keeper) == [b"0", b"1", b"2"]
    keeper.close()


def test_a_load_goes_into_a_bucket(bucket: str) -> None:
    keeper = open_slate(bucket)
    load = begun(keeper)
    assert keeper.uploads().commit(load, [Sent("a", 2)], None) == (True, 2)
    forgotten = begun(keeper)
    assert keeper.intake._staging.loads() == [forgotten]
    keeper.close()
    keeper = open_slate(bucket)
    assert keeper.intake._staging.loads() == []
    assert keeper.uploads().commit(load, [Sent("a", 2)], None) == (True, 2)
    assert payloads(keeper) == [b"0", b"1"]
    keeper.close()
