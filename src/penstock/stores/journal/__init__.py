"""The journal store: Kestrel's format."""

from penstock.stores.journal.backup import BackedUp, backup
from penstock.stores.journal.kestrel import Replay, replay

__all__ = ["BackedUp", "Replay", "backup", "replay"]
