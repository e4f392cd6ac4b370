"""Slate stores for users: a copy of one, its examination, and its rows."""

import sys

from penstock.stores.slate import backups, doctor
from penstock.stores.slate.doctor import dump

__all__ = ["backups", "doctor", "dump"]

for name, module in (("backups", backups), ("doctor", doctor), ("dumping", doctor)):  # imported as modules
    sys.modules[f"penstock.slate.{name}"] = module
