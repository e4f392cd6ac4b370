"""Journals for users: a consistent copy of a store, its examination, and what Kestrel left behind."""

import sys

from penstock.stores.journal import BackedUp, Replay, backup, doctor, replay

__all__ = ["BackedUp", "Replay", "backup", "doctor", "replay"]

sys.modules["penstock.journal.doctor"] = doctor  # for who imports it as a module
