"""The journal store: Kestrel's format."""

from penstock.journal.replay import Replay, replay

__all__ = ["Replay", "replay"]
