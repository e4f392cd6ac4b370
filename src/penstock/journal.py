"""Journal stores, public names: backup, doctor, and replay of journals that Kestrel wrote."""

import sys

from penstock.stores.journal import BackedUp, Replay, backup, doctor, replay

__all__ = ["BackedUp", "Replay", "backup", "doctor", "replay"]

sys.modules["penstock.journal.doctor"] = doctor  # so that `import penstock.journal.doctor` works
