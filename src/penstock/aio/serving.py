"""What a server needs of a store: any kind of keeper for coroutines of this process."""

from typing import TYPE_CHECKING, TypeAlias

from penstock.aio.local import LocalKeeper
from penstock.aio.threaded import ThreadedKeeper

if TYPE_CHECKING:
    from penstock.server.forwarding import ForwardingKeeper

ServedKeeper: TypeAlias = "LocalKeeper | ThreadedKeeper | ForwardingKeeper"
