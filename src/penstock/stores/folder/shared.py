"""What all queues of an open folder store share."""

import itertools
from random import Random

from penstock.stores.folder.layout import DELAY, DONE, FAILED
from penstock.stores.folder.neighbours import Neighbours
from penstock.stores.folder.tree import Tree
from penstock.stores.folder.watching import Watch
from penstock.system.clock import SteadyClock
from penstock.system.threads import Threads

_REACH = 8  # candidates for each peer, for each message fetched since the last listing


class Shared:
    """The tree, the clock, and what is known of the folders that hold messages of all queues."""

    def __init__(
        self, tree: Tree, clock: SteadyClock, threads: Threads, neighbours: Neighbours, peers: int
    ) -> None:
        self.tree, self.clock, self.threads, self.neighbours = tree, clock, threads, neighbours
        self.peers = peers
        self.dice = Random(tree.process)  # noqa: S311 - spreads fetchers, guards nothing
        self._changes = itertools.count(1)
        self._latest = 0
        self.delay, self.failed, self.done = (
            Watch(tree.disk, tree.path(folder), clock, self.changes) for folder in (DELAY, FAILED, DONE)
        )
        self.collisions = 0  # messages that a peer had taken first

    def changes(self) -> int:
        """How many changes this process has made to what it knows."""
        return self._latest

    def change(self) -> int:
        """One more."""
        self._latest = next(self._changes)
        return self._latest

    def window(self, fetched: int) -> int:
        """Among how many candidates to choose, having fetched so many since the last listing."""
        return self.peers * _REACH * (fetched + 1)
