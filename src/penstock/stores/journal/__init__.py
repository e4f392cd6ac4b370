"""The journal store: one journal of Kestrel's format per queue, in a folder."""

from penstock.stores.journal.backup import BackedUp, backup
from penstock.stores.journal.kestrel import Replay, replay

__all__ = ["BackedUp", "Replay", "backup", "replay"]
