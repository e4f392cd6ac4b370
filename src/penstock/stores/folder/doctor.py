"""The doctor for folder stores: reads every message and all settings, reports damage and strays, changes nothing.

Other processes may use the store meanwhile: a message that moves during the examination is left out.
"""

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from penstock.contract.examination import Examination, Finding
from penstock.stores.folder.catalog import Catalog, Listed
from penstock.stores.folder.layout import DAMAGED, DELAY, DONE, FAILED, HELD, OWN, QUEUES, SEEN, parse_flat
from penstock.stores.folder.shared import Shared, SystemNeighbours
from penstock.stores.folder.tree import Tree
from penstock.system.clock import SteadyClock, SystemClock
from penstock.system.files import ReadingDisk, refusal
from penstock.system.threads import SystemThreads

_MESSAGES = (QUEUES, DELAY, FAILED, DONE)


@dataclass
class FolderExamination:
    """The files of one queue by folder, and the findings about them."""

    name: str
    bytes: int = 0  # of payloads
    files: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_MESSAGES, 0))
    findings: list[Finding] = field(default_factory=list)

    def cells(self) -> Mapping[str, int | None]:
        return {"bytes": self.bytes, **self.files}


class _ReadTree(Tree):
    """A tree for reading; strays become findings instead of log lines."""

    def __init__(self, root: str, clock: SteadyClock, findings: list[Finding]) -> None:
        super().__init__(root, ReadingDisk(), "doctor", False, clock.now)
        self.findings = findings

    def skip(self, path: str, why: str) -> None:
        if all(each.file != path for each in self.findings):
            self.findings.append(Finding("note", f"{path} is skipped: {why}", file=path))


def examine(folder: str) -> Examination[FolderExamination]:
    """Examine a folder store.

    >>> examine("data").sound
    """
    clock = SteadyClock(SystemClock())
    found: Examination[FolderExamination] = Examination(folder, clock.now())
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
    catalog = Catalog(Shared(tree, clock, SystemThreads(), SystemNeighbours(), 0))
    queues = catalog.read()
    reasons = [str(error) for error in catalog.refused.values()]
    found.findings[:] = [each for each in found.findings if each.text.partition(" is skipped: ")[2] not in reasons]
    found.findings += [Finding("problem", reason) for reason in reasons]
    for listed in sorted(queues.values(), key=lambda each: each.name):
        if not listed.deleted:
            found.queues.append(_examine_queue(tree, listed))
    _look_around(tree, {listed.file for listed in queues.values()})


def _examine_queue(tree: _ReadTree, listed: Listed) -> FolderExamination:
    queue = FolderExamination(listed.name)
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
            except FileNotFoundError:
                continue  # it has just moved
            except OSError as error:
                if error.errno == errno.ENOTSUP:  # a file system without attributes has no checksums
                    tree.has_attributes = False
                    return _examine_queue(tree, listed)
                queue.findings.append(Finding("problem", refusal(path, error), file=path))
                continue
            queue.files[folder] += 1
            queue.bytes += len(payload)
            if folder == DONE and listed.settings.keep_done == 0:
                continue  # its content may have been truncated on a full disk (see guard.py)
            if (wrong := tree.damage(stamp, payload)) is not None and tree.disk.exists(path):
                text = f"message {uid} in {folder}/ is damaged: {wrong}"
                queue.findings.append(Finding("problem", text, "a claim sets it aside", path))
    return queue


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
    for file in tree.queue_folders():
        for name in tree.names(f"{QUEUES}/{file}"):
            if not name.startswith("."):
                with suppress(FileNotFoundError):
                    tree.is_message(tree.path(f"{QUEUES}/{file}/{name}"))
    for name in sorted(tree.disk.listdir(tree.root)):
        if name not in (OWN, *SEEN, "lost+found"):
            tree.skip(tree.path(name), "it is no part of a store")
