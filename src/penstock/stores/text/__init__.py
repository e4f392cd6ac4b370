"""The text store: queues in text files that people read and edit. `TextQueue` is the file format alone."""

from penstock.stores.text.format import Entry, Variable
from penstock.stores.text.text_queue import TextQueue

__all__ = ["Entry", "TextQueue", "Variable"]
