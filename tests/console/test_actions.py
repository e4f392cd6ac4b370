"""What the console does: every action, its question, and its effect as the Python API sees it."""

import socket

import pytest
from playwright.sync_api import expect

import penstock
from penstock.contract.stream_operations import Streams
from tests.console.tab import Tab
from tests.http.serving import until

GONE = f"2147483647-1-1@x@{socket.gethostname()}"  # a reader that has ended


@pytest.fixture
def jobs(store: penstock.Store, request: pytest.FixtureRequest) -> penstock.Queue:
    """A queue of this test, with three failed messages, a delayed and an available one."""
    queue = store.create(request.node.name.removeprefix("test_")[:40], max_attempts=1)
    queue.put_many([b"bad 1", b"bad 2", b"bad 3"])
    for message in queue.claim(3):
        message.fail(reason="no disk")
    queue.put(b"later", delay=3600)
    queue.put(b"good")
    return queue


def payloads(queue: penstock.Queue, state: penstock.State | None = None) -> list[bytes]:
    return [message.payload for message in queue.messages(state)]


def test_a_queue_is_created(tab: Tab, store: penstock.Store) -> None:
    tab.open()
    tab.press("New queue")
    with tab.dialog() as dialog:
        dialog.get_by_label("Name").fill("made here")
        tab.press("Create the queue", dialog)
        expect(dialog).to_contain_text("has ' '")  # the server's refusal, in the dialog
        dialog.get_by_label("Name").fill("made-here")
        dialog.get_by_label("Description").fill("Of the console")
        tab.press("Create the queue", dialog)
    tab.shows("The queue is empty. Put a message:")
    assert store.queue("made-here").settings.description == "Of the console"


def test_a_message_is_put_with_all_that_it_can_have(tab: Tab, jobs: penstock.Queue) -> None:
    tab.open(f"queues/{jobs.name}")
    tab.press("Put a message")
    with tab.dialog() as dialog:
        dialog.get_by_label("Payload").fill("resize\nelk.jpg")
        dialog.get_by_label("Priority").fill("-9007199254740993")  # no double
        dialog.get_by_label("Delay").fill("soon")
        dialog.get_by_text("Headers, group, key").click()
        dialog.get_by_label("Headers").fill("kind: image\nurl: http://elk.example/")
        dialog.get_by_label("Group").fill("elks")
        tab.press("Put 1 message", dialog)
        expect(dialog).to_contain_text("soon is no number for the delay")
        dialog.get_by_label("Delay").fill("")
        tab.press("Put 1 message", dialog)
    tab.shows("Put as message 6.")
    [message] = jobs.claim()
    assert (message.payload, message.priority, message.group) == (b"resize\nelk.jpg", -9007199254740993, "elks")
    assert message.headers == {"kind": "image", "url": "http://elk.example/"}
    expect(tab.row("Messages", message.id)).to_contain_text("in flight")


def test_all_failed_messages_are_redriven(tab: Tab, jobs: penstock.Queue) -> None:
    tab.open(f"queues/{jobs.name}")
    tab.press("Redrive 3 failed")
    tab.confirm("3 failed messages of", "Redrive 3 messages")
    tab.shows("3 messages redriven.")
    assert jobs.counts()["failed"] == 0
    assert len(payloads(jobs, "available")) == 4


def test_chosen_messages_are_redriven(tab: Tab, jobs: penstock.Queue) -> None:
    tab.open(f"queues/{jobs.name}")
    tab.choose("1", "3", "5")  # the last has not failed
    tab.press("Redrive 2")
    tab.confirm("2 failed messages of", "Redrive 2 messages")
    tab.shows("2 messages redriven.")
    assert payloads(jobs, "failed") == [b"bad 2"]


def test_failed_messages_are_moved(tab: Tab, store: penstock.Store, jobs: penstock.Queue) -> None:
    other = store.create("elsewhere")
    tab.open(f"queues/{jobs.name}")
    tab.press("Move failed…")
    with tab.dialog() as dialog:
        expect(dialog).to_contain_text("3 failed messages of")
        dialog.get_by_label("To queue").fill("nowhere")
        tab.press("Move 3 messages", dialog)
        expect(dialog).to_contain_text("there is no queue 'nowhere'")
        dialog.get_by_label("To queue").fill("elsewhere")
        tab.press("Move 3 messages", dialog)
    tab.shows("3 messages moved to elsewhere.")
    assert payloads(other) == [b"bad 1", b"bad 2", b"bad 3"]
    assert payloads(jobs) == [b"later", b"good"]


def test_a_message_that_is_open_is_moved(tab: Tab, store: penstock.Store, jobs: penstock.Queue) -> None:
    aside = store.create("aside")
    tab.open(f"queues/{jobs.name}?message=5")
    with tab.dialog() as dialog:
        tab.press("Move 1…", dialog)
        with tab.dialog() as question:
            question.get_by_label("To queue").fill("aside")
            tab.press("Move 1 message", question)
    assert payloads(aside) == [b"good"]


def test_messages_are_removed_after_a_warning(tab: Tab, jobs: penstock.Queue) -> None:
    [held] = jobs.claim(lease=3600)
    tab.open(f"queues/{jobs.name}")
    tab.choose(held.id, "4")
    tab.press("Remove 2")
    with tab.dialog() as dialog:
        expect(dialog).to_contain_text("1 message of them is being worked on")
        expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
        tab.press("Cancel", dialog)
    assert jobs.counts()["delayed"] == 1
    tab.press("Remove 2")
    tab.confirm("2 messages of", "Remove 2 messages")
    tab.shows("2 messages removed.")
    assert payloads(jobs) == [b"bad 1", b"bad 2", b"bad 3"]
    with pytest.raises(penstock.LeaseExpired):
        held.ack()


def test_leases_of_chosen_messages_are_revoked(tab: Tab, store: penstock.Store, jobs: penstock.Queue) -> None:
    jobs.put_many([b"long", b"longer", b"longest"])
    first, second, third = jobs.claim(4, lease=43_200)[:3]
    tab.open(f"queues/{jobs.name}")
    tab.choose("1", first.id, second.id)  # the first has failed: nobody holds it
    tab.press("Revoke 2 leases")
    tab.confirm("consumers that hold them lose their leases", "Revoke 2 leases")
    tab.shows("2 messages available again.")
    tab.go(f"queues/{jobs.name}?message={third.id}")
    with tab.dialog() as dialog:
        tab.press("Revoke 1 lease", dialog)
        tab.confirm("1 message of", "Revoke 1 lease")
    tab.shows("1 message available again.")
    assert payloads(jobs, "available") == [b"good", b"long", b"longer"]
    with pytest.raises(penstock.LeaseExpired):
        first.ack()


def test_a_queue_is_purged_but_what_is_in_flight_stays(tab: Tab, jobs: penstock.Queue) -> None:
    [held] = jobs.claim(lease=3600)
    tab.open(f"queues/{jobs.name}")
    tab.press("Purge…")
    with tab.dialog() as dialog:
        expect(dialog).to_contain_text("4 messages will be gone: 1 delayed, 3 failed.")
        expect(dialog).to_contain_text("1 message in flight will stay.")
        tab.press("Remove 4 messages", dialog)
    tab.shows("4 messages removed.")
    assert payloads(jobs) == [held.payload]
    held.ack()


def test_a_queue_is_deleted_once_its_name_is_typed(tab: Tab, store: penstock.Store, jobs: penstock.Queue) -> None:
    tab.open(f"queues/{jobs.name}")
    tab.press("Delete…")
    with tab.dialog() as dialog:
        expect(dialog).to_contain_text("5 messages will be gone")
        tab.press("Delete the queue", dialog)
        expect(dialog).to_contain_text("That is not the name of this queue.")
        dialog.get_by_role("textbox").fill(jobs.name)
        tab.press("Delete the queue", dialog)
    expect(tab.page).to_have_url(f"{tab.url}/-/#/")
    assert jobs.name not in [info.name for info in store.queues()]


def test_settings_are_changed(tab: Tab, jobs: penstock.Queue) -> None:
    tab.open(f"queues/{jobs.name}?tab=settings")
    page = tab.page
    for name, value in (
        ("max_attempts", "7"), ("keep_done", ""), ("backoff", "1, 2, 300"), ("labels", "team=a\nsite=b=c"),
    ):  # fmt: skip
        page.get_by_label(name, exact=True).fill(value)
    tab.press("Save")
    with tab.dialog() as dialog:
        expect(dialog).to_contain_text("max_attempts: 1 → 7")
        expect(dialog).to_contain_text("keep_done: 0 → none")
        tab.press("Change 4 settings", dialog)
    tab.shows("Changed 4 settings.")
    settings = jobs.settings
    assert (settings.max_attempts, settings.keep_done, settings.backoff) == (7, None, (1, 2, 300))
    assert settings.labels == {"team": "a", "site": "b=c"}
    page.get_by_label("lease", exact=True).fill("0")
    tab.press("Save")
    with tab.dialog() as dialog:
        tab.press("Change 1 setting", dialog)
        expect(dialog).to_contain_text("lease=0 would end every lease at once")
        tab.press("Cancel", dialog)
    tab.press("Undo")
    expect(page.get_by_label("lease", exact=True)).to_have_value("30")
    jobs.update(description="Changed elsewhere")
    expect(page.get_by_label("description", exact=True)).to_have_value("Changed elsewhere")


def test_what_a_stream_holds_is_released(tab: Tab, store: penstock.Store) -> None:
    streams, queue = Streams(store.backend.run), store.create("streamed")
    queue.put_many([b"a", b"b", b"c"])
    streams.begin("streamed", "nightly", GONE)
    assert streams.next("streamed", "nightly", GONE, 0, 2, 1 << 20) == 1
    assert queue.counts()["in_flight"] == 2
    tab.open("streams")
    tab.press("Release 2", tab.row("Streams", "nightly"))
    tab.confirm("2 messages of streamed that this stream holds will be available again", "Release 2 messages")
    tab.shows("2 messages released.")
    assert queue.counts()["in_flight"] == 0
    tab.press("Delete", tab.row("Streams", "nightly"))
    tab.confirm("It holds no message.", "Delete 1 stream")
    until(lambda: streams.all() == [])


def test_what_is_refused_is_said_and_changes_nothing(
    tab: Tab, store: penstock.Store, jobs: penstock.Queue
) -> None:
    store.create("full", max_size=1).put(b"only")
    tab.open(f"queues/{jobs.name}")
    tab.press("Move failed…")
    with tab.dialog() as dialog:
        dialog.get_by_label("To queue").fill("full")
        tab.press("Move 3 messages", dialog)
        expect(dialog.get_by_role("alert")).to_contain_text("full")
        tab.press("Cancel", dialog)
    assert jobs.counts()["failed"] == 3
