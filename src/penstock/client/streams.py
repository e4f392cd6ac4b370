"""The streams of a store that is somewhere else. No call of these does harm twice, so all are tried again."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlencode

from penstock.client.answers import Answer
from penstock.client.calls import Call, quoted
from penstock.message import Message
from penstock.streams import Ahead, BatchPlan, Lost, StreamInfo
from penstock.wire import frames, jsons

_JSON = "Content-Type: application/json\r\n"
_WANTS_FRAME = f"Accept: {frames.MEDIA_TYPE}\r\n"
_LONG = 600.0  # seconds that an answer may take beyond the usual: a batch may have millions of messages
_MOST = 50_000  # ids that are sent at once
Result = TypeVar("Result")


class RemoteStreams:
    """Asks a server. `run` carries out a call."""

    def __init__(self, run: Callable[[Call[Any]], Any]) -> None:
        self._run = run

    def all(self) -> list[StreamInfo]:
        """Every stream of every queue."""

        def read(answer: Answer) -> list[StreamInfo]:
            return [_info(each) for each in jsons.loads(answer.body)["streams"]]

        return self._ask(Call("listing of streams", "GET /-/streams", "", None, True, read))

    def begin(self, queue: str, stream: str, reader: str) -> StreamInfo:
        """Be the one process that reads a stream."""
        return self._post(queue, stream, "begin", {"reader": reader}, lambda body: _info(jsons.loads(body)))

    def next(
        self, queue: str, stream: str, reader: str, start: int, rows: int, size: int, run: str | None = None
    ) -> int | None:
        """Settle a batch that was certainly read; the number of the next."""

        def read(body: bytes) -> int | None:
            batch = jsons.loads(body)["batch"]
            return None if batch is None else int(batch)

        given = {"reader": reader, "start": start, "rows": rows, "bytes": size}
        given |= {} if run is None else {"run": run}
        return self._post(queue, stream, "next", given, read)

    def read(self, queue: str, stream: str, batch: int, pins: str | None) -> BatchPlan:
        """Where the messages of a batch are."""
        from penstock.wire.batches import decode_plan  # here, as most who ask a server have no journals

        return self._post(queue, stream, f"{batch}/read", {"pins": pins}, decode_plan)

    def messages(self, queue: str, stream: str, batch: int, after: str, until: str, limit: int) -> list[Message]:
        """Some messages of a batch by ascending id."""
        given = {"after": after, "until": until, "limit": limit}
        asked = urlencode({name: value for name, value in given.items() if value})
        start = f"GET {_path(queue, stream)}/{batch}/messages?{asked}"
        return self._ask(
            Call(
                "listing of a batch", start, _WANTS_FRAME, None, True,
                lambda answer: frames.decode_messages(answer.body, queue),
            )
        )  # fmt: skip

    def follow(self, queue: str, stream: str, reader: str, position: int) -> None:
        """Follow a queue under a name."""
        self._post(queue, stream, "follow", {"reader": reader, "after": position}, lambda body: None)

    def start(self, queue: str, follower: str, starting: str | int) -> tuple[int, int]:
        """Where one begins who follows."""

        def read(answer: Answer) -> tuple[int, int]:
            given = jsons.loads(answer.body)
            return int(given["after"]), int(given["gaps"])

        return self._ask(_looking(queue, follower, "start", {"at": starting}, "", read))

    def ahead(
        self, queue: str, follower: str, after: int, gaps: int, rows: int, size: int, until: int = 0
    ) -> Ahead:
        """What has entered after a number."""
        given = {"after": after, "gaps": gaps, "rows": rows, "bytes": size, "until": until}
        return self._ask(_looking(queue, follower, "ahead", given, "", lambda answer: _ahead(answer.body)))

    def entered(self, queue: str, follower: str, after: int, until: int, limit: int) -> list[Message]:
        """Some messages as they entered."""
        given = {"after": after, "until": until, "limit": limit}

        def read(answer: Answer) -> list[Message]:
            return frames.decode_messages(answer.body, queue)

        return self._ask(_looking(queue, follower, "messages", given, _WANTS_FRAME, read))

    def leave(self, queue: str, follower: str) -> None:
        """Follow no longer."""
        start = f"DELETE {_follower(queue, follower)}"
        self._ask(Call("end of following", start, "", None, True, lambda answer: None))

    def fail(
        self, queue: str, stream: str, batch: int, ids: Sequence[str], reason: str | None, delay: float = 0
    ) -> None:
        """Let these messages fail when the batch is settled."""
        for start in range(0, len(ids), _MOST):
            given = {"ids": ids[start : start + _MOST], "reason": reason, **({"delay": delay} if delay else {})}
            self._post(queue, stream, f"{batch}/fail", given, lambda body: None)

    def settle(self, queue: str, stream: str, batch: int) -> bool:
        """Settle a batch; False if that was done before."""
        return self._post(queue, stream, f"{batch}/settle", {}, lambda body: bool(jsons.loads(body)["settled"]))

    def release(self, queue: str, stream: str) -> int:
        """Give back what a stream holds; how many messages."""
        return self._post(queue, stream, "release", {}, lambda body: int(jsons.loads(body)["count"]))

    def delete(self, queue: str, stream: str) -> None:
        """Forget a stream that holds nothing."""
        start = f"DELETE {_path(queue, stream)}"
        self._ask(Call("end of a stream", start, "", None, False, lambda answer: None))

    def _post(
        self, queue: str, stream: str, what: str, given: dict[str, Any], read: Callable[[bytes], Result]
    ) -> Result:
        start, name = f"POST {_path(queue, stream)}/{what}", f"{what.rpartition('/')[2]} of a stream"
        body = jsons.dumps(given)
        return self._ask(Call(name, start, _JSON, body, True, lambda answer: read(answer.body), _LONG))

    def _ask(self, call: Call[Result]) -> Result:
        result: Result = self._run(call)
        return result


def _info(given: dict[str, Any]) -> StreamInfo:
    return StreamInfo(*(given[name] for name in StreamInfo._fields))


def _ahead(body: bytes) -> Ahead:
    given = jsons.loads(body)
    lost = given["lost"]
    return Ahead(
        int(given["until"]),
        [(int(each["until"]), int(each["messages"])) for each in given["parts"]],
        None if lost is None else Lost(int(lost["first"]), int(lost["last"]), lost["messages"]),
    )


def _looking(
    queue: str, follower: str, what: str, given: dict[str, Any], headers: str, read: Callable[[Answer], Result]
) -> Call[Result]:
    start = f"GET {_follower(queue, follower)}/{what}?{urlencode(given)}"
    return Call(f"{what} of what has entered", start, headers, None, True, read, _LONG)


def _follower(queue: str, follower: str) -> str:
    return f"/-/followers/{quoted(queue)}/{quoted(follower)}"


def _path(queue: str, stream: str) -> str:
    return f"/-/streams/{quoted(queue)}/{quoted(stream)}"
