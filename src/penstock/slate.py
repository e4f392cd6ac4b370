"""Slate stores for users: a copy of one, its examination, and its rows."""

import sys

from penstock.stores.slate import backups, doctor, dumping
from penstock.stores.slate.dumping import dump

__all__ = ["backups", "doctor", "dump"]

for module in (backups, doctor, dumping):  # for who imports them as modules
    sys.modules[module.__name__.replace(".stores.", ".")] = module
