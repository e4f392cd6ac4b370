"""The options of format("penstock") for reads, writes, streams and logs: parsed and checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches

from penstock.contract import names
from penstock.contract.kinds import Kind, kind_of
from penstock.contract.loads import MAX_SINK
from penstock.contract.message import STATES
from penstock.contract.streams import checked_stream, not_supported
from penstock.contract.tables import Read
from penstock.errors import InvalidArgument, NotSupported

_READING = ("store", "queue", "state", "table", "payload", "numPartitions")
_WRITING = ("store", "queue", "id")
_SINK = ("store", "queue", "sinkId", "checkpointLocation", "queryName")
_STREAM = (
    "store", "queue", "mode", "stream", "maxRowsPerBatch", "maxBytesPerBatch", "startingOffset", "failOnDataLoss",
    "payload", "numPartitions",
)  # fmt: skip
_A_READ = "a read"
_LOG = ("startingoffset", "maxrowsperbatch", "_route")
ONLY_STREAMS = {name.lower(): name for name in _STREAM if name not in _READING}
_MOST = 2**63 - 1
_MOST_LOGGED = 2**62
_ROWS, _LOG_ROWS = 1_000_000, 500_000
_BYTES = 1 << 30
_MOST_PARTITIONS = 100_000
_TRUTH = {"true": True, "false": False}


NO_TABLES = (
    "Penstock has no tables in Spark's catalog; what writes rows is "
    'df.write.format("penstock").mode("append").option("store", URL).option("queue", NAME).save()'
)


@dataclass(frozen=True, kw_only=True)
class Options(Read):
    """Options of a batch read."""

    payload: bool


@dataclass(frozen=True)
class StreamOptions:
    """Options of a stream that reads a queue."""

    store: str
    queue: str
    consumes: bool
    stream: str | None
    rows: int  # most of a batch
    size: int  # bytes of payloads, most of a batch
    starting: str | int  # "earliest", "latest", or a time in milliseconds
    fail_on_data_loss: bool
    payload: bool
    partitions: int | None  # most of a batch, or None


@dataclass(frozen=True)
class LogOptions:
    """Options of a stream that reads the log of a slate store."""

    read: Options
    starting: int | None  # a sequence; None: the end of the log when the stream begins
    rows: int  # most of a batch
    route: bool  # read pairs of an entry and a queue whose filter matches, for the job route


def _known(given: Mapping[str, str], known: Sequence[str], of: str, which: str = "which") -> dict[str, str]:
    """Options by lower-case name; InvalidArgument if one is unknown, or the store is missing."""
    options = {name.lower(): value for name, value in given.items()}
    if "path" in options and "store" not in options:  # the argument of load() or save()
        options["store"] = options.pop("path")
    no_store = InvalidArgument(
        f'{which} store? Give a folder or a URL, as in .option("store", "data"). {NO_TABLES}'
    )
    if not options or "provider" in options:  # of a table in Spark's catalog
        raise no_store
    lower = {name.lower(): name for name in known}
    for name in options:
        if name not in lower and not (known is _WRITING and name.startswith("_")):
            raise InvalidArgument(_unknown(name, lower, of))
    if not options.get("store"):
        raise no_store
    return options


def _unknown(name: str, known: Mapping[str, str], of: str) -> str:
    """The error for an option that does not exist."""
    all_known = {**known, **ONLY_STREAMS} if of == _A_READ else known
    close = [all_known[each] for each in get_close_matches(name, all_known, 1) if each != name]
    *listed, last = known.values()
    also = f"; readStream also has {', '.join(ONLY_STREAMS.values())}" if of == _A_READ else ""
    return (
        f"there is no option {name!r} of {of}{f' (is it {close[0]}?)' if close else ''}; there are "
        f"{', '.join(listed)} and {last}{also}"
    )


def parse(given: Mapping[str, str]) -> Options:
    """The options of a read; InvalidArgument names the one that is wrong."""
    options = _known(given, _READING, _A_READ)
    from penstock.spark.tables import TABLES  # imports PySpark, which locating a store does not need

    table = options.get("table", "messages")
    if table not in TABLES:
        raise InvalidArgument(f"there is no table {table!r}; there are {', '.join(TABLES)}")
    payload = _truth(options, "payload")
    queue = names.checked(options["queue"]) if "queue" in options else None
    states = _states(options["state"], table) if "state" in options else STATES
    store = options["store"]
    if table == "log":
        _check_log(store, queue)
    split = _partitions(options)
    return Options(located(store), table, queue, states, split, payload=payload)


def parse_writing(given: Mapping[str, str]) -> tuple[str, str | None, str | None]:
    """The store, the queue and the run that a write names."""
    options = _known(given, _WRITING, "a write", "into which")
    queue = names.checked(options["queue"]) if "queue" in options else None
    run, store = options.get("id"), options["store"]
    if run is not None and not 1 <= len(run) <= 255:
        raise InvalidArgument(f"option id has {len(run)} characters; give 1 to 255, or leave it out")
    return located(store), queue, run


def parse_sink(given: Mapping[str, str]) -> tuple[str, str | None, str | None, str | None]:
    """The store, the queue, the sink's id and the checkpoint that a streaming write names."""
    options = _known(given, _SINK, "a streaming write", "into which")
    queue = names.checked(options["queue"]) if "queue" in options else None
    sink = options.get("sinkid")
    if sink is not None and not 1 <= len(sink) <= MAX_SINK:
        raise InvalidArgument(f"option sinkId has {len(sink)} characters; give 1 to {MAX_SINK}")
    return located(options["store"]), queue, sink, options.get("checkpointlocation")


def parse_stream(given: Mapping[str, str]) -> StreamOptions:
    """The options of a stream; InvalidArgument names the one that is wrong."""
    options = _known(given, _STREAM, "a stream")
    store = options["store"]
    kind = _kind(store)
    check_streams(store)
    mode = options.get("mode", "follow")
    if mode not in ("follow", "consume"):
        raise InvalidArgument(f"option mode is follow or consume, not {mode!r}")
    stream = checked_stream(options["stream"]) if "stream" in options else None
    if mode == "consume":
        for name in ("startingoffset", "failondataloss"):
            if name in options:
                raise InvalidArgument(f"option {name} is for mode follow: consume reads all available messages")
        if stream is None:
            raise InvalidArgument('which stream? Name it, as in .option("stream", "nightly")')
    return StreamOptions(
        Kind.absolute(kind, store),  # with the given scheme: checkpoints contain this text
        names.checked(options.get("queue", "")),
        mode == "consume",
        stream,
        _number(options, "maxrowsperbatch", _ROWS),
        _number(options, "maxbytesperbatch", _BYTES),
        _starting(options.get("startingoffset", "earliest")),
        _truth(options, "failondataloss"),
        _truth(options, "payload"),
        _partitions(options),
    )


def is_log(given: Mapping[str, str]) -> bool:
    """Whether the options name the table log."""
    return any(name.lower() == "table" and value == "log" for name, value in given.items())


def parse_log(given: Mapping[str, str]) -> LogOptions:
    """The options of a log, for a batch read or a stream; InvalidArgument names the one that is wrong."""
    options = {name.lower(): value for name, value in given.items()}
    read = parse({name: value for name, value in options.items() if name not in _LOG})
    start: int | None = None
    if (text := options.get("startingoffset", "earliest")) != "latest":
        name = "startingOffset (of a log also earliest or latest)"
        start = 1 if text == "earliest" else _whole(name, text, 0, _MOST_LOGGED)
    rows = _whole("maxRowsPerBatch", options.get("maxrowsperbatch", str(_LOG_ROWS)), 1, _MOST_LOGGED)
    return LogOptions(read, start, rows, options.get("_route") == "true")


def located(url: str) -> str:
    """The store's URL with an absolute path, for Spark's processes; NotSupported if Spark cannot read it."""
    return _kind(url).absolute(url)


def _kind(url: str) -> Kind:
    try:
        kind = kind_of(url)
    except NotSupported:
        kind = None
    if kind is None or not kind.has_tables:
        raise NotSupported(
            f"store {url!r}: Spark works with stores on disk, in buckets and of servers: give a folder, "
            "journal:DIR, text:DIR, NAME.tq, folder:DIR, slate:DIR, slate:s3://bucket/prefix or http://host:port"
        )
    return kind


def check_streams(url: str) -> None:
    """NotSupported if queues of this kind of store cannot be streams."""
    if not kind_of(url).has_streams:
        raise not_supported(f"store {url!r}")


def _check_log(store: str, queue: str | None) -> None:
    if not _kind(store).has_log:
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


def _number(options: Mapping[str, str], name: str, usual: int) -> int:
    return _whole(name, options.get(name, str(usual)), 1, _MOST)


def _partitions(options: Mapping[str, str]) -> int | None:
    text = options.get("numpartitions")
    return None if text is None else _whole("numPartitions", text, 1, _MOST_PARTITIONS)


def _whole(name: str, text: str, least: int, most: int) -> int:
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise InvalidArgument(f"option {name} is a whole number from {least} on, not {text!r}")
    return int(text)


def _truth(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "true").lower()
    if text not in _TRUTH:
        raise InvalidArgument(f"option {name} is true or false, not {text!r}")
    return _TRUTH[text]


def _starting(text: str) -> str | int:
    if text in ("earliest", "latest"):
        return text
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"option startingOffset is earliest, latest or a time, as in 2026-11-16T12:00:00Z, not {text!r}"
        ) from None
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
