"""Shells, editors and other programs that use a text queue's file at the same time."""

import errno
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.contract.store import Store
from penstock.stores.text.backend import open_text
from penstock.system.files import StrPath, SystemDisk, SystemFile


class BusyFile(SystemFile):
    """A file to which another program appends a line before each of our writes, when it is told to."""

    lines = added = 0
    ending = b"\n"

    def _add(self) -> None:
        if BusyFile.lines and self.path.endswith(".tq"):
            BusyFile.lines -= 1
            BusyFile.added += 1
            with open(self.path, "ab") as file:
                file.write(b"-stray" + self.ending)

    def append(self, data: bytes | bytearray | memoryview, *, sync: bool = False) -> int:
        self._add()
        return super().append(data, sync=sync)

    def write_through(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        self._add()
        super().write_through(offset, data)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        self._add()
        super().write(offset, data)

    def truncate(self, size: int) -> None:
        self._add()
        super().truncate(size)


class BusyDisk(SystemDisk):
    def open(self, path: StrPath, **how: Any) -> SystemFile:
        file = super().open(path, **how)
        return BusyFile(file.path, os.dup(file._descriptor))


@pytest.mark.parametrize("ending", [b"\n", b""])
def test_a_line_that_comes_before_any_write_of_a_put_or_a_claim_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: bytes
) -> None:
    monkeypatch.setattr(BusyFile, "ending", ending)
    monkeypatch.setattr(BusyFile, "added", 0)
    path = tmp_path / "default.tq"
    with Store("", open_text(str(path), sync="never", disk=BusyDisk())) as store:
        queue = store.queue()
        queue.put(b"first")
        payloads: Counter[bytes] = Counter()
        for number in range(2):
            monkeypatch.setattr(BusyFile, "lines", 1)
            queue.put(b"put %d" % number)
            monkeypatch.setattr(BusyFile, "lines", 2)
            queue.put_many([b"many %d" % number] * 2)
            monkeypatch.setattr(BusyFile, "lines", 1)
            [claimed] = queue.claim(lease=60)
            claimed.ack()
            payloads[claimed.payload] += 1
        payloads.update(message.payload for message in queue.messages())
    assert BusyFile.added >= 6
    strays = Counter({payload: count for payload, count in payloads.items() if b"stray" in payload})
    assert payloads - strays == {b"first": 1, b"put 0": 1, b"put 1": 1, b"many 0": 2, b"many 1": 2}
    assert sum(payload.count(b"stray") * count for payload, count in strays.items()) == BusyFile.added


class FullFile(SystemFile):
    """A file that has space for the first bytes of what is appended, and then for a line of another program."""

    def append(self, data: bytes | bytearray | memoryview, *, sync: bool = False) -> int:
        if b"too much" not in bytes(data):
            return super().append(data, sync=sync)
        super().append(bytes(data)[:5])
        with open(self.path, "ab") as file:
            file.write(b"-stray\n")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)


class FullDisk(SystemDisk):
    def open(self, path: StrPath, **how: Any) -> SystemFile:
        file = super().open(path, **how)
        return FullFile(file.path, os.dup(file._descriptor))


def test_a_line_that_comes_while_a_put_has_no_space_is_a_message(tmp_path: Path) -> None:
    path = tmp_path / "default.tq"
    with Store("", open_text(str(path), disk=FullDisk())) as store:
        queue = store.queue()
        queue.put(b"a")
        for _ in range(2):
            with pytest.raises(penstock.DiskFull):
                queue.put(b"too much")
        queue.put(b"b")
        assert [message.payload for message in queue.messages()] == [b"a", b"stray", b"stray", b"b"]
    with penstock.open(path) as store:
        assert [message.payload for message in store.queue().messages()] == [b"a", b"stray", b"stray", b"b"]


SHELL = 'i=0; while [ -e "$2" ] && [ $i -lt 1500 ]; do echo "-shell $3 $i" >> "$1"; i=$((i+1)); done; echo $i'
WORKER = """
import sys, penstock
with penstock.open(sys.argv[1], sync="never") as store:
    queue = store.queue()
    for number in range(int(sys.argv[3])):
        queue.put(f"{sys.argv[2]} {number}")
        if number % 5 == 0:
            for message in queue.claim(5, lease=3600):
                message.ack()
                print(message.payload.decode(), flush=True)
        if number % 10 == 0:
            store.backend.pack("default")
"""


def test_lines_that_shells_append_beside_puts_claims_acks_and_packing_are_never_lost(tmp_path: Path) -> None:
    path, going, puts = tmp_path / "default.tq", tmp_path / "going", 30
    penstock.open(path).close()
    going.touch()
    shells = [
        subprocess.Popen(
            ["/bin/sh", "-c", SHELL, "sh", path, going, str(number)], stdout=subprocess.PIPE, text=True
        )
        for number in range(2)
    ]
    command = [sys.executable, "-c", WORKER, str(path)]
    workers = [
        subprocess.Popen([*command, f"worker {number}", str(puts)], stdout=subprocess.PIPE, text=True)
        for number in range(2)
    ]
    acked = Counter(line for worker in workers for line in worker.communicate()[0].splitlines())
    going.unlink()
    lines = [int(shell.communicate()[0]) for shell in shells]
    assert [process.returncode for process in (*shells, *workers)] == [0, 0, 0, 0]
    expected = Counter(f"shell {number} {line}" for number in range(2) for line in range(lines[number]))
    expected += Counter(f"worker {number} {line}" for number in range(2) for line in range(puts))
    with penstock.open(path) as store:
        there = Counter(message.payload.decode() for message in store.queue().messages())
    assert acked + there == expected
