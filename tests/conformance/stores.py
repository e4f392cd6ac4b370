"""The stores that the conformance suite runs over. A store joins with one line, and says what it cannot hold."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import penstock
from penstock.contract.settings import HIGHEST_PRIORITY, LOWEST_PRIORITY, Settings
from penstock.stores.text.variables import write_head
from tests.conformance.served import (
    in_line_at_server,
    in_line_of_coroutines,
    open_aio,
    open_aio_guest,
    open_aio_local,
    open_aio_text,
    open_guest,
    open_http,
    open_http_folder,
    open_http_text,
)
from tests.stores.slate.servers import open_slate_bucket


@dataclass(frozen=True)
class StoreUnderTest:
    """How to open a store, and where its format is narrower than the contract."""

    name: str
    open: Callable[[Path, penstock.Clock], penstock.Store]
    priorities: tuple[int, int] = (LOWEST_PRIORITY, HIGHEST_PRIORITY)
    many_queues: bool = True
    has_log: bool = False  # published messages are kept, and reach a queue that is full when it no longer is
    slow: bool = False  # its tests take minutes
    carried: bool = False  # a store over a transport, or in one file; each of the two is tested in full elsewhere
    reopens: bool = True  # keeps its messages when it is closed
    make_queue: Callable[..., penstock.Queue] = lambda store, name, **settings: store.create(name, **settings)
    in_line: Callable[[penstock.Store], int] | None = None  # consumers that wait in no thread of the test


def queue_of_file(store: penstock.Store, name: str, **settings: object) -> penstock.Queue:
    """The queue that is the store; a person writes the settings into its file."""
    Path(store.url).write_bytes(write_head(Settings(**settings), None))  # type: ignore[arg-type]
    return store.queue()


STORES = [
    StoreUnderTest("memory", lambda folder, clock: penstock.open("memory:", clock=clock), reopens=False),
    StoreUnderTest("journal", lambda folder, clock: penstock.open(folder, clock=clock)),
    StoreUnderTest("text", lambda folder, clock: penstock.open(f"text:{folder}", clock=clock)),
    StoreUnderTest(
        "tq",
        lambda folder, clock: penstock.open(folder / "jobs.tq", clock=clock),
        many_queues=False,
        carried=True,
        make_queue=queue_of_file,
    ),
    StoreUnderTest("http-text", open_http_text, in_line=in_line_at_server, carried=True),
    StoreUnderTest("aio-text", open_aio_text, in_line=in_line_of_coroutines, carried=True),
    StoreUnderTest("folder", lambda folder, clock: penstock.open(f"folder:{folder}", clock=clock)),
    StoreUnderTest(
        "slate",
        lambda folder, clock: penstock.open(f"slate:{folder}", clock=clock),
        priorities=(0, 255),
        has_log=True,
    ),
    StoreUnderTest("http-folder", open_http_folder, in_line=in_line_at_server, carried=True),
    StoreUnderTest("slate-bucket", open_slate_bucket, priorities=(0, 255), has_log=True, slow=True),
    StoreUnderTest("http", open_http, in_line=in_line_at_server),
    StoreUnderTest("aio", open_aio, in_line=in_line_at_server, carried=True),
    StoreUnderTest("aio-local", open_aio_local, in_line=in_line_of_coroutines),
    StoreUnderTest("guest", open_guest, in_line=in_line_at_server),
    StoreUnderTest("aio-guest", open_aio_guest, in_line=in_line_at_server, carried=True),
]
