"""Power loss: the disk under a slate store goes away at any moment, with everything that was not synced.

A loop device takes the place of the simulated disk, as SlateDB writes its files itself. Beside the store a
neighbour syncs files of its own, which lets the file system's journal reach the disk at moments that the store
does not choose.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from tests.harness.children import Child
from tests.harness.kills import MoveSeries, Series
from tests.stores.slate import loop_disk
from tests.stores.slate.loop_disk import LoopDisk

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(loop_disk.missing()), reason=loop_disk.missing() or "there can be one"),
]


class PowerSeries(Series):
    """Processes that use one store, each until the power is cut."""

    def __init__(self, folder: Path, disk: LoopDisk, seed: int) -> None:
        self.disk = disk
        super().__init__("slate", folder, seed, store=disk.mounted / "store", sync="always")

    def use_and_kill(self, name: str) -> None:
        with neighbour(self.disk.mounted):
            super().use_and_kill(name)
        self.disk.restore_power()

    def strike(self, child: Child) -> None:
        time.sleep(self.random.uniform(0, 1.4))
        self.disk.cut_power()
        child.stop(signal.SIGKILL)


@contextmanager
def neighbour(folder: Path) -> Iterator[None]:
    """Someone who syncs his own files all the time."""
    stopped = threading.Event()

    def work() -> None:
        number = 0
        while not stopped.wait(0.003):
            number += 1
            try:
                with (folder / f"neighbour.{number % 7}").open("wb") as file:
                    file.write(os.urandom(5_000))
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:  # the power is off
                return

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


@pytest.mark.parametrize("seed", range(4))
def test_after_a_power_cut_a_slate_store_has_everything_that_it_acknowledged(tmp_path: Path, seed: int) -> None:
    disk = LoopDisk(tmp_path)
    try:
        PowerSeries(tmp_path, disk, 500 + seed).run(16)
    finally:
        disk.close()


class MovePowerSeries(MoveSeries):
    """Processes that move messages, each until the power is cut."""

    def __init__(self, folder: Path, disk: LoopDisk, seed: int) -> None:
        self.disk = disk
        super().__init__(f"slate:{disk.mounted / 'store'}", folder, seed)

    def strike(self, child: Child) -> None:
        with neighbour(self.disk.mounted):
            time.sleep(self.random.uniform(0, 1))
            self.disk.cut_power()
        child.stop(signal.SIGKILL)
        self.disk.restore_power()


def test_after_a_power_cut_each_message_that_moved_is_in_exactly_one_queue(tmp_path: Path) -> None:
    disk = LoopDisk(tmp_path)
    try:
        series = MovePowerSeries(tmp_path, disk, 700)
        series.run(16)
        assert series.moved
    finally:
        disk.close()


PUT = """
import sys, penstock
store = penstock.open(sys.argv[1], share=False)
for number in range(int(sys.argv[2])):
    store.queue().put(b"%d" % number)
print("put", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("puts", [1, 2, 7])
def test_damage_to_the_last_commit_before_a_power_cut_is_told_from_an_end_that_was_never_synced(
    tmp_path: Path, puts: int
) -> None:
    disk = LoopDisk(tmp_path)
    folder = disk.mounted / "store"
    try:
        command = [sys.executable, "-c", PUT, f"slate:{folder}", str(puts)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"put\n"
            disk.cut_power()
            child.kill()
        disk.restore_power()
        last = max((folder / "db" / "wal").glob("*.sst"))
        content = last.read_bytes()
        last.write_bytes(content[:-9])
        with pytest.raises(penstock.StoreCorrupt, match=last.name):
            penstock.open(f"slate:{folder}", share=False)
        last.write_bytes(content)
        last.with_name(f"{int(last.stem) + 1:020}.sst").write_bytes(content[:-9])
        with penstock.open(f"slate:{folder}", share=False) as store:
            assert len(store.queue()) == puts
    finally:
        disk.close()
