"""The journal store: Kestrel's format."""

from penstock.stores.journal.backups import BackedUp, backup
from penstock.stores.journal.replay import Replay, replay

__all__ = ["BackedUp", "Replay", "backup", "replay"]
