"""Edits of a text queue's file by people: each has its plain effect, and no consumer settles another message."""

import os
from pathlib import Path

import pytest

import penstock
from penstock import LeaseExpired, Queue, SimulatedClock, State, Store
from penstock.system.files import SystemFile
from tests.stores.text.conftest import Edit, Look, by_renaming


def payloads(queue: Queue, state: State | None = None) -> list[bytes]:
    return [message.payload for message in queue.messages(state)]


def test_a_file_that_a_person_wrote_is_a_queue_as_it_is(path: Path, queue: Queue, edit: Edit) -> None:
    edit(path, "# mine\n-resize cat.jpg\n\n-two\n lines\n\\note\n=done\n!broken\n-no newline")
    messages = list(queue.messages("available"))
    assert [message.payload for message in messages] == [b"resize cat.jpg", b"two\nlines", b"no newline"]
    assert {(each.priority, each.attempts, len(each.headers)) for each in messages} == {(0, 0, 0)}
    assert payloads(queue, "failed") == [b"broken"]
    assert [queue.claim()[0].payload for _ in range(3)] == [b"resize cat.jpg", b"two\nlines", b"no newline"]


def test_variables_that_a_person_writes_count(path: Path, queue: Queue, edit: Edit, clock: SimulatedClock) -> None:
    edit(path, '-later\n-first\n\\priority=-5\n\\header kind=image\n\\header "odd name"="a\\nb"\n')
    [message] = queue.claim()
    assert (message.payload, message.priority) == (b"first", -5)
    assert message.headers == {"kind": "image", "odd name": "a\nb"}


def test_the_state_of_a_persons_message_is_one_byte(path: Path, queue: Queue) -> None:
    path.write_text("-a\n-b\n-c\n")
    a, b, c = queue.claim(3)
    a.ack()
    queue.remove(b.id)
    assert path.read_text() == "=a\n#b\n-c\n"
    for _ in range(4):
        c.fail()
        [c] = queue.claim()
    c.fail(reason="never")
    assert path.read_text() == "=a\n#b\n!c\n"
    queue.redrive()
    assert path.read_text() == "=a\n#b\n-c\n"


def test_a_lease_follows_its_message(path: Path, queue: Queue, edit: Edit, look_again: Look) -> None:
    path.write_text("-a\n-b\n-c\n")
    a, b = queue.claim(2)
    put = queue.put(b"put")
    [c] = queue.claim()
    [ours] = queue.claim()
    assert ours.id == put
    text = path.read_text()
    edit(path, "# a comment, and b before a\n-b\n-a\n" + text.removeprefix("-a\n-b\n"))
    seen = look_again()
    assert seen.counts()["in_flight"] == 4
    assert seen.claim() == []
    seen.ack(a.receipt or "")
    assert path.read_text().startswith("# a comment, and b before a\n-b\n=a\n-c\n-put\n")
    seen.ack(ours.receipt or "", b.receipt or "", c.receipt or "")
    assert [line[0] for line in path.read_text().splitlines() if line[0] in "-=!"] == ["=", "=", "=", "="]


def test_a_message_that_cannot_be_told_apart_is_not_settled(
    path: Path, queue: Queue, edit: Edit, look_again: Look
) -> None:
    path.write_text("-same\n-same\n-other\n")
    first, _second, other = queue.claim(3)
    edit(path, "-same\n-other\n")
    seen = look_again()
    with pytest.raises(LeaseExpired) as caught:
        seen.ack(first.receipt or "", other.receipt or "")
    assert caught.value.receipts == [first.receipt]
    assert path.read_text() == "-same\n=other\n"
    assert payloads(seen, "available") == [b"same"]


def test_twins_are_told_apart_by_their_order_while_they_are_as_many(
    path: Path, queue: Queue, edit: Edit, look_again: Look
) -> None:
    path.write_text("-same\n-same\n-other\n")
    _first, second = queue.claim(2)
    edit(path, "-other\n# head\n-same\n-same\n")
    look_again().ack(second.receipt or "")
    assert path.read_text() == "-other\n# head\n-same\n=same\n"


def test_a_message_that_was_rewritten_under_its_consumer_is_lost_to_it(
    path: Path, queue: Queue, edit: Edit, look_again: Look
) -> None:
    path.write_text("-a\n")
    [held] = queue.claim()
    edit(path, "-A\n")
    seen = look_again()
    with pytest.raises(LeaseExpired):
        seen.ack(held.receipt or "")
    assert path.read_text() == "-A\n"
    assert seen.remove(held.id) == 0  # an id that no longer fits is not found
    assert payloads(seen, "available") == [b"A"]


def test_a_message_that_is_copied_is_two(path: Path, queue: Queue, edit: Edit, look_again: Look) -> None:
    queue.put(b"a")
    [held] = queue.claim()
    edit(path, path.read_text() * 2)
    seen = look_again()
    with pytest.raises(LeaseExpired):
        seen.ack(held.receipt or "")
    assert payloads(seen, "available") == [b"a", b"a"]
    assert len({message.id for message in seen.messages()}) == 2


def test_leases_of_copies_outlive_an_edit_that_leaves_them_as_they_are(
    path: Path, queue: Queue, edit: Edit, look_again: Look
) -> None:
    queue.put(b"a")
    edit(path, path.read_text() * 2)
    held = queue.claim(2)
    edit(path, "# a comment\n" + path.read_text() + "-b\n")
    seen = look_again()
    assert payloads(seen, "available") == [b"b"]
    seen.ack(*[message.receipt or "" for message in held])
    assert payloads(seen) == [b"b"]


@pytest.mark.parametrize("by", ["a person", "Penstock"])
def test_commenting_out_takes_a_message_away(
    path: Path, queue: Queue, edit: Edit, look_again: Look, by: str
) -> None:
    if by == "Penstock":
        queue.put_many([b"a", b"b"])
    else:
        path.write_text("-a\n-b\n")
    [held] = queue.claim()
    edit(path, path.read_text().replace("-a", "#a"))
    seen = look_again()
    with pytest.raises(LeaseExpired):
        seen.ack(held.receipt or "")
    assert payloads(seen) == [b"b"]
    edit(path, path.read_text().replace("#a", "-a"))
    assert payloads(seen, "available") == [b"a", b"b"]


def test_a_processed_message_that_is_queued_again_is_delivered_again(
    path: Path, queue: Queue, edit: Edit, look_again: Look
) -> None:
    queue.put(b"a")
    queue.claim()[0].ack()
    assert payloads(queue) == []
    edit(path, path.read_text().replace("=a", "-a"))
    [again] = look_again().claim()
    assert (again.payload, again.reason) == (b"a", None)
    again_text = path.read_text()
    assert again_text.startswith("-a\n")


def test_a_failed_message_that_is_queued_again_starts_over(
    path: Path, queue: Queue, edit: Edit, look_again: Look
) -> None:
    queue.put(b"a")
    for _ in range(5):
        queue.claim()[0].fail(reason="no")
    assert path.read_text().startswith("!a\n")
    edit(path, path.read_text().replace("!a", "-a"))
    [again] = look_again().claim()
    assert (again.attempts, again.reason) == (1, None)


def test_a_message_that_a_person_marks_as_processed_or_failed_is_that(
    path: Path, queue: Queue, edit: Edit, look_again: Look
) -> None:
    queue.put_many([b"a", b"b", b"c"])
    a, _b = queue.claim(2)
    edit(path, path.read_text().replace("-a", "=a").replace("-b", "!b"))
    seen = look_again()
    assert payloads(seen, "available") == [b"c"]
    assert payloads(seen, "failed") == [b"b"]
    with pytest.raises(LeaseExpired):
        seen.ack(a.receipt or "")


def test_lines_that_are_added_by_a_shell_are_messages(path: Path, queue: Queue) -> None:
    queue.put(b"a")
    [held] = queue.claim()
    for number in range(3):
        with path.open("a") as file:
            file.write(f"-echo {number}\n")
        assert len(payloads(queue, "available")) == number + 1
    held.ack()
    queue.put(b"b")
    assert payloads(queue) == [b"echo 0", b"echo 1", b"echo 2", b"b"]


def test_a_line_that_a_shell_adds_while_a_put_ends_is_a_message(
    path: Path, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_changed = SystemFile.set_changed

    def interrupted(file: SystemFile, time: int) -> None:
        monkeypatch.undo()
        with path.open("a") as other:
            other.write("-by hand\n")
        set_changed(file, time)

    queue.put(b"first")
    monkeypatch.setattr(SystemFile, "set_changed", interrupted)
    queue.put(b"second")
    queue.put(b"third")
    assert [message.payload for message in queue.claim(5)] == [b"first", b"second", b"by hand", b"third"]


def test_settings_can_be_edited(path: Path, queue: Queue, edit: Edit, look_again: Look) -> None:
    edit(path, "# Penstock queue\n\\max_attempts=1\n\\keep_done=forever\n\\max_size=lots\n-a\n")
    seen = look_again()
    assert (seen.settings.max_attempts, seen.settings.keep_done, seen.settings.max_size) == (1, None, 0)
    seen.claim()[0].fail()
    assert payloads(seen, "failed") == [b"a"]


def test_nothing_but_the_reserved_bytes_changes_in_a_life(path: Path, queue: Queue, clock: SimulatedClock) -> None:
    path.write_text("# head\n-person\n\n\\x\n?odd\n")
    queue.put(b"ours", headers={"kind": "image"}, priority=3)
    before = path.read_bytes()
    for message in queue.claim(2):
        message.extend(60)
        message.release()
    clock.advance(1)
    for message in queue.claim(2):
        message.ack()
    after = path.read_bytes()
    assert len(after) == len(before)
    changed = [at for at in range(len(before)) if before[at] != after[at]]
    text = before.decode()
    lease, attempts = text.index("\\lease="), text.index("\\attempts=")
    reserved = {text.index("-person"), text.index("-ours")}
    reserved |= set(range(lease + 7, lease + 48)) | set(range(attempts + 10, attempts + 15))
    assert set(changed) <= reserved


def test_a_mutex_variable_that_a_person_reserved_says_who_holds_the_message(path: Path, queue: Queue) -> None:
    path.write_text("-Hello World\n\\mutex=      \n-How are you today\n\\MUTEX\n-Goodbye World\n\\MUTEX  \n")
    first, second = queue.claim(2, consumer="worker 17")
    assert (
        path.read_text()
        == "-Hello World\n\\mutex=worker\n-How are you today\n\\TAKEN\n-Goodbye World\n\\MUTEX  \n"
    )
    first.release()
    second.release()
    assert (
        path.read_text()
        == "-Hello World\n\\mutex=      \n-How are you today\n\\MUTEX\n-Goodbye World\n\\MUTEX  \n"
    )


def test_without_its_mutex_file_a_queue_still_knows_what_its_variables_say(
    path: Path, queue: Queue, store: Store, clock: SimulatedClock
) -> None:
    queue.put(b"a")
    queue.claim()[0].release()
    [held] = queue.claim(lease=60)
    store.close()
    os.unlink(f"{path}.mutex")
    with penstock.open(path, clock=clock) as again:
        assert again.queue().claim() == []
        [shown] = again.queue().messages("in_flight")
        assert (shown.attempts, shown.lease_until) == (2, held.lease_until)
        again.queue().ack(held.receipt or "")
    assert path.read_text().startswith("=a\n")


def test_a_file_of_another_user_is_known_by_the_time_that_it_has(
    path: Path, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.put_many([b"x"] * 100)
    queue.put(b"a")
    by_renaming(path, path.read_text())
    monkeypatch.setattr(SystemFile, "set_changed", lambda file, time: None)  # as only its owner may
    queue.put(b"b")
    read: list[int] = []
    read_file = SystemFile.read

    def noted(file: SystemFile, offset: int, size: int) -> bytes:
        read.append(size)
        return read_file(file, offset, size)

    monkeypatch.setattr(SystemFile, "read", noted)
    queue.put(b"c")
    assert read == []  # nobody has changed it since
    assert queue.count() == 103
