"""Loads that others have staged in the folder of a store, and its owner takes in."""

import os
from typing import TYPE_CHECKING

from penstock.journal import staging
from penstock.journal.intake import Load
from penstock.journal.store import JournalKeeper

if TYPE_CHECKING:
    from penstock.slate.store import SlateKeeper


def take_in(keeper: "JournalKeeper | SlateKeeper", load: Load) -> bool:
    """Let a load take effect, once however often that is asked: what was staged is there until then."""
    if not isinstance(keeper, JournalKeeper):
        return keeper.load(load)  # says that it cannot
    if not os.path.isdir(staging.folder_of(keeper.folder, load.name)):
        return True
    return keeper.load(load)
