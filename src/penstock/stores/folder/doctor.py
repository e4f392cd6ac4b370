"""The doctor for folder stores: reads every message and all settings, reports damage and strays, changes nothing.

Other processes may use the store meanwhile: a message that moves during the examination is left out.
"""

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from penstock.contract.examination import Examination, Finding, Held
from penstock.contract.message import STATES
from penstock.stores.examining import over, plural
from penstock.stores.folder import recovery
from penstock.stores.folder.catalog import Catalog, Listed
from penstock.stores.folder.layout import (
    ABANDONED,
    DAMAGED,
    DELAY,
    DONE,
    FAILED,
    HELD,
    NEW,
    OWN,
    QUEUES,
    REMOVE,
    SEEN,
    SETTINGS,
    is_id,
    parse_flat,
    parse_held,
)
from penstock.stores.folder.shared import Neighbours, Shared, SystemNeighbours
from penstock.stores.folder.stamps import Stamp
from penstock.stores.folder.tree import Tree
from penstock.system.clock import SteadyClock, SystemClock, milliseconds
from penstock.system.files import ReadingDisk, refusal
from penstock.system.threads import SystemThreads

_MESSAGES = (QUEUES, DELAY, FAILED, DONE)


@dataclass
class FolderExamination:
    """The files of one queue, as opening the store at that moment would show them, and the findings about them."""

    name: str
    bytes: int = 0  # of payloads
    files: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_MESSAGES, 0))  # by folder
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))
    packing_frees: int = 0  # bytes
    packing_drops: int = 0  # files
    held: list[Held] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def cells(self) -> Mapping[str, int | None]:
        sizes = {"files": sum(self.files.values()), "bytes": self.bytes}
        return {**sizes, **self.counts, "packing frees": self.packing_frees}


class _ReadTree(Tree):
    """A tree for reading; strays become findings instead of log lines."""

    def __init__(self, root: str, clock: SteadyClock, findings: list[Finding]) -> None:
        super().__init__(root, ReadingDisk(), "doctor", False, clock.now)
        self.findings = findings

    def skip(self, path: str, why: str) -> None:
        if all(each.file != path for each in self.findings):
            self.findings.append(Finding("note", f"{path} is skipped: {why}", file=path))


def examine(folder: str, now: int | None = None) -> Examination[FolderExamination]:
    """Examine a folder store, as of now.

    >>> examine("data").sound
    """
    clock = SteadyClock(SystemClock())
    found: Examination[FolderExamination] = Examination(folder, clock.now() if now is None else now)
    tree = _ReadTree(os.path.abspath(folder), clock, found.findings)
    try:
        if tree.kind(HELD) != "folder":
            text = f"there is no folder store {folder!r}"
            found.findings.append(Finding("problem", text, "check the name; a put makes one"))
            return found
        _examine(tree, clock, found)
    except OSError as error:
        path = error.filename or folder
        found.findings.append(Finding("problem", refusal(path, error), file=path))
    if found.sound:
        found.findings.append(Finding("ok", "all messages and settings are as they were written"))
    return found


def _examine(tree: _ReadTree, clock: SteadyClock, found: Examination[FolderExamination]) -> None:
    neighbours = SystemNeighbours()
    catalog = Catalog(Shared(tree, clock, SystemThreads(), neighbours, 0))
    queues = catalog.read()
    reasons = [str(error) for error in catalog.refused.values()]
    found.findings[:] = [each for each in found.findings if each.text.partition(" is skipped: ")[2] not in reasons]
    found.findings += [Finding("problem", reason) for reason in reasons]
    for listed in sorted(queues.values(), key=lambda each: each.name):
        if not listed.deleted:
            found.queues.append(_examine_queue(tree, listed, found.at))
    _look_around(tree, {listed.file for listed in queues.values()})
    _look_for_leftovers(tree, neighbours)


def _examine_queue(tree: _ReadTree, listed: Listed, now: int) -> FolderExamination:
    queue = FolderExamination(listed.name)
    ended = expired = 0
    for folder in _MESSAGES:
        try:
            ids = sorted(tree.ids(folder, listed.file))
        except OSError as error:
            path = error.filename or folder
            queue.findings.append(Finding("problem", refusal(path, error), file=path))
            continue
        for uid in ids:
            path = tree.place(folder, listed.file, uid)
            try:
                if not tree.is_message(path):
                    continue
                stamp = tree.stamp_of(path, uid)
                payload = tree.read(path)
                state = _state(tree, folder, path, stamp, listed, now)
                until = tree.until(path)
            except FileNotFoundError:
                continue  # it has just moved
            except OSError as error:
                if error.errno == errno.ENOTSUP:  # a file system without attributes has no checksums
                    tree.has_attributes = False
                    return _examine_queue(tree, listed, now)
                queue.findings.append(Finding("problem", refusal(path, error), file=path))
                continue
            queue.files[folder] += 1
            queue.bytes += len(payload)
            ended += folder == DELAY and stamp.is_held and until <= now
            expired += state == "expired"
            if state in queue.counts:
                queue.counts[state] += 1
            if state == "in_flight" and stamp.holder is not None:
                holder = stamp.holder
                queue.held.append(Held(uid, holder.consumer or None, until, max(holder.attempts, 1), path))
            elif state == "expired":
                queue.packing_frees += len(payload)
                queue.packing_drops += 1
            if folder == DONE and listed.settings.keep_done == 0:
                continue  # its content may have been truncated on a full disk (see guard.py)
            if (wrong := tree.damage(stamp, payload)) is not None and tree.disk.exists(path):
                text = f"message {uid} in {folder}/ is damaged: {wrong}"
                queue.findings.append(Finding("problem", text, "a claim sets it aside", path))
    _count_settled(tree, listed, queue, now)
    _count_arrivals(tree, listed, queue)
    queue.findings += over(ended, expired)
    return queue


def _state(tree: Tree, folder: str, path: str, stamp: Stamp, listed: Listed, now: int) -> str:
    """The state that opening the store would show; "expired", or "" for a message that is no longer listed."""
    settings = listed.settings
    if folder == DONE:
        kept = settings.keep_done
        listed_until = None if kept is None else tree.settled_at(path, stamp) + milliseconds(kept)
        return "done" if listed_until is None or listed_until > now else ""
    if stamp.expires_at is not None and stamp.expires_at <= now:
        return "expired"
    if folder == DELAY:
        if tree.until(path) > now:
            return "in_flight" if stamp.is_held else "delayed"
        attempts = stamp.holder.attempts if stamp.is_held and stamp.holder else 0
        return "failed" if 0 < settings.max_attempts <= attempts else "available"
    return "failed" if folder == FAILED else "available"


def _count_settled(tree: Tree, listed: Listed, queue: FolderExamination, now: int) -> None:
    """Count the files in done/ and remove/ that packing unlinks."""
    for folder in (DONE, REMOVE):
        for name in tree.names(folder):
            if name.partition(":")[0] != listed.file:
                continue
            with suppress(FileNotFoundError):
                if recovery.settled_for_good(tree, folder, name, listed.settings.keep_done, now) is None:
                    continue
                status = tree.status(tree.path(f"{folder}/{name}"))
                if status is not None and status.is_file:
                    queue.packing_frees += status.size
                    queue.packing_drops += 1


def _count_arrivals(tree: Tree, listed: Listed, queue: FolderExamination) -> None:
    """Count files that people have put into the queue, which get an id when a process first sees them."""
    for name in tree.names(f"{QUEUES}/{listed.file}"):
        path = tree.path(f"{QUEUES}/{listed.file}/{name}")
        if name.startswith(".") or is_id(name) or tree.disk.kind(path) != "file":
            continue
        if (status := tree.status(path)) is not None:
            queue.files[QUEUES] += 1
            queue.counts["available"] += 1
            queue.bytes += status.size


def _look_around(tree: _ReadTree, queues: set[str]) -> None:
    """Report damaged/ and every file that belongs to no queue."""
    for name in sorted(tree.names(DAMAGED)):
        path = tree.path(f"{DAMAGED}/{name}")
        then = "look at it, copy it to its queue's folder to queue it as it is, and remove it here"
        tree.findings.append(Finding("problem", f"a damaged message was set aside: {path}", then, path))
    for folder in (DELAY, DONE, FAILED):
        for name in sorted(tree.names(folder)):
            parsed = parse_flat(name)
            if not name.startswith(".") and (parsed is None or parsed[0] not in queues):
                tree.skip(tree.path(f"{folder}/{name}"), "it is no message of a queue")
    for name in sorted(tree.names(REMOVE)):
        if not name.startswith(".") and ":" not in name:
            tree.skip(tree.path(f"{REMOVE}/{name}"), "it is no message of a queue, and the reaper leaves it")
    for file in tree.queue_folders():
        for name in tree.names(f"{QUEUES}/{file}"):
            if not name.startswith("."):
                with suppress(FileNotFoundError):
                    tree.is_message(tree.path(f"{QUEUES}/{file}/{name}"))
    for name in sorted(tree.disk.listdir(tree.root)):
        if name not in (OWN, *SEEN, "lost+found"):
            tree.skip(tree.path(name), "it is no part of a store")


def _look_for_leftovers(tree: _ReadTree, neighbours: Neighbours) -> None:
    """Report what a process that is gone has left: messages in its hands, puts, temporary files."""
    living = {
        process
        for process in tree.names(HELD)
        if (status := tree.status(tree.path(f"{HELD}/{process}"))) is not None
        and not neighbours.is_gone(process, neighbours.idle(status.moved))
        and not tree.disk.exists(tree.path(f"{HELD}/{process}/{ABANDONED}"))
    }
    for process in sorted(set(tree.names(HELD)) - living):
        path = tree.path(f"{HELD}/{process}")
        if (count := sum(parse_held(name) is not None for name in tree.names(f"{HELD}/{process}"))) > 0:
            text = f"{plural(count, 'message')} left in the hands of process {process}, which is gone"
            then = "nothing: the next process that opens the store puts them back, or completes their move"
            tree.findings.append(Finding("note", text, then, path))
    if living:
        return  # what follows may be in use
    for name in sorted(tree.names(NEW)):
        if not name.startswith("."):
            text = f"{NEW}/{name} was not delivered: its put was cut off, or another program has written it"
            then = "nothing: opening delivers or removes it, unless its name is not QUEUE:ID"
            tree.findings.append(Finding("note", text, then, tree.path(f"{NEW}/{name}")))
    for name in sorted(tree.names(SETTINGS)):
        if name.endswith(".new"):
            text = f"{SETTINGS}/{name} was being written when a crash came, and never counted"
            tree.findings.append(Finding("note", text, "remove it", tree.path(f"{SETTINGS}/{name}")))
    if lost := recovery.orphans(tree):
        text = f"{plural(len(lost), 'long value')} that no message names"
        tree.findings.append(Finding("note", text, "nothing: opening removes them after a crash"))
