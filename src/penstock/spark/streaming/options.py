"""The options of spark.readStream.format("penstock"), checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from penstock.contract import names
from penstock.contract.streams import checked_stream, not_supported
from penstock.contract.urls import absolute, is_shared
from penstock.errors import InvalidArgument

_KNOWN = (
    "store", "queue", "mode", "stream", "maxrowsperbatch", "maxbytesperbatch", "startingoffset", "failondataloss",
    "payload",
)  # fmt: skip
ONLY_STREAMS = frozenset(_KNOWN) - {"store", "queue", "payload"}
_MOST = 2**63 - 1
_ROWS = 1_000_000
_BYTES = 1 << 30
_TRUTH = {"true": True, "false": False}


@dataclass(frozen=True)
class StreamOptions:
    """What is to be read, and how much of it at a time."""

    store: str
    queue: str
    consumes: bool
    stream: str | None
    rows: int
    size: int
    starting: str | int  # "earliest", "latest", or a time
    fail_on_data_loss: bool
    payload: bool


def parse_stream(given: Mapping[str, str]) -> StreamOptions:
    """What the options say; InvalidArgument names the one that is wrong."""
    options = {name.lower(): value for name, value in given.items()}
    if "path" in options and "store" not in options:  # what load() was given
        options["store"] = options.pop("path")
    for name in options:
        if name not in _KNOWN:
            raise InvalidArgument(
                f"there is no option {name!r} of a stream; there are store, queue, mode, stream, maxRowsPerBatch, "
                "maxBytesPerBatch, startingOffset, failOnDataLoss and payload"
            )
    if not options.get("store"):
        raise InvalidArgument('which store? Give a folder or a URL, as in .option("store", "data")')
    if is_shared(options["store"]):
        raise not_supported(f"store {options['store']!r}")
    from penstock.spark.options import located  # here, as it loads Spark

    located(options["store"])  # or say that Spark cannot
    mode = options.get("mode", "follow")
    if mode not in ("follow", "consume"):
        raise InvalidArgument(f"option mode is follow or consume, not {mode!r}")
    stream = checked_stream(options["stream"]) if "stream" in options else None
    if mode == "consume":
        for name in ("startingoffset", "failondataloss"):
            if name in options:
                raise InvalidArgument(f"option {name} is for mode follow: who consumes takes what is there")
        if stream is None:
            raise InvalidArgument('which stream? Name it, as in .option("stream", "nightly")')
    return StreamOptions(
        absolute(options["store"]),
        names.checked(options.get("queue", "")),
        mode == "consume",
        stream,
        _number(options, "maxrowsperbatch", _ROWS),
        _number(options, "maxbytesperbatch", _BYTES),
        _starting(options.get("startingoffset", "earliest")),
        _truth(options, "failondataloss"),
        _truth(options, "payload"),
    )


def _number(options: Mapping[str, str], name: str, usual: int) -> int:
    text = options.get(name, str(usual))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MOST:
        raise InvalidArgument(f"option {name} is a whole number from 1 on, not {text!r}")
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
