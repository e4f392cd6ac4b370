"""What a server needs of a store: either kind of keeper for coroutines of this process."""

from typing import TypeAlias

from penstock.aio.local import LocalKeeper
from penstock.aio.threaded import ThreadedKeeper

ServedKeeper: TypeAlias = LocalKeeper | ThreadedKeeper
