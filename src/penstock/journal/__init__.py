"""The journal store: Kestrel's format."""

from penstock.journal.backups import BackedUp, backup
from penstock.journal.replay import Replay, replay

__all__ = ["BackedUp", "Replay", "backup", "replay"]
