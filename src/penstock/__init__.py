"""Penstock: a durable work queue that your data pipeline can open.

>>> import penstock
>>> with penstock.open("memory:") as store:
...     jobs = store.create("jobs")
...     jobs.put(b"hello", priority=5)
...     for message in jobs.claim(10, lease=60):
...         message.ack()
"""

from penstock.contract.kinds import Sync
from penstock.contract.message import Attempt, Draft, Message, State
from penstock.contract.settings import QueueInfo, Settings
from penstock.contract.store import Queue, Store
from penstock.errors import (
    DiskFull,
    Forbidden,
    InvalidArgument,
    InvalidFilter,
    InvalidName,
    InvalidPriority,
    LeaseExpired,
    LoadNotFound,
    NotSupported,
    PayloadTooLarge,
    PenstockError,
    QueueExists,
    QueueFull,
    QueueNotFound,
    QueueProtected,
    StoreClosed,
    StoreCorrupt,
    StoreLocked,
    StoreUnavailable,
    StoreUnreachable,
    StreamInUse,
    StreamMismatch,
    StreamNotFound,
    Unauthorized,
)
from penstock.opening import open  # noqa: A004 - penstock.open() is the contract's word
from penstock.system.clock import Clock, SimulatedClock, SystemClock
from penstock.version import __version__
from penstock.workers import work

__all__ = [
    "Attempt",
    "Clock",
    "DiskFull",
    "Draft",
    "Forbidden",
    "InvalidArgument",
    "InvalidFilter",
    "InvalidName",
    "InvalidPriority",
    "LeaseExpired",
    "LoadNotFound",
    "Message",
    "NotSupported",
    "PayloadTooLarge",
    "PenstockError",
    "Queue",
    "QueueExists",
    "QueueFull",
    "QueueInfo",
    "QueueNotFound",
    "QueueProtected",
    "Settings",
    "SimulatedClock",
    "State",
    "Store",
    "StoreClosed",
    "StoreCorrupt",
    "StoreLocked",
    "StoreUnavailable",
    "StoreUnreachable",
    "StreamInUse",
    "StreamMismatch",
    "StreamNotFound",
    "Sync",
    "SystemClock",
    "Unauthorized",
    "__version__",
    "open",
    "work",
]
