"""What people and other programs write into a queue's file is read, or warned about; never a traceback."""

import logging
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import penstock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "default.tq"


NAMES = [
    "id",
    "priority",
    "attempts",
    "lease",
    "mutex",
    "received",
    "visible",
    "expires",
    "created",
    "key",
    "encoding",
    "header",
    "max_attempts",
]
VALUES = st.one_of(
    st.integers().map(str),
    st.floats().map(str),
    st.datetimes().map(str),
    st.text(st.characters(exclude_characters="\n"), max_size=40),
    st.text(st.characters(categories=["Nd", "No"]), max_size=10),
    st.text("0123456789abcdef-+:TZ. ", max_size=45),
)


@given(st.lists(st.tuples(st.sampled_from(NAMES), VALUES), max_size=6), st.sampled_from(["\n", "\r\n"]))
@example([("attempts", "4294967295")], "\n")
@example([("priority", "9" * 30)], "\n")
@example([("priority", "9" * 5000)], "\n")
@example([("lease", "x")], "\n")
@example([("lease", "9999-12-31T23:59:59.999Z 0123456789abcdef"), ("attempts", "-7")], "\n")
@example([("received", "0001-01-01T00:00:00+23:59"), ("visible", "9999-12-31T23:59:59.999-23:59")], "\n")
def test_any_value_of_a_variable_is_read_or_warned_about(variables: list[tuple[str, str]], end: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "default.tq")
        lines = ["-first", *(f"\\{name}={value}" for name, value in variables), "-second", ""]
        path.write_bytes(end.join(lines).encode(errors="replace"))
        for _ in range(2):
            with penstock.open(path, sync="never") as store:
                queue = store.queue()
                for message in queue.claim(3):
                    message.fail()
                for message in queue.claim(3):
                    message.release()
                assert sum(queue.counts().values()) == len(list(queue.messages()))


def test_a_number_that_is_none_is_warned_about_with_its_line(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_bytes(b"-a\n\\priority=high\n")
    with caplog.at_level(logging.WARNING), penstock.open(path) as store:
        assert [message.priority for message in store.queue().messages()] == [0]
    assert f"{path} line 2 is skipped: priority='high' is not understood" in caplog.text


def test_a_file_with_the_line_ends_of_another_system_works_and_keeps_them(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbf-a\r\n b\r\n\\priority=5\r\n\r\n# note\r\n-c\r\n")
    with penstock.open(path) as store:
        queue = store.queue()
        queue.put(b"d\r\ne\r")
        assert [message.payload for message in queue.messages()] == [b"a\nb", b"c", b"d\r\ne\r"]
        queue.ack(*queue.claim(3))
        store._keeper.pack("default")  # type: ignore[attr-defined]
        queue.put(b"f")
    data = path.read_bytes()
    assert data.startswith(b"\xef\xbb\xbf")
    assert data.count(b"\n") == data.count(b"\r\n")
    with penstock.open(path) as store:
        assert [message.payload for message in store.queue().messages()] == [b"f"]


def test_a_payload_that_ends_in_a_carriage_return_comes_back_as_it_was(path: Path) -> None:
    payloads = [b"a\r", b"\r", b"a\r\nb\r", b"\r\n", b"\n\r", b"a\r\n"]
    with penstock.open(path) as store:
        store.queue().put_many(payloads)
    with penstock.open(path) as store:
        assert [message.payload for message in store.queue().messages()] == payloads


def test_a_message_that_another_program_has_marked_is_its_own_until_the_mark_is_gone(path: Path) -> None:
    path.write_bytes(b"-a\n\\mutex=bob       \n-b\n\\mutex=          \n")
    with penstock.open(path) as store:
        queue = store.queue()
        [claimed] = queue.claim(2)
        assert claimed.payload == b"b"
        claimed.release()
        with path.open("r+b") as file:  # as another program does: in place
            file.write(b"-a\n\\mutex=          \n-b\n\\mutex=alice     \n")
        [claimed] = queue.claim(2)
        assert claimed.payload == b"a"
        assert queue.counts()["delayed"] == 1
        with path.open("r+b") as file:
            file.seek(path.read_bytes().index(b"alice"))
            file.write(b"     ")
        assert [message.payload for message in queue.claim(2)] == [b"b"]
