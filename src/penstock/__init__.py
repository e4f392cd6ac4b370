"""Penstock: a durable work queue that your data pipeline can open.

>>> import penstock
>>> with penstock.open("memory:") as store:
...     jobs = store.create("jobs")
...     jobs.put(b"hello", priority=5)
...     for message in jobs.claim(10, lease=60):
...         message.ack()
"""

from penstock.clock import Clock, SimulatedClock, SystemClock
from penstock.errors import (
    DiskFull,
    Forbidden,
    InvalidArgument,
    InvalidFilter,
    InvalidName,
    InvalidPriority,
    LeaseExpired,
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
from penstock.index.history import Attempt
from penstock.keeper import QueueInfo
from penstock.message import Draft, Message
from penstock.opening import open  # noqa: A004 - penstock.open() is the contract's word
from penstock.settings import Settings
from penstock.store import Queue, Store
from penstock.working import work

__version__ = "0.1.0"

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
    "Store",
    "StoreClosed",
    "StoreCorrupt",
    "StoreLocked",
    "StoreUnavailable",
    "StoreUnreachable",
    "StreamInUse",
    "StreamMismatch",
    "StreamNotFound",
    "SystemClock",
    "Unauthorized",
    "open",
    "work",
]
