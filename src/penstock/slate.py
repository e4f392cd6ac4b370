"""Slate stores, public names: backups, doctor, and a dump of the rows in SlateDB."""

import sys

from penstock.stores.slate import backups, doctor
from penstock.stores.slate.doctor import dump

__all__ = ["backups", "doctor", "dump"]

for name, module in (("backups", backups), ("doctor", doctor), ("dumping", doctor)):  # import as modules works
    sys.modules[f"penstock.slate.{name}"] = module
