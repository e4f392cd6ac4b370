"""Backups of slate stores in a folder, made while the store is open and in use.

1. A snapshot is taken: hard links to all files of the database and to large payloads (snapshot.py), and to the
   staged frames of committed loads. If a staged frame has been removed meanwhile, another snapshot is taken.
2. The linked files are copied to DEST.partial, and synced.
3. Every row of the copy is read and checked: messages, payloads, log entries, large payloads.
4. DEST.partial is renamed to DEST. An error before that leaves no DEST.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

from penstock.contract.examination import Examination
from penstock.errors import NotSupported, PenstockError, StoreCorrupt, StoreLocked
from penstock.stores.slate import doctor, recovery, snapshot
from penstock.stores.slate.doctor import SlateQueue
from penstock.stores.slate.folder import Folder
from penstock.stores.slate.format import LOAD, parse_key
from penstock.stores.slate.place import STAGED, SUBFOLDER, StoreLock, parse
from penstock.stores.slate.snapshot import Snapshot
from penstock.system.clock import Clock, SystemClock, rest
from penstock.system.copies import MARK, Destination
from penstock.system.files import SystemDisk, make_folder

_CHUNK = 4 << 20
_TRIES = 20
_PAUSE = 0.5  # seconds between two tries while loads are being committed

Progress = Callable[[int, int], object]  # bytes copied, of how many


class Copied(NamedTuple):
    """The size of a finished copy, and its messages."""

    files: int
    bytes: int
    queues: dict[str, dict[str, int]]  # messages by state


def backup(
    store: str,
    dest: str | os.PathLike[str],
    *,
    verify: bool = True,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> Copied:
    """Copy the slate store at `slate:DIR` to DEST, a folder that is empty or does not exist yet.

    Other processes may keep using the store. The copy is the store as it was at one moment after the call began.
    It is a store like any other: open `slate:DEST`. Without `verify` the copy is not read back.
    """
    where = parse(store)
    if where.is_bucket:
        raise NotSupported(
            f"store {store!r} is in a bucket, and `backup` copies folders: turn on versioning, copy the bucket to "
            f"another one, or copy the messages with `penstock convert {store} DIR`"
        )
    destination = Destination(where.where, os.fspath(dest))
    destination.check()
    if not snapshot.exists(store):
        raise PenstockError(f"there is no store {store!r}: check the name")
    make_folder(SystemDisk(), destination.subfolder)
    lock = StoreLock(os.path.join(destination.subfolder, MARK), f"the copy {destination.path!r}")
    try:
        lock.take()
    except StoreLocked as error:
        raise StoreLocked(
            f"another backup to {destination.path!r} is being made: wait until it is done"
        ) from error
    try:
        destination.begin()
        made = _copy(store, destination, progress or (lambda copied, total: None))
        counts = (_verified if verify else _counted)(destination, clock, where.log)
        destination.finish()
    except BaseException:
        destination.abandon()
        raise
    finally:
        lock.release()
    return made._replace(queues=counts)


def _copy(store: str, destination: Destination, progress: Progress) -> Copied:
    taken = _snapshot(store)
    try:
        files = list(_below(taken.held, ""))
        total = sum(os.path.getsize(path) for path, _ in files)
        copied = 0
        for path, below in files:
            target = os.path.join(destination.partial, below)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            for done in _copy_file(path, target):
                copied += done
                progress(copied, total)
        for folder in ("db/manifest", "db/compacted", "db/wal", "objects"):
            os.makedirs(os.path.join(destination.partial, folder), exist_ok=True)
        for folder, _, _ in os.walk(destination.partial):
            SystemDisk().sync_folder(folder)
        Folder(destination.partial, "always").seal()
    finally:
        snapshot.drop(taken)
    return Copied(len(files), copied, {})


def _copy_file(path: str, target: str) -> Iterator[int]:
    with open(path, "rb") as old, open(target, "xb") as new:
        while data := old.read(_CHUNK):
            new.write(data)
            yield len(data)
        new.flush()
        os.fsync(new.fileno())


def _snapshot(store: str) -> Snapshot:
    """A snapshot of the store, with links to the staged frames of loads that are committed in it."""
    staged = os.path.join(SUBFOLDER, STAGED)
    source = os.path.join(parse(store).where, staged)
    for _ in range(_TRIES):
        taken = snapshot.take(store, os.getpid())
        try:
            for load, frame in _loading(taken):
                target = os.path.join(taken.held, staged, load)
                os.makedirs(target, exist_ok=True)
                os.link(os.path.join(source, load, frame), os.path.join(target, frame))
            return taken
        except FileNotFoundError:  # the owner has just put these messages into their queues
            snapshot.drop(taken)
        except BaseException:
            snapshot.drop(taken)
            raise
        rest(_PAUSE)
    raise PenstockError(f"messages are being loaded into the store {store!r}: try again when the load is done")


def _below(folder: str, below: str) -> Iterator[tuple[str, str]]:
    for name in sorted(os.listdir(os.path.join(folder, below))):
        path = os.path.join(below, name)
        if os.path.isdir(os.path.join(folder, path)):
            yield from _below(folder, path)
        else:
            yield os.path.join(folder, path), path


def _loading(taken: Snapshot) -> list[tuple[str, str]]:
    """The staged frames, as load and name, whose loads are committed and whose messages are not in queues yet."""
    found = []
    with closing(snapshot.opened(taken)) as view:
        for key, value in recovery.of_kind(view, LOAD):
            content = json.loads(value)
            load = parse_key(key).queue
            found += [(load, frame[1]) for frame in content["frames"][content["done"] :]]
    return found


def _verified(destination: Destination, clock: Clock | None, log: str) -> dict[str, dict[str, int]]:
    """Read the whole copy, and count the messages of each queue; StoreCorrupt."""
    found: Examination[SlateQueue] = Examination(destination.partial, _now(clock))
    doctor.look(_whole(destination), Folder(destination.partial, "never"), log, found)
    problems = [finding.text for _, finding in found.all_findings() if finding.severity == "problem"]
    if problems:
        raise StoreCorrupt(
            f"the copy is damaged: {problems[0]}. No backup was made; `penstock doctor` shows whether the store "
            "itself is damaged"
        )
    return {queue.name: queue.counts for queue in found.queues}


def _counted(destination: Destination, clock: Clock | None, log: str) -> dict[str, dict[str, int]]:
    """Count the messages of each queue by the records of queues, without reading payloads."""
    _, view = snapshot.opened_for(_whole(destination), log)
    with closing(view):
        contents = recovery.load(view, log)
        if recovery.has_others(contents):
            recovery.measure(contents, view, log)
    counts = {}
    for name, loaded in sorted(contents.queues.items()):
        loaded.ledger.state.advance(max(_now(clock), contents.at))
        counts[name] = loaded.ledger.state.counts()
    return counts


def _whole(destination: Destination) -> Snapshot:
    """The copy as a snapshot of itself: no other process changes it, so no links are needed."""
    return Snapshot(destination.partial, destination.partial, {}, 0)


def _now(clock: Clock | None) -> int:
    return (clock or SystemClock()).now()
