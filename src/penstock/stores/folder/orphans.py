"""Files in long/ that no message names: a process wrote them and died before, or after, its message did.

They are looked for when a store is opened after such a death, and only by a process that is alone: while messages
move, one that names a file may be seen nowhere. Who is not alone leaves a mark for the next.
"""

from collections.abc import Iterator
from contextlib import suppress

from penstock.stores.folder.layout import DELAY, DONE, FAILED, HELD, LONG, NEW, QUEUES, REMOVE, parse_flat
from penstock.stores.folder.stamps import Stamp
from penstock.stores.folder.tree import Tree
from penstock.system.files import Status

_MARK = "look"  # no name that a process has


def drop(tree: Tree, after_death: bool) -> int:
    """Unlink them, if somebody has died since that was last done; how many."""
    there = tree.names(LONG)
    if not there or not (after_death or _MARK in there):
        return 0
    alone = _alone(tree)
    named = set(_named(tree)) if alone else set()
    if alone is None or _alone(tree) != alone:  # somebody is there, and may have moved a message past us
        tree.disk.open(tree.path(f"{LONG}/{_MARK}"), create=True).close()
        return 0
    dropped = [name for name in there if name not in named]
    for name in dropped:
        with suppress(FileNotFoundError):
            tree.disk.unlink(tree.path(f"{LONG}/{name}"))
    return len(dropped)


def _alone(tree: Tree) -> Status | None:
    """The folder of private folders, if ours is the only one in it; it differs once another has come, and gone."""
    there = tree.status(tree.path(HELD))
    return there if tree.names(HELD) == [tree.held.rpartition("/")[2]] else None


def _named(tree: Tree) -> Iterator[str]:
    """The files that messages name, whatever their state."""
    for stamp in _stamps(tree):
        reason = stamp.holder.reason if stamp.holder is not None else None
        for value in (stamp.headers, stamp.reason, stamp.history, reason):
            if value is not None and value.startswith("@"):
                yield value[1:]


def _stamps(tree: Tree) -> Iterator[Stamp]:
    places = [
        (f"{QUEUES}/{queue}/{uid}", uid)
        for queue in tree.queue_folders()
        for uid in tree.names(f"{QUEUES}/{queue}")
    ]
    for folder in (NEW, DELAY, DONE, FAILED, REMOVE):
        places += [(f"{folder}/{name}", parsed[1]) for name in tree.names(folder) if (parsed := parse_flat(name))]
    for place, uid in places:
        with suppress(FileNotFoundError, ValueError):
            yield tree.stamp_of(tree.path(place), uid)
