"""How messages come in: written in new/, made durable, renamed into their queue; many of them all or none.

Of one message the rename is what counts. Of several a manifest is: once it is on disk the batch is rolled
forward by whoever finds it, before that its files are thrown away. For messages under a key the line in the log
of keys is it.
"""

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from penstock.contract.message import Moved
from penstock.stores.folder.layout import BATCHES, DELAY, DONE, FAILED, NEW, QUEUES, SEEN, is_id
from penstock.stores.folder.stamps import Holder, Stamp, checksum
from penstock.stores.folder.texts import read_json, read_text
from penstock.stores.folder.tree import Tree, folders_of, home
from penstock.system.files import replace_file


@dataclass(slots=True)
class Newcomer:
    """A message that is about to be put."""

    uid: str
    payload: bytes
    stamp: Stamp
    headers: dict[str, str] | None
    now: int
    past: Moved | None = None  # what became of it in another store

    @property
    def folder(self) -> str:
        """Where it goes."""
        if self.past is not None and not self.past.waits:
            return DONE if self.past.state == "done" else FAILED
        return DELAY if self.stamp.visible > self.now else QUEUES

    @property
    def until(self) -> int:
        """When its time in delay/ is over, or when it was settled."""
        if self.folder == QUEUES:
            return 0
        settled = self.now if self.past is None or self.past.settled_at is None else self.past.settled_at
        return self.stamp.visible if self.folder == DELAY else settled


def write(tree: Tree, queue: str, newcomers: Sequence[Newcomer]) -> None:
    """Write messages in new/ and make their files durable; a failure leaves nothing."""
    written: list[str] = []
    try:
        for each in newcomers:
            path = tree.place(NEW, queue, each.uid)
            if each.headers:
                each.stamp.headers = tree.keep(each.headers)
            if each.past is not None:
                _stamp_past(tree, each.stamp, each.past)
            written.append(path)
            tree.write_new(path, each.payload)
            if tree.has_attributes:
                values = each.stamp.to_attributes()
                tree.stamp(path, {**values, "sum": checksum(each.payload, values)})
            if each.folder != QUEUES:
                tree.set_until(path, each.until)
        tree.sync_files(written)
    except BaseException:
        discard(tree, queue, newcomers)
        raise


def _stamp_past(tree: Tree, stamp: Stamp, past: Moved) -> None:
    """Say what became of a message in another store; whoever held it there does not any more."""
    stamp.attempts = past.attempts
    if past.reason is not None:
        stamp.reason = tree.keep(past.reason)
    # Without secrets: no receipt of the other store is good here. What was acknowledged is the holder's.
    ended = [[*each, False, ""] for each in past.history if each.outcome != "acked"]
    if ended:
        stamp.history = tree.keep(ended)
    if past.waits:
        return
    if past.claimed_at is not None:
        secret = os.urandom(8).hex()
        stamp.holder = Holder(secret, past.attempts, past.claimed_at, past.consumer or "")
        stamp.ended = secret if past.state == "failed" else None
    if past.state == "done":
        stamp.settled_at = past.settled_at


def discard(tree: Tree, queue: str, newcomers: Sequence[Newcomer]) -> None:
    """Throw away what was written of a put that failed."""
    for each in newcomers:
        with suppress(OSError):
            tree.disk.unlink(tree.place(NEW, queue, each.uid))
        tree.forget(each.stamp.headers, each.stamp.reason, each.stamp.history)
    with suppress(OSError):
        tree.sync(NEW)  # else a machine that stops could bring them back, for nobody


def deliver(tree: Tree, queue: str, items: Sequence[tuple[str, str]]) -> list[str]:
    """Move messages, (id, folder) each, from new/ to where they go; those that were still there."""
    moved = []
    for each, folder in items:
        if tree.move(tree.place(NEW, queue, each), tree.place(folder, queue, each)):
            tree.count()
            moved.append((each, folder))
    tree.sync(*folders_of((NEW, home(folder, queue)) for _, folder in moved))
    return [each for each, _ in moved]


def write_manifest(tree: Tree, queue: str, newcomers: Sequence[Newcomer]) -> str:
    """Say which messages belong together: from here on they are put, whatever happens."""
    tree.sync(NEW)  # before the manifest: it must never name a file that is not there
    path = tree.path(f"{BATCHES}/{newcomers[0].uid}")
    items = [[each.uid, each.folder] for each in newcomers]
    try:
        replace_file(tree.disk, path, json.dumps({"queue": queue, "messages": items}).encode())
    except OSError:
        if tree.disk.exists(path):  # it may count, unless it is gone for good
            tree.disk.unlink(path)
            tree.sync(BATCHES)
        raise
    return path


def read_manifest(tree: Tree, path: str) -> tuple[str, list[tuple[str, str]]] | None:
    """Queue and messages of a batch; None if it is none."""
    if tree.disk.kind(path) != "file":
        return None
    found = read_json(read_text(tree.disk, path))
    try:
        queue = found["queue"]
        return None if "/" in queue else (queue, checked_places(found["messages"]))
    except (TypeError, KeyError, ValueError):
        return None


def checked_places(found: Iterable[Sequence[str]]) -> list[tuple[str, str]]:
    """Messages and where they go, as somebody has written; ValueError if that is no place for one."""
    places = [(each, folder) for each, folder in found]
    if not all(is_id(each) and folder in SEEN for each, folder in places):
        raise ValueError("no places of messages")
    return places
