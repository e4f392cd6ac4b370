"""The options of spark.read.format("penstock"), checked."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.contract import names
from penstock.contract.message import STATES
from penstock.contract.urls import absolute, is_remote, is_shared, is_slate, journal_folder
from penstock.errors import InvalidArgument, NotSupported
from penstock.spark.tables import TABLES

_WRITING = ("store", "queue", "id")
_KNOWN = ("store", "queue", "state", "table", "payload")
_TRUTH = {"true": True, "false": False}


@dataclass(frozen=True)
class Options:
    """What is to be read."""

    store: str  # a folder, or the URL of a server
    queue: str | None  # None: all of them
    table: str
    payload: bool
    states: tuple[str, ...] = STATES  # of messages

    @property
    def is_shared(self) -> bool:
        """Whether any number of processes may open the store."""
        return is_shared(self.store)

    @property
    def is_remote(self) -> bool:
        """Whether a server keeps the store."""
        return is_remote(self.store)

    @property
    def is_slate(self) -> bool:
        """Whether it is a slate store."""
        return is_slate(self.store)


def parse(given: Mapping[str, str]) -> Options:
    """What the options say; InvalidArgument names the one that is wrong."""
    options = {name.lower(): value for name, value in given.items()}
    if "path" in options and "store" not in options:  # what load() was given
        options["store"] = options.pop("path")
    for name in options:
        if name not in _KNOWN:
            raise InvalidArgument(f"there is no option {name!r}; there are {', '.join(_KNOWN)}")
    if not options.get("store"):
        raise InvalidArgument('which store? Give a folder or a URL, as in .option("store", "data")')
    table = options.get("table", "messages")
    if table not in TABLES:
        raise InvalidArgument(f"there is no table {table!r}; there are {', '.join(TABLES)}")
    payload = options.get("payload", "true").lower()
    if payload not in _TRUTH:
        raise InvalidArgument(f"option payload is true or false, not {payload!r}")
    queue = names.checked(options["queue"]) if "queue" in options else None
    states = _states(options["state"], table) if "state" in options else STATES
    store = options["store"]
    if table == "log":
        _check_log(store, queue)
    return Options(located(store), queue, table, _TRUTH[payload], states)


def _check_log(store: str, queue: str | None) -> None:
    if not is_slate(store):
        raise InvalidArgument(f"table 'log' is for slate stores, and {store!r} keeps no log")
    if queue is not None:
        raise InvalidArgument("the log is of all queues: leave out the option queue, and filter by the column")


def _states(given: str, table: str) -> tuple[str, ...]:
    if table != "messages":
        raise InvalidArgument(f"option state is for the table 'messages', not for {table!r}")
    wanted = [state.strip() for state in given.split(",")]
    for state in wanted:
        if state not in STATES:
            raise InvalidArgument(f"there is no state {state!r}; there are {', '.join(STATES)}")
    return tuple(state for state in STATES if state in wanted)


def parse_writing(given: Mapping[str, str]) -> tuple[str, str | None, str | None]:
    """The store (a folder, or the URL of a server), the queue and the run that a write names."""
    options = {name.lower(): value for name, value in given.items()}
    if "path" in options and "store" not in options:  # what save() was given
        options["store"] = options.pop("path")
    for name in options:
        if name not in _WRITING and not name.startswith("_"):
            raise InvalidArgument(f"there is no option {name!r}; there are {', '.join(_WRITING)}")
    if not options.get("store"):
        raise InvalidArgument('into which store? Give a folder or a URL, as in .option("store", "data")')
    queue = names.checked(options["queue"]) if "queue" in options else None
    run, store = options.get("id"), options["store"]
    if run is not None and not 1 <= len(run) <= 255:
        raise InvalidArgument(f"option id has {len(run)} characters; give 1 to 255, or leave it out")
    return located(store), queue, run


def located(url: str) -> str:
    """The store for processes that are in other folders; NotSupported if it is of a kind that they cannot open."""
    known = is_remote(url) or is_shared(url) or is_slate(url)
    return absolute(url) if known else _folder(url)


def _folder(url: str) -> str:
    folder = journal_folder(url)
    if folder is None:
        raise NotSupported(
            f"store {url!r}: Spark works with stores on disk, in buckets and of servers: give a folder, "
            "journal:DIR, text:DIR, NAME.tq, folder:DIR, slate:DIR, slate:s3://bucket/prefix or http://host:port"
        )
    return os.path.abspath(folder)
