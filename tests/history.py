"""The history rule: records calls and answers of one queue, and checks its listings against them.

    history = History(clock.now, queue.settings)
    history.put(queue, b"a")            # each method calls the queue's, and records question and answer
    [message] = history.claim(queue)
    history.ack(queue, message)
    history.check(queue)                # while nobody uses the queue: lists it and holds it to the history
    ...                                 # the machine crashes, the store is opened again
    history.reopened(queue)             # the same; what was open at the crash is settled here, once and for all

Threads may share a history. An operation that raised an error of the store stopping or being out of reach, or that
never returned, may have happened or not; any other error of Penstock promises that nothing changed. Settling
methods return the lost receipts instead of raising LeaseExpired. A broken promise raises Violation with the story
of the message.

Payloads must differ, so that a message whose put was never answered is recognised; only a put that repeats a key
repeats the payload and all else. Events are JSON: one process can write a history (`write`) and another check it
(`feed`); each names its operations (`name`) so that they differ.
"""

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields
from hashlib import sha256
from typing import TypeVar

import penstock
from penstock import Draft, Message, Queue
from penstock.contract.message import Payload
from penstock.contract.settings import Settings
from tests.history_checker import Checker, Violation
from tests.history_life import Record

__all__ = ["History", "Violation"]

Answer = TypeVar("Answer")
_LONGEST = 100  # bytes of a payload that are recorded as they are


class History:
    """The recorded calls and answers of one queue."""

    def __init__(
        self,
        now: Callable[[], int],
        settings: Settings,
        *,
        name: str = "op",
        write: Callable[[str], object] | None = None,
        prompt: bool = True,
    ) -> None:
        """Not `prompt`: a put may take effect only after the time that it says.

        And a claim may hide a message from others while it takes it, also if a removal then is quicker.
        """
        self.receipts: dict[str, str] = {}  # every receipt ever given, with its message's id, to be tried again
        self.keyed: list[Draft] = []  # every draft with a key, to be put again
        self._now, self._name, self._write = now, name, write
        self._lock = threading.RLock()
        self._count = 0
        self._events: list[Record] = []  # not checked yet
        self._checker = Checker(settings, prompt)

    # Asking

    def put(self, queue: Queue, draft: Draft | Payload) -> str:
        draft = draft if isinstance(draft, Draft) else Draft(draft)
        return self._put([draft], lambda: [queue.put(**asdict(draft))])[0]

    def put_many(self, queue: Queue, items: Iterable[Draft | Payload]) -> list[str]:
        drafts = [item if isinstance(item, Draft) else Draft(item) for item in items]
        return self._put(drafts, lambda: queue.put_many(drafts))

    def claim(
        self,
        queue: Queue,
        n: int = 1,
        lease: float = 30.0,
        wait: float = 0.0,
        consumer: str | None = None,
        ack: Sequence[Message] = (),
    ) -> list[Message]:
        """Without a consumer the operation's own name is taken, so that an unanswered claim is recognised."""
        name = self._next_name()
        consumer = consumer or name
        return self._ask(
            "claim",
            {"n": n, "lease": lease, "consumer": consumer},
            lambda: queue.claim(n, lease, wait, consumer, ack=ack),
            lambda claimed: {"messages": [_message(each) for each in claimed]},
            name,
        )

    def ack_and_claim(
        self, queue: Queue, done: Sequence[Message], n: int = 1, lease: float = 30.0
    ) -> list[Message]:
        """Both in one call. If the claim is refused, the acks may have happened or not."""
        name, receipts = self._next_name(), [each.receipt for each in done]
        self._record({"event": "start", "op": name, "at": self._now(), "do": "ack", "receipts": receipts})
        lost: list[str] = []
        try:
            claimed = self.claim(queue, n, lease, ack=done)
        except penstock.LeaseExpired as error:
            claimed, lost = [], error.receipts
        except BaseException as error:
            self._record({"event": "unknown", "op": name, "at": self._now(), "error": repr(error)})
            raise
        self._record({"event": "told", "op": name, "at": self._now(), "lost": lost})
        return claimed

    def pop(self, queue: Queue, wait: float = 0.0) -> Message | None:
        return self._ask(
            "pop",
            {"n": 1},
            lambda: queue.pop(wait),
            lambda popped: {"messages": [] if popped is None else [_message(popped)]},
        )

    def ack(self, queue: Queue, *messages: Message | str) -> list[str]:
        return self._settle("ack", messages, {}, lambda: queue.ack(*messages))

    def fail(
        self, queue: Queue, *messages: Message | str, delay: float = 0.0, reason: str | None = None
    ) -> list[str]:
        asked = {"delay": delay, "reason": reason}
        return self._settle("fail", messages, asked, lambda: queue.fail(*messages, delay=delay, reason=reason))

    def release(self, queue: Queue, *messages: Message | str) -> list[str]:
        return self._settle("release", messages, {}, lambda: queue.release(*messages))

    def extend(self, queue: Queue, *messages: Message | str, lease: float = 30.0) -> list[str]:
        return self._settle("extend", messages, {"lease": lease}, lambda: queue.extend(*messages, lease=lease))

    def remove(self, queue: Queue, *ids: str) -> int:
        return self._ask("remove", {"ids": list(ids)}, lambda: queue.remove(*ids), lambda count: {"count": count})

    def revoke(self, queue: Queue, *ids: str) -> int:
        return self._ask("revoke", {"ids": list(ids)}, lambda: queue.revoke(*ids), lambda count: {"count": count})

    def redrive(self, queue: Queue, *ids: str) -> int:
        return self._ask(
            "redrive", {"ids": list(ids)}, lambda: queue.redrive(*ids), lambda count: {"count": count}
        )

    def purge(self, queue: Queue) -> int:
        return self._ask("purge", {}, queue.purge, lambda count: {"count": count})

    # Checking

    def check(self, queue: Queue) -> None:
        """Hold the queue to its history, while nobody uses it."""
        self.look(queue, reopened=False)
        self._check()

    def reopened(self, queue: Queue) -> None:
        """The same after the store was opened again: what was open before has happened by now or never will."""
        self.look(queue, reopened=True)
        self._check()

    def use(self, settings: Settings) -> None:
        """The queue has other settings from here on; what was asked and told before is checked.

        A store that stopped when they were to change has done nothing that it was asked since.
        """
        assert all(event["event"] in ("start", "unknown") for event in self._events), (
            "check() before settings change"
        )
        self._events.clear()
        self._checker.use(settings)

    def look(self, queue: Queue, *, reopened: bool) -> None:
        """Record a listing without checking it; a later check does."""
        before, start = queue.counts(), self._now()
        messages = [_message(message) for message in queue.messages()]
        end, after = self._now(), queue.counts()
        shown = {"event": "shown", "at": start, "until": end, "reopened": reopened, "messages": messages}
        if before == after:  # nothing came, went or changed by time alone, as none of that is ever undone
            shown["counts"] = after
        self._record(shown)

    def feed(self, lines: Iterable[str]) -> None:
        """Add the events that a history in another process has written; a torn last line is skipped."""
        for line in lines:
            if line.endswith("\n"):
                self._record(json.loads(line))

    def _check(self) -> None:
        with self._lock:
            events, self._events = self._events, []
            part = []
            for event in events:
                part.append(event)
                if event["event"] == "shown":
                    self._checker.check(part)
                    part = []

    def _record(self, event: Record) -> None:
        with self._lock:
            if self._write is not None:
                self._write(json.dumps(event) + "\n")
            self._events.append(event)
            if event["event"] == "start" and event["do"] == "put":
                self.keyed += [
                    Draft(**{**draft, "payload": draft["payload"].encode("latin-1")})
                    for draft in event["drafts"]
                    if draft["key"] is not None and not isinstance(draft["payload"], list)
                ]
            elif event["event"] == "told":
                self.receipts |= {
                    message["receipt"]: message["id"]
                    for message in event.get("messages", ())
                    if message["receipt"]
                }

    def _put(self, drafts: list[Draft], call: Callable[[], list[str]]) -> list[str]:
        return self._ask("put", {"drafts": [_draft(draft) for draft in drafts]}, call, lambda ids: {"ids": ids})

    def _settle(
        self, do: str, messages: Iterable[Message | str], asked: Record, call: Callable[[], None]
    ) -> list[str]:
        receipts = [each.receipt if isinstance(each, Message) else each for each in messages]

        def settle() -> list[str]:
            try:
                call()
            except penstock.LeaseExpired as error:
                return error.receipts
            return []

        return self._ask(do, {**asked, "receipts": receipts}, settle, lambda lost: {"lost": lost})

    def _ask(
        self,
        do: str,
        asked: Record,
        call: Callable[[], Answer],
        told: Callable[[Answer], Record],
        name: str | None = None,
    ) -> Answer:
        name = name or self._next_name()
        self._record({"event": "start", "op": name, "at": self._now(), "do": do, **asked})
        try:
            answer = call()
        except BaseException as error:
            stopped = isinstance(error, penstock.StoreClosed | penstock.StoreCorrupt | penstock.StoreUnreachable)
            refused = isinstance(error, penstock.PenstockError) and not stopped
            event = "refused" if refused else "unknown"
            self._record({"event": event, "op": name, "at": self._now(), "error": repr(error)})
            raise
        self._record({"event": "told", "op": name, "at": self._now(), **told(answer)})
        return answer

    def _next_name(self) -> str:
        with self._lock:
            self._count += 1
            return f"{self._name}-{self._count}"


def _payload(payload: Payload) -> str | list[str | int]:
    """The payload, or size and hash of a long one."""
    data = payload.encode() if isinstance(payload, str) else bytes(payload)
    return data.decode("latin-1") if len(data) <= _LONGEST else [len(data), sha256(data).hexdigest()]


def _draft(draft: Draft) -> Record:
    return {**asdict(draft), "payload": _payload(draft.payload), "headers": dict(draft.headers or {})}


def _message(message: Message) -> Record:
    shown = {name: getattr(message, name) for name in _SHOWN}
    return {**shown, "payload": _payload(message.payload)}


_SHOWN = [field.name for field in fields(Message) if not field.name.startswith("_")]
