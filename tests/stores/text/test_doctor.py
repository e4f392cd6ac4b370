"""The doctor for text stores names odd lines, holders of messages and strays, and changes nothing."""

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import penstock
from penstock import SimulatedClock
from penstock.cli import cli
from penstock.contract.examination import Finding
from penstock.stores.text import doctor
from penstock.stores.text.doctor import TextExamination, examine


def state_of(folder: Path) -> list[tuple[str, bytes, int, int]]:
    """Names, contents, times and inodes of all files."""
    files = [each for each in sorted(folder.rglob("*")) if each.is_file()]
    return [(str(each), each.read_bytes(), each.stat().st_mtime_ns, each.stat().st_ino) for each in files]


def examined(path: Path, clock: SimulatedClock) -> TextExamination:
    """The only queue, with its findings."""
    before = state_of(path.parent)
    found = examine(str(path), now=clock.now())
    assert state_of(path.parent) == before
    [queue] = found.queues
    return queue


def said(findings: list[Finding]) -> list[tuple[int | None, str]]:
    return [(each.line, each.text) for each in findings]


ODD = {
    "an unknown control character": (
        "-a\n?odd\n more\n", [(2, "line 2 is kept and skipped: nothing is known that begins with '?'")],
    ),
    "a continuation above all": (" more\n-a\n", [(1, "line 1 is kept and skipped: it continues nothing")]),
    "a variable above all": ("\n\\id=1\n-a\n", [(2, "line 2 is kept and skipped: it is a variable of nothing")]),
    "a continuation below a variable": (
        "-a\n\\x\n more\n", [(3, "line 3 is kept and skipped: it continues a variable, which has one line only")],
    ),
    "wrong numbers and times": (
        "-a\n\\priority=high\n\\attempts=1.5\n\\visible=soon\n",
        [
            (2, "line 2 counts as missing: priority='high' is not understood"),
            (3, "line 3 counts as missing: attempts='1.5' is not understood"),
            (4, "line 4 counts as missing: visible='soon' is not understood"),
        ],
    ),
    "a number out of range": (
        "-a\n\\priority=99999999999999999999\n",
        [(2, "line 2: priority=99999999999999999999 is out of range, and means 9223372036854775807")],
    ),
    "a wrong setting": (
        "-a\n# Penstock queue\n\\max_size=lots\n",
        [
            (
                3,
                "line 3 counts as missing: 'max_size=lots' is no setting: invalid literal for int() with base 10: "
                "'lots'",
            )
        ],
    ),
    "an id that is none, a header that is none, a text that is no base64": (
        "-a!\n\\id=7\n\\header x\n\\encoding=base64\n",
        [
            (2, "line 2: id='7' is not one of Penstock's, 16 hexadecimal digits: the message has no id"),
            (3, "line 3: a header needs NAME=VALUE, with JSON strings for odd names"),
            (4, "line 4: the text is not base64, so that it is the payload as it is"),
        ],
    ),
    "a variable twice": (
        "-a\n\\priority=1\n\\priority=2\n",
        [(3, "line 3: priority= is there twice, and only the first one counts")],
    ),
    "an id twice": (
        "-a\n\\id=0123456789abcdef\n-b\n\\id=0123456789abcdef\n",
        [(3, "line 3 has the id 0123456789abcdef of line 1: both are messages, known by their texts")],
    ),
    "line ends of two kinds": (
        "-a\r\n-b\n-c\r\n d\n",
        [
            (
                3,
                "2 lines of 4 end in \\r\\n, the others in \\n; in the entry at line 3 they are mixed, so that "
                "each \\r is part of its text",
            )
        ],
    ),
    "a last line without its end": (
        "-a\n-b", [(2, "line 2, the last one, has no newline: what a shell appends goes on in it")],
    ),
    "a put that was cut off": (
        "-a\n#b", [(2, "line 2, the last one, has no newline: a comment, or a put that was cut off")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", ODD)
def test_what_is_odd_is_named_by_its_line(path: Path, clock: SimulatedClock, what: str) -> None:
    text, expected = ODD[what]
    path.write_bytes(text.encode())
    found = examined(path, clock)
    *findings, last = found.findings
    assert said(findings) == expected
    assert last.text.startswith("there is no jobs.tq.mutex: Penstock has not used the queue yet")
    assert {each.severity for each in findings} == {"note"}
    assert {each.file for each in findings} == {str(path)}


def test_a_file_whose_lines_are_all_understood_is_sound(path: Path, clock: SimulatedClock) -> None:
    with penstock.open(path, clock=clock) as store:
        store.queue().put("ours", headers={"a b": "c"}, key="k", priority=2, delay=5)
    found = examine(str(path), now=clock.now())
    assert found.sound
    assert said(found.findings) == [(None, "every line is understood, and nothing is left over")]
    assert found.queues[0].findings == []


def test_it_tells_who_holds_what_and_what_is_in_the_file(path: Path, clock: SimulatedClock) -> None:
    path.write_text("# mine\n-marked\n\\mutex=bob\n-by hand\n!failed\n?odd\n")
    with penstock.open(path, clock=clock) as store:
        queue = store.queue()
        ours = queue.put("ours")
        queue.put("later", delay=60)
        first = queue.claim(lease=30, consumer="me")[0]
        queue.claim(lease=45, consumer="you")
        queue.put("done")
        queue.pop()
        clock.advance(1)
        found = examined(path, clock)
    assert found.counts == {"delayed": 2, "available": 0, "in_flight": 2, "done": 0, "failed": 1}
    assert (found.lines, found.comments, found.skipped) == (path.read_bytes().count(b"\n"), 1, 1)
    assert [(each.id, each.consumer, each.lease_until, each.attempts, each.line) for each in found.held] == [
        (found.held[0].id, "bob", None, 0, 2),
        (first.id, "me", first.lease_until, 1, 4),
        (ours, "you", clock.now() + 44_000, 1, 7),
    ]
    clock.advance(60)
    assert said(examined(path, clock).findings)[-1] == (None, "the leases of 2 messages ended without an ack")


def test_what_packing_would_free_is_what_it_frees(path: Path, clock: SimulatedClock) -> None:
    with penstock.open(path, clock=clock) as store:
        queue = store.queue()
        ids = queue.put_many([b"x" * 1_000 for _ in range(100)])
        queue.ack(*queue.claim(90))
        queue.remove(ids[-1])
        found = examined(path, clock)
        assert found.packing_drops == 91
        assert [each.text for each in found.findings] == [
            f"packing would drop 91 entries, {found.packing_frees:,} of {found.bytes:,} bytes"
        ]
        assert store.backend.pack("jobs") == found.packing_frees  # type: ignore[attr-defined]
        found = examined(path, clock)
        assert (found.packing_frees, found.packing_drops, found.findings) == (0, 0, [])


def test_an_edit_is_told_and_which_leases_it_has_ended(path: Path, clock: SimulatedClock) -> None:
    path.write_text("-a\n-b\n")
    with penstock.open(path, clock=clock) as store:
        a, _b = store.queue().claim(2, lease=30, consumer="me")
        path.write_text("-changed\n-b\n")
        found = examined(path, clock)
        assert [each.text.partition(",")[0] for each in found.findings] == [
            "the file was edited since Penstock last used it",
            "me loses its lease until 2023-11-14T22:13:50.000Z",
        ]
        assert a.receipt is not None
        assert a.receipt in found.findings[1].text
        assert found.counts["in_flight"] == 1
        assert store.queue().counts()["in_flight"] == 1


def cut(data: bytes) -> bytes:
    return data[:-5]


def flipped(data: bytes) -> bytes:
    at = data.index(b'"at"')
    return data[:at] + b"?" + data[at + 1 :]


def doubtful(data: bytes) -> bytes:
    return b"doubtful: a write or sync has failed".ljust(79) + data[79:]


@pytest.mark.parametrize(
    ("harm", "severity", "text"),
    [
        (cut, "note", "line 3 of the mutex file is not whole: its operation was interrupted"),
        (flipped, "problem", "line 2 of the mutex file is damaged: what it and 1 line after it say"),
        (doubtful, "note", "a write or sync failed: it is unknown which of the last bytes the disk has"),
    ],
)
def test_damage_to_the_mutex_file_is_named(
    path: Path, clock: SimulatedClock, harm: Callable[[bytes], bytes], severity: str, text: str
) -> None:
    path.write_text("-a\n-b\n")
    with penstock.open(path, clock=clock) as store:
        store.queue().claim()
        store.queue().claim()
    mutex = path.with_name("jobs.tq.mutex")
    mutex.write_bytes(harm(mutex.read_bytes()))
    [finding] = examined(path, clock).findings
    assert (finding.severity, finding.file) == (severity, str(mutex))
    assert finding.text.startswith(text)
    assert examine(str(path), now=clock.now()).sound == (severity == "note")


def test_a_process_in_the_middle_of_a_change_is_not_waited_for(
    path: Path, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_PAUSE", 0)
    path.write_text("-a\n")
    with penstock.open(path, clock=clock) as store:
        store.queue().counts()
    with path.with_name("jobs.tq.mutex").open() as mutex:
        fcntl.flock(mutex, fcntl.LOCK_EX)
        [finding] = examined(path, clock).findings
    assert finding.text == "a process holds the lock, and may be in the middle of a change"


def test_files_that_are_no_queues_are_strays(tmp_path: Path, clock: SimulatedClock) -> None:
    with penstock.open(f"text:{tmp_path}", clock=clock) as store:
        store.create("jobs")
    for name in ("notes.txt", "jobs.tq.new", "jobs.tq.mutex.new", "gone.tq.mutex"):
        (tmp_path / name).touch()
    (tmp_path / "x.tq").mkdir()
    os.mkfifo(tmp_path / "pipe.tq")
    before = sorted(each.name for each in tmp_path.iterdir())
    found = examine(f"text:{tmp_path}", now=clock.now())
    assert sorted(each.name for each in tmp_path.iterdir()) == before
    assert [queue.name for queue in found.queues] == ["default", "jobs"]
    assert [(Path(each.file or "").name, each.severity) for each in found.findings] == [
        ("pipe.tq", "note"), ("x.tq", "note"), ("gone.tq.mutex", "note"), ("jobs.tq.mutex.new", "note"),
        ("jobs.tq.new", "note"), ("notes.txt", "note"),
    ]  # fmt: skip
    alone = examine(str(tmp_path / "jobs.tq"), now=clock.now())
    assert [Path(each.file or "").name for each in alone.findings] == ["jobs.tq.mutex.new", "jobs.tq.new"]


def test_a_file_of_several_names_is_examined_with_the_one_mutex_file_that_it_has(
    path: Path, clock: SimulatedClock
) -> None:
    path.write_text("-a\n")
    with penstock.open(path, clock=clock) as store:
        store.queue().claim(consumer="me")
    other = path.with_name("other.tq")
    os.link(path, other)
    found = examined(other, clock)
    assert [each.consumer for each in found.held] == ["me"]
    assert [each.text for each in found.findings] == [
        "the file has several names (hard links), and is not packed: another file would part them"
    ]


def test_the_command_prints_a_table_the_holders_and_the_findings_and_json(path: Path) -> None:
    path.write_text("-a\n?odd\n")
    with penstock.open(path) as store:
        store.queue().claim(lease=600, consumer="me")
    shown = CliRunner().invoke(cli, ["--store", str(path), "doctor"])
    assert shown.exit_code == 0
    assert "packing frees" in shown.output
    assert "jobs.tq:1" in shown.output
    assert "note     queue jobs: line 2 is kept and skipped" in shown.output
    told = json.loads(CliRunner().invoke(cli, ["--store", str(path), "doctor", "--json"]).output)
    assert (told["sound"], told["queues"][0]["held"][0]["consumer"]) == (True, "me")
    assert told["queues"][0]["findings"][0]["line"] == 2
    mutex = path.with_name("jobs.tq.mutex")
    mutex.write_bytes(flipped(mutex.read_bytes()) + b"x\n")
    assert CliRunner().invoke(cli, ["--store", str(path), "doctor"]).exit_code == 1
