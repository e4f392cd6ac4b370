"""A snapshot of a text queue has the messages that the store lists, whatever was done to the file."""

import os
import tempfile
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Draft, SimulatedClock
from penstock.contract.message import STATES
from penstock.contract.tables import Read
from penstock.stores.text import tables
from penstock.stores.text.snapshot import payloads, read, snapshot
from penstock.system.files import SystemDisk

PAYLOAD = st.sampled_from([b"", b"plain", b"two\nlines", b"\n", b"\n\n-x\n\\id=1", b"\xff", "grüße".encode()])
DRAFT = st.builds(
    Draft,
    PAYLOAD,
    priority=st.sampled_from([0, 0, 5]),
    headers=st.sampled_from([None, {"kind": "image"}]),
    delay=st.sampled_from([0, 0, 30]),
    retention=st.sampled_from([None, 40]),
)
FIELDS = [each.name for each in fields(penstock.Message) if each.name not in ("queue", "receipt", "_handle")]
LINES = [b"-by hand\n", b"# note\n", b"!bad\n", b"-a\n b\n\\x=1\n", b"\n", b"?\n"]
STEP = st.one_of(
    st.tuples(st.just("put"), st.lists(PAYLOAD, min_size=1, max_size=5)),
    st.tuples(st.just("put"), st.lists(DRAFT, min_size=1, max_size=3)),
    st.tuples(st.sampled_from(["claim", "ack", "fail", "release", "remove"]), st.integers(1, 3)),
    st.tuples(st.just("wait"), st.sampled_from([1, 35])),
    st.tuples(st.just("edit"), st.sampled_from(LINES)),
    st.tuples(st.just("copy"), st.none()),
)


def listed(store: penstock.Store) -> list[tuple[Any, ...]]:
    return sorted(_row(message) for message in store.queue("q").messages())


def _row(message: penstock.Message) -> tuple[Any, ...]:
    # The time of a person's message is not recorded until it has a note: each reader has its own guess.
    unsure = ("created_at", "received_at", "visible_at", "settled_at") if "-" in message.id else ()
    return tuple(repr(getattr(message, each)) for each in FIELDS if each not in unsure)


def seen(path: Path, now: int) -> list[tuple[Any, ...]] | None:
    """The rows of a snapshot; None if there is none."""
    files = read(str(path), SystemDisk())
    found = None if files is None else snapshot("q", files, now)
    if found is None:
        return None
    rows = [_row(message) for message in found.others]
    plain = found.plain
    for id_, payload, at in zip(plain.ids, payloads(found.data, plain), plain.received_at.tolist(), strict=True):
        rows.append(
            _row(penstock.Message(id_.tobytes().decode(), "q", payload, {}, 0, at, at, at, None, 0, "available"))
        )
    return sorted(rows)  # fmt: skip


def edit(path: Path, text: bytes, clock: SimulatedClock) -> None:
    """Write the file as a person does, at the time that it is."""
    path.write_bytes(text)
    os.utime(path, ns=(clock.now() * 1_000_000,) * 2)


def do(store: penstock.Store, clock: SimulatedClock, path: Path, step: str, what: Any, held: list[Any]) -> None:
    queue = store.queue("q")
    match step:
        case "put":
            queue.put_many(what)
        case "claim":
            held += queue.claim(what, lease=20)
        case "wait":
            clock.advance(what)
        case "remove":
            queue.remove(*[message.id for message in list(queue.messages())[:what]])
        case "edit":
            edit(path, path.read_bytes() + what, clock)
        case "copy":  # as people do, with all that belongs to it
            text = path.read_bytes()
            at = text.find(b"-plain\n")
            edit(path, text + (text[at : at + 150] if at >= 0 else b"") + b"\n", clock)
        case _:
            for message in held[:what]:
                with suppress(penstock.LeaseExpired):
                    getattr(message, step)()
            del held[:what]


@settings(deadline=None, max_examples=150)
@given(st.lists(STEP, max_size=8), st.sampled_from([0, None]))
def test_who_only_reads_sees_what_the_store_lists(steps: list[tuple[str, Any]], keep_done: int | None) -> None:
    clock = SimulatedClock()
    with tempfile.TemporaryDirectory() as folder, penstock.open(f"text:{folder}", clock=clock) as store:
        store.create("q", keep_done=keep_done, max_attempts=2)
        path = Path(folder) / "q.tq"
        held: list[penstock.Message] = []
        for step, what in steps:
            do(store, clock, path, step, what, held)
            expected = listed(store)
            before = path.read_bytes(), path.with_name("q.tq.mutex").read_bytes()
            found = seen(path, clock.now())
            assert found in (None, expected)
            assert before == (path.read_bytes(), path.with_name("q.tq.mutex").read_bytes())
            if not any(each in ("edit", "copy") for each, _ in steps):
                assert found is not None


def test_plain_messages_are_not_parsed(tmp_path: Path) -> None:
    with penstock.open(f"text:{tmp_path}") as store:
        store.create("q").put_many([f"message {number}" for number in range(100)])
        store.queue("q").put("with a header", headers={"a": "b"})
        store.queue("q").claim()
    files = read(str(tmp_path / "q.tq"), SystemDisk())
    assert files is not None
    found = snapshot("q", files, 10**13)
    assert found is not None
    assert len(found.plain.starts) == 99
    assert [message.payload for message in found.others] == [b"message 0", b"with a header"]


def test_a_file_that_a_person_has_just_edited_is_left_to_the_store(tmp_path: Path) -> None:
    with penstock.open(f"text:{tmp_path}") as store:
        store.create("q").put("one")
    path = tmp_path / "q.tq"
    path.write_bytes(path.read_bytes() + b"-two\n")
    assert read(str(path), SystemDisk()) is None


def test_no_queue_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(str(tmp_path / "none.tq"), SystemDisk())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("states", [STATES, ("available",), ("done", "failed")])
def test_rows_of_a_table_are_in_the_order_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: tuple[str, ...]
) -> None:
    monkeypatch.setattr(tables, "_ROWS", 7)
    url = f"text:{tmp_path}"
    with penstock.open(url) as store:
        queue = store.create("q", keep_done=None, max_attempts=1)
        queue.put_many([Draft(b"%d" % at, headers={"a": "b"} if at % 3 == 1 else None) for at in range(100)])
        queue.put_many([b"%d" % at for at in range(100, 130)])
        claimed = queue.claim(30)
        queue.ack(*claimed[::2])
        queue.fail(*claimed[1::2])
        listed = [(message.id, message.payload) for message in queue.messages() if message.state in states]
    schema = pa.schema([("id", pa.string()), ("payload", pa.binary())])
    parts = tables.TextTables().parts(Read(url, "messages", "q", states), schema, os.getpid())
    rows = [tuple(row.values()) for part in parts for batch in part.read(schema) for row in batch.to_pylist()]
    assert rows == listed
