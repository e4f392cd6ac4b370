"""Power loss while a slate store is followed, loaded and copied: every acknowledgement holds.

A follower reads every put message once, and can read its last batch again unchanged. A committed load is there
once, an uncommitted one completely or not at all. A finished copy is sound, and has all earlier messages.
"""

import json
import shutil
import signal
import sys
import time
import zlib
from collections import Counter
from pathlib import Path
from random import Random

import pytest

import penstock
from penstock.contract.loads import Sent
from penstock.stores.slate.backups import backup
from penstock.stores.slate.doctor import examine
from penstock.stores.slate.store import SlateBackend
from tests.harness.children import Child
from tests.stores.slate import loop_disk
from tests.stores.slate.loop_disk import LoopDisk
from tests.stores.slate.power_child import FOLLOWER, KEPT, LOADED, QUEUE, entered
from tests.stores.slate.test_power_loss import neighbour

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(loop_disk.missing()), reason=loop_disk.missing() or "there can be one"),
]
CUTS = 8


class Witness:
    """All that was said, and what there must be after a power cut."""

    def __init__(self, disk: LoopDisk, folder: Path, seed: int) -> None:
        self.disk, self.folder, self.seed, self.random = disk, folder, seed, Random(seed)
        self.url, self.copies = f"slate:{disk.mounted / 'store'}", disk.mounted / "copies"
        self.put: dict[int, int] = {}  # of each message the checksum
        self.read: dict[int, int] = {}
        self.batch = (0, 0)
        self.again: list[list[int]] = []  # what the last batch had
        self.loading: dict[str, int] = {}  # runs, and how many messages they have
        self.loaded: set[str] = set()
        self.kept: list[tuple[str, int]] = []
        self.copied: dict[str, int] = {}  # copies, and how many kept messages they have at least
        self.whole = 0  # copies that were found
        self.copies.mkdir()
        with penstock.open(self.url, share=False) as store:
            store.create(QUEUE, filter="kind = 'a'")
            store.create(LOADED)
            store.create(KEPT)
            assert backend_of(store).streams().start(QUEUE, FOLLOWER, "earliest") == (0, 1)

    def live_and_die(self, number: int) -> None:
        name = f"{self.seed}-{number}"
        log = self.folder / f"{name}.log"
        command = [sys.executable, "-m", "tests.stores.slate.power_child"]
        command += [self.url, str(self.copies), str(log), name, str(self.batch[0])]
        with Child(command, log.with_suffix(".errors")) as child, neighbour(self.disk.mounted):
            child.wait_until_ready()
            while number % 2 and b'"copied"' not in log.read_bytes():  # which takes a while
                assert child.process.poll() is None, child.errors.read_text()
                time.sleep(0.02)
            time.sleep(self.random.uniform(0.1, 2))
            self.disk.cut_power()
            child.stop(signal.SIGKILL)
        self.disk.restore_power()
        for line in log.read_text().splitlines() if log.exists() else ():
            self.hear(*json.loads(line))

    def hear(self, what: str, *words: object) -> None:
        match what, words:
            case "put", (int(number), int(checksum)):
                assert number not in self.put
                self.put[number] = checksum
            case "read", (int(after), int(until), list(found)):
                self.heard_batch(after, until, found)
            case "loading", (str(run), int(messages)):
                self.loading[run] = messages
            case "loaded", (str(run),):
                self.loaded.add(run)
            case "kept", (str(number), int(checksum)):
                self.kept.append((number, checksum))
            case "copied", (str(name), *_):
                self.copied[name] = len(self.kept)
            case _:
                raise AssertionError((what, words))

    def heard_batch(self, after: int, until: int, found: list[list[int]]) -> None:
        for number, checksum in found:
            assert after < number <= until
            assert self.read.setdefault(number, checksum) == checksum
            assert self.put.get(number, checksum) == checksum
        if found:
            self.batch, self.again = (after, until), found

    def check(self) -> None:
        """Look at everything, and leave it as it is."""
        assert examine(self.url).sound
        with penstock.open(self.url, share=False) as store:
            backend = backend_of(store)
            self.check_followed(backend)
            self.check_loads(store, backend)
            found = [(message.id, zlib.crc32(message.payload)) for message in store.queue(KEPT).messages()]
            assert found[: len(self.kept)] == self.kept or set(self.kept) <= set(found)
        self.check_copies()

    def check_followed(self, backend: SlateBackend) -> None:
        after, until = self.batch
        ahead = backend.streams().ahead(QUEUE, FOLLOWER, after, 0, 0, 0, until)
        assert ahead.lost is None
        last = [[int(each.id), zlib.crc32(each.payload)] for each in entered(backend, after, until)]
        assert last == self.again, "the last batch is another one"
        rest = {int(each.id): zlib.crc32(each.payload) for each in entered(backend, until, 1 << 60)}
        there = self.read | rest
        assert {number: there.get(number) for number in self.put} == self.put
        backend.streams().leave(QUEUE, FOLLOWER)

    def check_loads(self, store: penstock.Store, backend: SlateBackend) -> None:
        """Each committed run once; one that nobody knows about as a whole, and not again."""
        assert backend.loads._place.list_loads() == []
        names = Counter(message.payload.split(b":")[0].decode() for message in store.queue(LOADED).messages())
        assert not [name for name, count in names.items() if count > 1]
        found = Counter(".".join(name.split(".")[:-2]) for name in names)
        assert {run: self.loading[run] for run in found} == dict(found)
        assert self.loaded <= set(found)
        assert {run for run in self.loading if backend.uploads().run(run) is not None} == set(found)
        for run in [run for run in found if run not in self.loaded]:
            load = backend.uploads().begin({})
            assert not backend.uploads().commit(load, list[Sent](), run).loaded
            self.loaded.add(run)

    def check_copies(self) -> None:
        there = sorted(path.name for path in self.copies.iterdir() if not path.name.endswith(".partial"))
        assert set(self.copied) <= set(there)
        for name in there:
            copy, self.whole = self.copies / name, self.whole + 1
            assert examine(f"slate:{copy}").sound
            with penstock.open(f"slate:{copy}", share=False) as store:
                found = {(each.id, zlib.crc32(each.payload)) for each in store.queue(KEPT).messages()}
            assert set(self.kept[: self.copied.get(name, 0)]) <= found
        for name in {path.name.removesuffix(".partial") for path in self.copies.glob("*.partial")}:
            backup(self.url, self.copies / name)
            assert examine(f"slate:{self.copies / name}").sound
        for path in self.copies.iterdir():
            assert not path.name.endswith(".partial")
            shutil.rmtree(path)
        self.copied = {}


def backend_of(store: penstock.Store) -> SlateBackend:
    assert isinstance(store.backend, SlateBackend)
    return store.backend


@pytest.mark.parametrize("seed", range(2))
def test_after_a_power_cut_followers_loads_and_copies_are_what_they_were_said_to_be(
    tmp_path: Path, seed: int
) -> None:
    disk = LoopDisk(tmp_path)
    try:
        witness = Witness(disk, tmp_path, 900 + seed)
        for number in range(CUTS):
            witness.live_and_die(number)
            witness.check()
        assert witness.read
        assert witness.loaded
        assert witness.whole >= CUTS // 2
    finally:
        disk.close()
