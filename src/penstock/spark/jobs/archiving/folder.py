"""An archive on disk: one Parquet table in a folder, and what is ours in a subfolder that readers of Parquet skip.

    queue=NAME/day=YYYY-MM-DD/part-*.parquet    the table; the day is that of settled_at, in UTC
    _penstock/lock                              held by the run that writes; says whose it is
    _penstock/staging/                          what a run writes before it counts
    _penstock/pending.json                      a run that counts: files that go to their places, old ones that go
    _penstock/runs/ID.json                      a run that took effect

A run counts from the moment pending.json is there. Whoever comes next does what it says, as often as it takes.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from penstock.contract import names
from penstock.errors import InvalidArgument, StoreLocked
from penstock.system import processes
from penstock.system.files import SystemDisk, replace_file

_OWN = "_penstock"
_LONGEST = 200  # bytes of a folder's name; file systems allow 255
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_NULL = "__HIVE_DEFAULT_PARTITION__"  # what Spark takes for no value


class Move(NamedTuple):
    """A file that goes to its place in the table, below the archive's folder both."""

    source: str
    target: str


class Folder:
    """The folder of an archive. Nothing is made before it is locked."""

    def __init__(self, path: str | os.PathLike[str], store: str | None) -> None:
        text = os.fspath(path)
        if not text or _SCHEME.match(text):
            raise InvalidArgument(f"archive {text!r}: give a folder of this machine, or one that is mounted on it")
        self.path = Path(os.path.abspath(text))
        if store is not None and self.path.is_relative_to(os.path.abspath(store)):
            raise InvalidArgument(f"the archive {text!r} would be inside of the store: give a folder beside it")
        self.staging = self.path / _OWN / "staging"
        self._pending = self.path / _OWN / "pending.json"
        self._disk = SystemDisk()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the archive, and finish or clear what a run before left; StoreLocked if another run holds it."""
        (self.path / _OWN / "runs").mkdir(parents=True, exist_ok=True)
        for folder in (self.path / _OWN, self.path, self.path.parent):
            self._disk.sync_folder(folder)
        with self._disk.open(self.path / _OWN / "lock", create=True) as file:
            # The lock goes with the process, however it ends; the name in it is for people.
            if not file.lock():
                holder = file.read(0, 100).decode(errors="replace").partition("-")[0]
                raise StoreLocked(
                    f"another run writes to the archive {str(self.path)!r} (process {holder or 'unknown'}): wait "
                    "until it has ended, then run this again"
                )
            try:
                file.truncate(0)
                file.write(0, processes.name_of(os.getpid()).encode())
                self._recover()
                yield
            finally:
                file.unlock()

    def _recover(self) -> None:
        if self._pending.exists():
            self._finish(json.loads(self._pending.read_text()))
        shutil.rmtree(self.staging, ignore_errors=True)

    def run(self, run: str) -> dict[str, Any] | None:
        """What is known of a run that took effect."""
        with suppress(FileNotFoundError):
            found: dict[str, Any] = json.loads((self.path / _OWN / "runs" / f"{run}.json").read_text())
            return found
        return None

    def keep(self, run: dict[str, Any]) -> None:
        """Durably remember a run."""
        path = self.path / _OWN / "runs" / f"{run['id']}.json"
        replace_file(self._disk, path, json.dumps(run, indent=1).encode())

    def commit(self, run: dict[str, Any], moves: Sequence[Move], gone: Sequence[str]) -> None:
        """Let a run take effect: at once as far as a crash is concerned, file by file for who reads."""
        for move in moves:
            with self._disk.open(self.path / move.source) as file:
                file.sync()  # Spark does not; and what is in the archive may be removed from the store
        pending = {"run": run, "moves": moves, "gone": gone}
        replace_file(self._disk, self._pending, json.dumps(pending).encode())
        self._finish(pending)

    def _finish(self, pending: dict[str, Any]) -> None:
        changed: set[Path] = set()
        for source, target in pending["moves"]:
            to = self.path / target
            if not to.parent.is_dir():
                to.parent.mkdir(parents=True)
                changed |= {to.parent.parent, self.path}
            with suppress(FileNotFoundError):  # it is there already
                self._disk.rename(self.path / source, to)
            changed.add(to.parent)
        for path in pending["gone"]:
            with suppress(FileNotFoundError):
                self._disk.unlink(self.path / path)
            changed.add((self.path / path).parent)
        for folder in sorted(changed, reverse=True):  # what is in a folder before the folder's own name
            self._disk.sync_folder(folder)
        self.keep(pending["run"])
        self._pending.unlink()
        self._disk.sync_folder(self._pending.parent)

    def places(self, queues: Sequence[str]) -> dict[str, str]:
        """The folder of each queue, which Spark reads as the queue's name unless that is very long."""
        taken = {each.casefold(): each for each in os.listdir(self.path)}
        found = {}
        for queue in queues:
            name = f"queue={_encoded(queue)}"
            # Where file systems fold case two queues must not share a folder: the second has its letters as codes.
            if taken.setdefault(name.casefold(), name) != name:
                name = f"queue={_encoded(queue, letters=False)}"
            found[queue] = name
        return found


def _encoded(queue: str, letters: bool = True) -> str:
    encoded = names.file_name(queue)
    if not letters:
        encoded = "".join(f"%{ord(each):02X}" if each.isalpha() else names.file_name(each) for each in queue)
    if queue == _NULL:
        encoded = encoded.replace("_", "%5F", 1)
    if len(encoded) <= _LONGEST:
        return encoded
    return f"{encoded[:150].rstrip('%')}-{hashlib.md5(queue.encode(), usedforsecurity=False).hexdigest()}"
