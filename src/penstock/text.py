"""TextQueue's format for users who want nothing else."""

import sys

from penstock.stores.text import Entry, TextQueue, Variable, format  # noqa: A004 - the module's name

__all__ = ["Entry", "TextQueue", "Variable", "format"]

sys.modules["penstock.text.format"] = format  # for who imports it as a module
