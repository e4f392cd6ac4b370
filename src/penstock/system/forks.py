"""What a child that was forked must let go of: it has copies of everything its parent holds, but no threads."""

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """Something that has to know that it is in a child now."""

    def forked(self) -> None:
        """Called in the child, before anything else."""


_all: "weakref.WeakSet[Forked]" = weakref.WeakSet()


def watch(each: Forked) -> None:
    """Tell it of forks, for as long as it lives."""
    _all.add(each)


def _tell() -> None:
    for each in list(_all):
        each.forked()


os.register_at_fork(after_in_child=_tell)
