"""TextQueue files, public names: read and write the format without opening a store."""

import sys

from penstock.stores.text import Entry, TextQueue, Variable, format  # noqa: A004 - the module's name

__all__ = ["Entry", "TextQueue", "Variable", "format"]

sys.modules["penstock.text.format"] = format  # so that `import penstock.text.format` works
