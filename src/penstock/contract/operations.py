"""Operations on queues and messages: arguments with their checks and limits, answer, role, path, errors.

To add one: declare it here, give the backends a method that runs it, and `Queue` or `Store` a method that makes
it. Routes, requests, forwarding by guests, and the OpenAPI document follow. Further operations are in
`stream_operations.py` and `loads.py`. Docstrings and descriptions are the texts of the OpenAPI document.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Annotated, Any, NamedTuple

from penstock.contract import names, schemas
from penstock.contract.arguments import (
    MAX_REASON,
    QUEUE,
    After,
    Consumer,
    Lease,
    MessageId,
    QueueName,
    Receipts,
    Until,
    Wait,
    a_list,
    a_reason,
    a_text,
    a_whole,
    changes_from_json,
    check_known,
    checked_delay,
    checked_state,
    settings_from_json,
)
from penstock.contract.message import MAX_MESSAGES, MESSAGE_FIELDS, STATES, Attempt, Entry, Message, check_limits
from penstock.contract.operation import BATCH, LIST, Answer, Argument, Operation, operation
from penstock.contract.roles import ADMIN, ANY_ROLE, CONSUME, READ, WRITE
from penstock.contract.schemas import array, integer, nullable, ref, text, texts
from penstock.contract.settings import MAX_COUNT, QueueInfo, Settings
from penstock.errors import InvalidArgument

PAGE = 1_000  # messages on a page
MAX_PARTS = 10_000
_LISTED, _LOOKED_AT = 1_000, 10_000  # a page of attempts ends after so many attempts, or messages examined
_QUEUES = "/-/api/queues"
_Q = _QUEUES + "/{queue}"

# Errors, beyond those of any request
OF_QUEUE = ("InvalidName", "QueueNotFound")
READS = (*OF_QUEUE, "StoreCorrupt")
WRITES = (*OF_QUEUE, "DiskFull")
TAKES = (*READS, "DiskFull")
PUTS = ("InvalidPriority", "QueueFull", "DiskFull")
CREATES = ("InvalidName", "InvalidFilter", "QueueExists", "QueueNotFound", "NotSupported", "DiskFull")

# Examples
NOW = 1_767_225_600_000
A_RECEIPT = "7.0c9f4d2e8a51b673"
_DEFAULTS = {name: schema["default"] for name, schema in schemas.SETTINGS.items()}
A_QUEUE = {
    "name": "jobs",
    "settings": _DEFAULTS,
    "counts": {"delayed": 0, "available": 2, "in_flight": 1, "done": 0, "failed": 0},
}
_FIGURES = {
    "queue": "jobs", "up": True, "counts": A_QUEUE["counts"], "waiting_seconds": 4.5, "in_line": 0,
    "events": {"put": 12, "claimed": 10, "acked": 9}, "leases_expired": 0, "expired": 0, "given_up": 0,
}  # fmt: skip
_AN_ATTEMPT = {
    "attempt": 1, "consumer": "me", "claimed_at": NOW, "ended_at": NOW + 900, "outcome": "failed",
    "reason": "no disk",
}  # fmt: skip

_NAME = {**schemas.NAME, "pattern": "^[!-~]{0,255}$"}  # in a body; the empty name means `default`
_FIELDS = "|".join(MESSAGE_FIELDS)
_BODY = frozenset(("payload", "headers", "created_at", "received_at"))  # fields that are not in memory
_USUAL = Settings()


class Held(NamedTuple):
    """The result of extend: the new end of the leases, and the lost receipts."""

    lease_until: int
    lost: list[str]


class Figures(NamedTuple):
    """A queue's figures for monitoring. Counters start when the store is opened."""

    queue: str
    up: bool  # False: an error has stopped the queue, and no other figure is known
    counts: dict[str, int]
    waiting_seconds: float  # the longest wait of an available message
    in_line: int  # waiting consumers
    events: dict[str, int]  # messages by event: put, claimed, ...; empty if the store does not count them
    leases_expired: int
    expired: int  # messages whose retention ended before they were done
    given_up: int  # messages that failed for good


class AttemptPage(NamedTuple):
    """Attempts, each with its message's id. The next page begins after the id `next`; None: this is the last."""

    attempts: list[tuple[str, Attempt]]
    next: str | None


def attempt_page(attempts: Iterable[tuple[str, list[Attempt]]]) -> AttemptPage:
    """The first page of attempts, from (id, attempts) of messages."""
    found: list[tuple[str, Attempt]] = []
    for seen, (id_, made) in enumerate(attempts, 1):
        found += [(id_, each) for each in made]
        if len(found) >= _LISTED or seen == _LOOKED_AT:
            return AttemptPage(found, id_)
    return AttemptPage(found, None)


DONE = Answer("Done.", status=204)
MESSAGES = Answer("A batch of messages, which may be empty.", Message, schema=ref("Messages"))
COUNTED = Answer("The number of messages.", int, "count", schema=integer("Messages.", 0, MAX_COUNT), example=2)
_SHOWN = Answer("The queue.", QueueInfo, schema=ref("Queue"), example=A_QUEUE)

# Shared by several declarations
_LOOKS: dict[str, Any] = {"role": ANY_ROLE, "said": "look at the queue", "answer": _SHOWN}
_SETTLES: dict[str, Any] = {
    "role": CONSUME, "limit": LIST, "errors": (*WRITES, "LeaseExpired"), "answer": DONE,
}  # fmt: skip
_COUNTED: dict[str, Any] = {  # not repeatable: the second count would be wrong
    "limit": LIST, "repeatable": False, "errors": WRITES, "answer": COUNTED,
}  # fmt: skip


def _new_name(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidArgument('the queue needs a "name"')
    return names.checked(value)


def _published(name: str, entries: Sequence[Entry]) -> Entry:
    if len(entries) != 1:
        raise InvalidArgument(f"a batch of {len(entries)} messages: publish one at a time")
    if entries[0].key is not None:
        raise InvalidArgument("a published message has no key")
    if entries[0].group is not None:
        raise InvalidArgument("a published message has no group")
    check_limits(entries[0])
    return replace(entries[0], delay=entries[0].delay or 0)


def _fields(name: str, value: str) -> tuple[str, ...]:
    wanted = tuple(value.split(","))
    check_known(wanted, MESSAGE_FIELDS, "a message")
    return wanted


# Queues


@operation(
    f"GET {_QUEUES}",
    "queues",
    name="list_queues",
    tag="Queues",
    role=READ,
    said="listing of queues",
    answer=Answer(
        "Every queue, by name.", QueueInfo, "queues", many=True, schema=array(ref("Queue")), example=[A_QUEUE]
    ),
)
class Queues(Operation[list[QueueInfo]]):
    """All queues."""


@operation(
    "GET /-/api/figures",
    "figures",
    name="list_figures",
    tag="Queues",
    role=READ,
    said="look at the figures",
    answer=Answer(
        "The figures of every queue, by name.",
        Figures,
        "queues",
        many=True,
        schema=array(ref("Figures")),
        example=[_FIGURES],
    ),
)
class AllFigures(Operation[list[Figures]]):
    """Figures of all queues.

    What the metrics say of queues, for programs. Counters start when the store is opened; a text or folder store
    has none, so `events` is empty.
    """


@operation(f"GET {_Q}", "show", name="show_queue", tag="Queues", errors=OF_QUEUE, **_LOOKS)
class Show(Operation[QueueInfo]):
    """One queue."""

    queue: QueueName


@operation(f"GET {_Q}", "settings", pick=attrgetter("settings"), **_LOOKS)
class Lookup(Operation[Settings]):
    """A queue's settings. They may be in memory where counts are not."""

    queue: QueueName


@operation(f"GET {_Q}", "counts", pick=attrgetter("counts"), **_LOOKS)
class Counts(Operation[dict[str, int]]):
    """How many messages are in each state."""

    queue: QueueName


@operation(
    f"POST {_QUEUES}",
    "create",
    name="create_queue",
    tag="Queues",
    role=ADMIN,
    repeatable=False,
    errors=CREATES,
    example={"name": "jobs", "settings": {"max_size": 1000, "keep_done": 3600}},
    answer=replace(_SHOWN, description="The new queue.", status=201),
    then=Show,
)
class Create(Operation[None]):
    """Make a queue."""

    queue: Annotated[str, Argument(check=_new_name, schema=_NAME, wire="name")]
    settings: Annotated[
        Settings,
        Argument(
            check=lambda name, value: settings_from_json(value), schema=ref("Settings"), send=Settings.stored
        ),
    ] = _USUAL


@operation(
    f"PATCH {_Q}",
    "update",
    name="update_queue",
    tag="Queues",
    role=ADMIN,
    errors=(*WRITES, "InvalidFilter", "QueueFull", "NotSupported"),
    example={"settings": {"max_attempts": 10, "keep_done": None}},
    answer=Answer(
        "The settings after the change.",
        Settings,
        "settings",
        schema=ref("Settings"),
        example={**_DEFAULTS, "max_attempts": 10, "keep_done": None},
    ),
)
class Update(Operation[Settings]):
    """Change a queue's settings.

    Settings that are left out stay. Changes apply at once, also to waiting consumers. `start` cannot be changed.
    The answer has all settings after the change.
    """

    queue: QueueName
    settings: Annotated[
        Mapping[str, Any],
        Argument(check=lambda name, value: changes_from_json(value), schema=ref("Changes"), send=dict),
    ]


@operation(
    f"DELETE {_Q}",
    "delete",
    name="drop_queue",
    tag="Queues",
    role=ADMIN,
    repeatable=False,
    errors=(*WRITES, "QueueProtected"),
    answer=DONE,
)
class Delete(Operation[None]):
    """Remove a queue and its messages.

    The queue `default` cannot be removed.
    """

    queue: Annotated[str, replace(QUEUE, check=lambda name, value: names.deletable(value))]


# Messages


@operation(
    f"POST {_Q}/put",
    "put",
    role=WRITE,
    limit=BATCH,
    batch="Drafts",
    repeatable=False,
    errors=(*OF_QUEUE, *PUTS),
    answer=Answer(
        "The ids of the stored messages.",
        str,
        "ids",
        many=True,
        schema=texts("In the order of the batch."),
        example=["7"],
    ),
)
class Put(Operation[list[str]]):
    """Put messages.

    All of them or none.
    """

    queue: QueueName
    entries: Annotated[Sequence[Entry], Argument(check=lambda name, value: value, schema={})]

    def is_repeatable(self) -> bool:
        """Whether every message has a key, so that a second put adds nothing."""
        return all(entry.key is not None for entry in self.entries)


@operation(
    f"POST {_Q}/claim",
    "claim",
    role=CONSUME,
    limit=LIST,
    polls=True,  # repeatable: messages of a lost answer come back when their lease ends; acks may be repeated
    errors=(*TAKES, "LeaseExpired"),
    example={"n": 10, "lease": 60, "consumer": "me"},
    answer=MESSAGES,
)
class Claim(Operation[list[Message]]):
    """Claim messages.

    The answer ends early at 16 MiB of payloads. Messages of earlier claims are acknowledged first, in the same
    durable step; the answer 409 names lost receipts, the other messages are settled, and nothing is claimed.
    """

    queue: QueueName
    n: Annotated[int, a_whole("How many at most.", 1, MAX_COUNT, most=MAX_MESSAGES)] = 1
    lease: Lease = None
    wait: Wait = 0
    consumer: Consumer = None
    most: int | None = None  # bytes of payloads beyond the first message, for servers
    ack: Annotated[
        Sequence[str],
        a_list("Receipts of earlier claims, acknowledged before messages are claimed.", omit=True),
    ] = ()


@operation(
    f"POST {_Q}/pop",
    "pop",
    role=CONSUME,
    polls=True,
    repeatable=False,
    errors=TAKES,
    example={"wait": 0},
    answer=MESSAGES,
    pick=lambda messages: next(iter(messages), None),
)
class Pop(Operation[Message | None]):
    """Claim and acknowledge one message.

    It is one step: a lost answer loses the message.
    """

    queue: QueueName
    wait: Wait = 0
    consumer: Consumer = None


@operation(f"POST {_Q}/ack", "ack", example={"receipts": [A_RECEIPT]}, **_SETTLES)
class Ack(Operation[None]):
    """Acknowledge messages.

    The work is done. The queue keeps done messages for `keep_done` seconds. The answer 409 names lost receipts;
    the other messages are settled.
    """

    queue: QueueName
    receipts: Receipts


@operation(
    f"POST {_Q}/fail", "fail", example={"receipts": [A_RECEIPT], "delay": 60, "reason": "no disk"}, **_SETTLES
)
class Fail(Operation[None]):
    """Fail messages.

    The work failed. The messages become available again, or failed after the last attempt. The answer 409 names
    lost receipts; the other messages are settled.
    """

    queue: QueueName
    receipts: Receipts
    delay: Annotated[
        float | None,
        Argument(
            check=lambda name, value: checked_delay(value),
            schema=nullable(schemas.number("Seconds until they come back. Default: by the queue's `backoff`.")),
            omit=True,
        ),
    ] = None
    reason: Annotated[
        str | None, a_reason(f"Why, for people to see; the first {MAX_REASON:,} characters are kept.")
    ] = None


@operation(f"POST {_Q}/release", "release", example={"receipts": [A_RECEIPT]}, **_SETTLES)
class Release(Operation[None]):
    """Release messages.

    They are available again at once. The answer 409 names lost receipts; the other messages are settled.
    """

    queue: QueueName
    receipts: Receipts


@operation(
    f"POST {_Q}/extend",
    "extend",
    role=CONSUME,
    limit=LIST,
    errors=WRITES,
    example={"receipts": [A_RECEIPT], "lease": 60},
    answer=Answer(
        "The new end of the leases, and lost receipts.",
        Held,
        schema=schemas.answer(
            {
                "lease_until": {"type": "integer", "description": "When the leases end."},
                "lost": texts("Receipts that no longer hold their message."),
            }
        ),
        example={"lease_until": NOW + 60_000, "lost": []},
    ),
)
class Extend(Operation[Held]):
    """Extend leases.

    The lease counts from now.
    """

    queue: QueueName
    receipts: Receipts
    lease: Lease = None


@operation(
    f"POST {_Q}/remove",
    "remove",
    role=CONSUME,  # as MQ-Core's consumers do
    example={"ids": ["7", "8"]},
    **_COUNTED,
)
class Remove(Operation[int]):
    """Remove messages in any state."""

    queue: QueueName
    ids: Annotated[Sequence[str], a_list("Ids; unknown ids are not counted.")]


@operation(f"POST {_Q}/revoke", "revoke", role=ADMIN, example={"ids": ["7", "8"]}, **_COUNTED)
class Revoke(Operation[int]):
    """Revoke leases.

    Messages in flight are available again at once, as if their consumers had released them; attempts stay
    counted. From then on the receipts are refused. Other messages, and those that a stream holds, are not counted.
    """

    queue: QueueName
    ids: Annotated[Sequence[str], a_list("Ids.")]


@operation(f"POST {_Q}/redrive", "redrive", role=ADMIN, example={"ids": ["7", "8"]}, **_COUNTED)
class Redrive(Operation[int]):
    """Retry failed messages.

    They become available with attempts 0. Those of a queue that takes dead letters go back to the queues that they
    come from.
    """

    queue: QueueName
    ids: Annotated[Sequence[str] | None, a_list("Ids. Default: all failed messages.", omit=True)] = None


@operation(
    f"POST {_Q}/move",
    "move",
    role=ADMIN,
    example={"target": "other", "ids": ["7", "8"]},
    **{**_COUNTED, "errors": (*WRITES, "QueueFull", "NotSupported")},
)
class Move(Operation[int]):
    """Move messages to another queue.

    Messages that wait or have failed; others are not counted. They keep payload, headers, priority, group and
    expiry, and start with attempts 0 under a new id. Each is in exactly one of the queues, also after a crash.
    """

    queue: QueueName
    target: Annotated[str, replace(QUEUE, schema={**_NAME, "description": "The other queue's name."})]
    ids: Annotated[Sequence[str] | None, a_list("Ids. Default: all failed messages.", omit=True)] = None


@operation(f"POST {_Q}/purge", "purge", role=ADMIN, repeatable=False, errors=WRITES, answer=COUNTED)
class Purge(Operation[int]):
    """Empty a queue.

    Messages in flight stay.
    """

    queue: QueueName


@operation(f"GET {_Q}/peek", "peek", role=READ, lists=True, errors=READS, answer=MESSAGES)
class Peek(Operation[Iterator[Message]]):
    """List the next messages that a claim would give.

    A page ends at 1,000 messages or 8 MiB of payloads.
    """

    queue: QueueName
    n: Annotated[int, a_whole("How many at most.", 1, MAX_COUNT, most=PAGE)] = 1
    skip: Annotated[int, a_whole("How many to leave out.", 0, MAX_COUNT)] = 0
    listing = True

    def rest(self, seen: int, last: Message) -> "Peek | None":
        """The operation for the next page; None: this was the last."""
        return Peek(self.queue, self.n - seen, self.skip + seen) if self.n > seen else None


@operation(
    f"GET {_Q}/messages",
    "messages",
    role=READ,
    lists=True,
    said="listing",
    errors=READS,
    answer=replace(
        MESSAGES,
        description="A batch of messages with the requested fields, which may be empty.",
        schema=ref("Listed"),
    ),
)
class Messages(Operation[Iterator[Message]]):
    """Browse all messages.

    In the order in which they were put. A page ends at 1,000 messages or 8 MiB of payloads; go on with `after`,
    the last id of the page. The last page is empty.
    """

    queue: QueueName
    limit: Annotated[int, a_whole("How many at most.", 1, MAX_COUNT, most=PAGE)] = 100
    fields: Annotated[
        Sequence[str],
        a_text(
            "Only these fields, separated by commas. Without `payload`, `headers`, `created_at` and `received_at` "
            "nothing is read from disk.",
            check=_fields,
            omit=True,
            send=",".join,
            pattern=f"^({_FIELDS})(,({_FIELDS}))*$",
        ),
    ] = MESSAGE_FIELDS
    state: Annotated[
        str | None,
        a_text(
            "Only messages in this state.",
            check=lambda name, value: checked_state(value),
            omit=True,
            enum=list(STATES),
        ),
    ] = None
    after: After = ""
    until: Until = ""
    listing = True
    values = ("operation.queue", "operation.state", "operation.after", "operation.until", "operation.bodies")

    @property
    def bodies(self) -> bool:
        """Whether the fields include some that are only on disk."""
        return not _BODY.isdisjoint(self.fields)

    def rest(self, seen: int, last: Message) -> "Messages | None":
        """The operation for the next page, after the last message of this one."""
        return self.changed(after=last.id)


@operation(
    f"GET {_Q}/messages/{{id}}",
    "message",
    name="show_message",
    role=READ,
    said="look at the message",
    errors=READS,
    answer=replace(MESSAGES, description="A batch with the message; empty if there is no such message."),
    pick=lambda messages: next(iter(messages), None),
)
class OneMessage(Operation[Message | None]):
    """Look at a message, in any state."""

    queue: QueueName
    id: MessageId


@operation(
    f"GET {_Q}/parts",
    "parts",
    role=READ,
    said="look at the queue",
    errors=OF_QUEUE,
    answer=Answer(
        "The last id of each part.", str, "until", many=True, schema=texts("Ids."), example=["1023", "1500"]
    ),
)
class Parts(Operation[list[str]]):
    """Divide the messages among readers.

    The answer has the last id of each part, in order; parts have about the same size. To read the messages or
    attempts of a part, set `until` to its id and `after` to the id of the part before (nothing for the first
    part). Messages that are put later are in no part.
    """

    queue: QueueName
    n: Annotated[int, a_whole("How many parts at most.", 1, MAX_PARTS)] = 1


@operation(
    f"GET {_Q}/attempts",
    "all_attempts",
    role=READ,
    lists=True,
    said="look at the attempts",
    errors=OF_QUEUE,
    answer=Answer(
        "A page of attempts.",
        AttemptPage,
        schema=ref("Attempts"),
        example={"attempts": [{"id": "7", **_AN_ATTEMPT}], "next": None},
    ),
)
class AllAttempts(Operation[AttemptPage]):
    """List the attempts at all messages.

    In the order in which the messages were put. A page ends after about 1,000 attempts or 10,000 messages, and may
    be empty; `next` is the `after` of the next page.
    """

    queue: QueueName
    after: After = ""
    until: Until = ""


@operation(
    f"GET {_Q}/messages/{{id}}/attempts",
    "attempts",
    role=READ,
    said="look at the attempts",
    errors=OF_QUEUE,
    answer=Answer(
        "The message's attempts.",
        Attempt,
        "attempts",
        many=True,
        schema=array(ref("Attempt")),
        example=[_AN_ATTEMPT],
    ),
)
class Attempts(Operation[list[Attempt]]):
    """List the attempts at a message.

    Oldest first; empty if there is no such message.
    """

    queue: QueueName
    id: MessageId


@operation(
    "POST /-/api/publish",
    "publish",
    role=WRITE,
    limit=BATCH,
    batch="Published",
    repeatable=False,
    errors=PUTS,
    answer=Answer(
        "The published message's id.", str, "id", schema=text("The id that all copies carry."), example="7"
    ),
)
class Publish(Operation[str]):
    """Put a message into every queue whose filter matches.

    A batch of one, without a key. If one of the queues is full, nothing is put.
    """

    entry: Annotated[Entry, Argument(check=_published, schema={})]


# With a route of their own, in the order of the OpenAPI document
QUEUES: tuple[type[Operation[Any]], ...] = (Queues, AllFigures, Create, Show, Update, Delete)
OF_MESSAGES = (
    Put, Claim, Pop, Ack, Fail, Release, Extend, Remove, Revoke, Redrive, Move, Purge, Peek, Messages, OneMessage,
    Parts, AllAttempts, Attempts, Publish,
)  # fmt: skip
