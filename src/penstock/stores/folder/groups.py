"""Groups of a folder queue: their messages are claimed one at a time, in the order of their arrival.

A process picks only a group's first message, and only while none of the group is in flight. What it knows may be a
second old, so that is a guess. Before it takes the message it makes sure, in these steps:

1. It locks `locks/QUEUE:groups`, and keeps the lock until its claim or pop is complete. Every claim, pop and
   extend in a queue with that file does, and every move to another queue. The file is made before the queue's
   first message of a group, and stays.
2. It lists delay/, the private folders of all processes, those again, the queue, delay/, and the private folders.
   A message that is unsettled all the while is in one of these lists: without what the lock excludes, other
   processes have few moves left for it, and each takes it past one list at most.
3. It takes the message if it is the first of its group as far as it knows now, if none of the group was in flight,
   and if no process was moving one. Else the message goes back, or is tried again at the next look.

So no two processes hold messages of one group, and the next message is free as soon as the one before is settled:
nothing but the places of the files says so, which a crash cannot contradict. A message in the private folder of a
dead process holds its group until recovery has put it back.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from penstock.stores.folder.layout import HELD, LOCKS, parse_held
from penstock.stores.folder.tree import Tree


class Groups:
    """The unsettled messages of each group, as far as one process knows them."""

    def __init__(self) -> None:
        self._members: dict[str, list[tuple[int, str]]] = {}  # (order, id), ascending
        self._held: Counter[str] = Counter()  # members that are in flight, or picked by a thread of this process

    def add(self, group: str, order: int, uid: str, held: bool) -> None:
        """Add a message."""
        insort(self._members.setdefault(group, []), (order, uid))
        self._held[group] += held

    def drop(self, group: str, order: int, uid: str, held: bool) -> None:
        """Remove a message, with the values that it was added with."""
        members = self._members[group]
        del members[bisect_left(members, (order, uid))]
        self._held[group] -= held
        if not members:
            del self._members[group], self._held[group]

    def hold(self, group: str, more: int) -> None:
        """Count a member that is held from now on, or with -1 one that no longer is."""
        self._held[group] += more

    def first(self, group: str, held: int = 0) -> str | None:
        """The first message of a group; None if another number of members is held."""
        members = self._members.get(group)
        return members[0][1] if members and self._held[group] == held else None


@contextmanager
def claiming(tree: Tree, queue: str) -> Iterator[bool]:
    """Exclude the claims and extends of other threads and processes; False: the queue has had no groups."""
    path = _lock_file(tree, queue)
    if not tree.disk.exists(path):
        yield False
        return
    with tree.disk.open(path) as file:
        file.lock(wait=True)
        yield True


def make_lock(tree: Tree, queue: str) -> None:
    """Make the lock of a queue that is about to have groups."""
    path = _lock_file(tree, queue)
    if not tree.disk.exists(path):
        tree.disk.open(path, create=True).close()
        tree.sync(LOCKS)


def moving(tree: Tree, queue: str) -> set[str]:
    """The groups of the messages that processes are moving."""
    groups: set[str | None] = set()
    for process in tree.names(HELD):
        for name in tree.names(f"{HELD}/{process}"):
            parsed = parse_held(name)
            if parsed is not None and parsed.queue == queue and parsed.waits:
                with suppress(FileNotFoundError, PermissionError):
                    groups.add(tree.stamp_of(tree.path(f"{HELD}/{process}/{name}"), parsed.uid).group)
    return {group for group in groups if group is not None}


def _lock_file(tree: Tree, queue: str) -> str:
    return tree.path(f"{LOCKS}/{queue}:groups")
