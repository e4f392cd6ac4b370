"""Lines that a shell appends are all that is parsed, and every other change of the file is still noticed."""

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Queue, SimulatedClock, Store
from penstock.contract.message import State
from penstock.stores.text import storage
from penstock.stores.text.format import Document, parse
from penstock.system.files import SystemFile


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all that is parsed as a file."""
    sizes: list[int] = []

    def noted(data: bytes, start: int = 0) -> Document:
        sizes.append(len(data))
        return parse(data, start)

    monkeypatch.setattr(storage, "parse", noted)
    return sizes


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def payloads(queue: Queue, state: State | None = None) -> list[bytes]:
    return [message.payload for message in queue.messages(state)]


def test_a_line_that_a_shell_appends_is_all_that_is_parsed(path: Path, queue: Queue, parsed: list[int]) -> None:
    path.write_text("".join(f"-line {number}\n" for number in range(1_000)))
    queue.put(b"put")
    parsed.clear()
    for number in range(5):
        append(path, "-by hand\n")
        [message] = queue.claim()
        assert message.payload == b"line %d" % number
        message.ack()
        queue.put(b"put")
    append(path, "# a comment\n\n-with variables\n\\priority=-1\n\\header a=b\n")
    [first] = queue.claim()
    assert (first.payload, first.priority, first.headers) == (b"with variables", -1, {"a": "b"})
    assert parsed == [9, 9, 9, 9, 9, 54]
    assert payloads(queue)[-12:] == [b"put"] + [b"by hand", b"put"] * 5 + [b"with variables"]


def test_each_line_that_is_skipped_is_warned_about_with_its_number(
    path: Path, queue: Queue, parsed: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text("-a\n-b\n")
    queue.counts()
    parsed.clear()
    append(path, "-c\n\\priority=high\n?odd\n")
    assert len(queue) == 3
    append(path, "-d\n\n?odd\n")
    assert len(queue) == 4
    assert parsed == [23, 9]
    assert [record.message.removeprefix(f"{path} ") for record in caplog.records] == [
        "line 5 is skipped: nothing is known that begins with '?'",
        "line 4 is skipped: priority='high' is not understood",
        "line 8 is skipped: nothing is known that begins with '?'",
    ]


EDITS: dict[str, Callable[[bytes], bytes]] = {
    "a byte of a message": lambda data: data.replace(b"-one", b"-ONE"),
    "a message becomes a comment": lambda data: data.replace(b"-one", b"#one"),
    "a lease is taken out": lambda data: data.replace(b"\\lease=2", b"\\lease=9"),
    "two lines change places": lambda data: data.replace(b"-one\n-two\n", b"-two\n-one\n"),
    "a message is gone": lambda data: data.replace(b"-one\n", b""),
    "a line is longer": lambda data: data.replace(b"-one", b"-one and a half"),
}


@pytest.mark.parametrize("what", EDITS)
def test_an_edit_within_the_look_of_an_append_is_noticed(
    path: Path, queue: Queue, clock: SimulatedClock, what: str
) -> None:
    path.write_text("-one\n-two\n")
    queue.put(b"put")
    queue.claim()[0].release()
    edited = EDITS[what](path.read_bytes())
    append(path, "-three\n")
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)  # the same file, as some editors do
    os.write(descriptor, edited + b"-three\n")
    os.close(descriptor)
    seen = payloads(queue), queue.counts()
    with penstock.open(path, clock=clock) as other:
        assert seen == (payloads(other.queue()), other.queue().counts())
    assert seen[0][-1] == b"three"
    queue.put(b"next")
    assert payloads(queue)[-1] == b"next"


@pytest.mark.parametrize("what", ["a byte of a message", "a message becomes a comment"])
def test_an_edit_that_comes_while_an_append_is_looked_at_is_noticed(
    path: Path, queue: Queue, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    path.write_text("-one\n-two\n")
    assert payloads(queue) == [b"one", b"two"]
    append(path, "-three\n")
    read = SystemFile.read

    def interrupted(file: SystemFile, offset: int, size: int) -> bytes:
        data = read(file, offset, size)
        if file.path == str(path) and size > 15:
            monkeypatch.undo()
            with path.open("r+b") as other:
                other.write(EDITS[what](data))
            os.utime(path, ns=(os.stat(path).st_mtime_ns + 1_000,) * 2)  # whatever the clock's ticks are
        return data

    monkeypatch.setattr(SystemFile, "read", interrupted)
    queue.counts()
    assert payloads(queue) == [each[1:] for each in path.read_bytes().splitlines() if each.startswith(b"-")]


def test_a_file_that_was_cut_and_has_grown_again_is_read_whole(path: Path, queue: Queue) -> None:
    path.write_text("-a\n-b\n-c\n")
    held = queue.claim(3)
    with path.open("r+") as file:
        file.truncate(3)
    append(path, "-d\n-e\n-f\n")
    assert payloads(queue, "available") == [b"d", b"e", b"f"]
    held[0].ack()
    with pytest.raises(penstock.LeaseExpired):
        held[1].ack()


def test_a_line_that_belongs_to_the_last_message_changes_it(path: Path, queue: Queue) -> None:
    path.write_text("-a\n-b\n")
    assert payloads(queue) == [b"a", b"b"]
    append(path, " and more\n")
    assert payloads(queue) == [b"a", b"b\nand more"]
    append(path, "\\priority=-1\n")
    assert queue.claim()[0].payload == b"b\nand more"
    append(path, "\n# Penstock queue\n\\max_attempts=2\n")
    assert queue.settings.max_attempts == 2
    append(path, "-c")
    assert payloads(queue) == [b"a", b"b\nand more", b"c"]
    append(path, "d\n")
    assert payloads(queue) == [b"a", b"b\nand more", b"cd"]


LINES = [
    "-same\n", "-same\n", "-new\n", "# comment\n", "#same\n", "\n", " continues\n", "\\priority=-1\n", "?odd\n",
    "-x\n\\priority=3\n", "!bad\n", "=done\n", "-no newline", "-id\n\\id=0123456789abcdef\n", "-k\n\\key=k\n",
    "-later\n\\visible=2030-01-01\n", "-marked\n\\mutex=bob\n", "# Penstock queue\n\\max_attempts=2\n",
    "\r\n-crlf\r\n",
]  # fmt: skip
STEP = st.one_of(
    st.tuples(st.just("append"), st.sampled_from(LINES)),
    st.tuples(st.just("append"), st.sampled_from(LINES)),
    st.tuples(st.just("put"), st.lists(st.sampled_from([b"same", b"ours"]), min_size=1, max_size=3)),
    st.tuples(st.sampled_from(["claim", "ack", "fail", "release", "remove"]), st.integers(1, 3)),
    st.tuples(st.sampled_from(["comment out", "pack", "look"]), st.none()),
)
FIELDS = [each.name for each in fields(penstock.Message) if each.name not in ("queue", "_handle")]


def listed(store: Store) -> list[tuple[Any, ...]]:
    rows = []
    for message in store.queue().messages():
        # The time of a person's message is not recorded until it has a note: each process has its own guess.
        unsure = ("created_at", "received_at", "visible_at", "settled_at") if "-" in message.id else ()
        rows.append(tuple(repr(getattr(message, each)) for each in FIELDS if each not in unsure))
    return sorted(rows)


def do(store: Store, path: Path, step: str, what: Any, held: list[penstock.Message]) -> None:
    queue = store.queue()
    match step:
        case "append":
            path.write_bytes(path.read_bytes() + what.encode())
        case "comment out":
            path.write_bytes(path.read_bytes().replace(b"-same", b"#same", 1))
        case "put":
            queue.put_many(what)
        case "claim":
            held += queue.claim(what, lease=600)
        case "remove":
            queue.remove(*[message.id for message in list(queue.messages())[:what]])
        case "pack":
            store.backend.pack("jobs")  # type: ignore[attr-defined]
        case "look":
            queue.counts()
        case _:
            for message in held[:what]:
                with suppress(penstock.LeaseExpired):
                    getattr(queue, step)(message.receipt or "")
            del held[:what]


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.booleans(), STEP), max_size=12))
def test_processes_that_have_the_file_open_see_what_a_new_one_sees(
    steps: list[tuple[bool, tuple[str, Any]]],
) -> None:
    clock = SimulatedClock()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.tq"
        path.write_text("-same\n-first\n")
        with (
            penstock.open(path, clock=clock, sync="never") as one,
            penstock.open(path, clock=clock, sync="never") as two,
        ):
            held: list[penstock.Message] = []
            for first, (step, what) in steps:
                do(one if first else two, path, step, what, held)
                if step != "append":  # several may come between two looks
                    assert listed(one) == listed(two)
            assert listed(one) == listed(two)
            with penstock.open(path, clock=clock, sync="never") as new:
                assert listed(new) == listed(one)
