"""Crash recovery of a store in a folder: unsynced manifests and log files, unfinished openings."""

import shutil
from pathlib import Path

import pytest

import penstock


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with messages, of which some are in the log alone."""
    folder = tmp_path / "store"
    with penstock.open(f"slate:{folder}", share=False) as store:
        store.queue().put_many([b"%d" % number for number in range(100)])
    with penstock.open(f"slate:{folder}", share=False) as store:
        store.queue().ack(*store.queue().claim(50))
        store.queue().put(b"last")
    return folder


def check(folder: Path) -> None:
    with penstock.open(f"slate:{folder}", share=False) as store:
        payloads = [message.payload for message in store.queue().messages()]
        assert payloads == [b"%d" % number for number in range(50, 100)] + [b"last"]
        store.queue().put(b"more")
        assert len(store.queue()) == 52


def newest(folder: Path) -> Path:
    return max(path for path in folder.iterdir() if path.stem.isdigit())


def following(path: Path) -> Path:
    return path.with_name(f"{int(path.stem) + 1:020}{path.suffix}")


@pytest.mark.parametrize("kind", ["manifest", "compactions"])
@pytest.mark.parametrize("content", [b"", bytes(300), b"torn"])
def test_a_manifest_that_was_never_synced_is_not_believed(folder: Path, kind: str, content: bytes) -> None:
    following(newest(folder / "db" / kind)).write_bytes(content)
    check(folder)


@pytest.mark.parametrize("damage", [lambda data: bytes(len(data)), lambda data: data[:-9], lambda data: b"x"])
def test_a_torn_end_of_the_log_is_cut_off(folder: Path, damage: object) -> None:
    assert callable(damage)
    last = newest(folder / "db" / "wal")
    whole = max(path for path in (folder / "db" / "wal").iterdir() if path.stat().st_size)
    torn = following(last)
    torn.write_bytes(damage(whole.read_bytes()))
    shutil.copy(whole, following(torn))  # what came after it was not acknowledged either
    check(folder)


def test_an_opening_that_never_ended_is_begun_again(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    (folder / "db" / "manifest").mkdir(parents=True)
    (folder / "db" / "manifest" / f"{1:020}.manifest").write_bytes(b"")
    with penstock.open(f"slate:{folder}", share=False) as store:
        store.queue().put(b"x")
        assert len(store.queue()) == 1


def test_without_a_word_of_what_was_synced_nothing_is_removed(folder: Path) -> None:
    (folder / ".penstock" / "synced").unlink()
    check(folder)
