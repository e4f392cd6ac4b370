"""Text files as queues: `TextQueue` for who wants the format alone, `store` for the whole contract."""

from penstock.stores.text.format import Entry, Variable
from penstock.stores.text.text_queue import TextQueue

__all__ = ["Entry", "TextQueue", "Variable"]
