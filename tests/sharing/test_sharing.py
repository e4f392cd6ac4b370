"""Shared folders: owner and guests, takeover when the owner ends, forks, other users, servers of guests."""

import asyncio
import http.client
import json
import os
import pwd
import signal
import socket
import stat
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import aio
from penstock.contract.operations import PAGE, AllAttempts, Parts
from penstock.contract.stream_operations import AllStreams
from penstock.http.client.address import UNIX
from penstock.http.client.backend import RemoteBackend
from penstock.http.client.calls import Answer, Call
from penstock.http.client.connection import Connection
from penstock.http.server import serve_in_thread
from penstock.rules.state import State
from penstock.sharing.backend import engine_of
from penstock.sharing.coroutines import GuestBackend
from penstock.stores.journal.store import JournalBackend
from penstock.stores.owner_operations import Pack
from penstock.system import socket_path as place
from tests.harness.children import ServerChild

OWN = """
import sys, penstock
store = penstock.open(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
store.close()
"""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")


@contextmanager
def other_process(folder: Path, code: str = OWN) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has the folder open."""
    command = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        try:
            yield process
        finally:
            process.kill()


def owns(store: penstock.Store) -> bool:
    return engine_of(store) is not None


def in_line(store: penstock.Store) -> int:
    backend = engine_of(store)
    assert backend is not None
    return backend.find("jobs").in_line


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        threading.Event().wait(0.002)


def leave_by_kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def leave_by_closing(process: subprocess.Popen[bytes]) -> None:
    process.communicate()
    assert process.returncode == 0


LEAVING = [leave_by_kill, leave_by_closing]


# Owner and guests


def test_the_first_opener_owns_the_store_and_the_others_are_its_guests(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as owner, penstock.open(tmp_path) as guest, penstock.open(tmp_path) as another:
        assert [owns(store) for store in (owner, guest, another)] == [True, False, False]
        guest.create("jobs").put(b"a")
        assert [message.payload for message in another.queue("jobs").claim()] == [b"a"]
        assert owner.queue("jobs").counts()["in_flight"] == 1


def test_guests_that_repeat_a_claim_get_the_next_message_each_time_and_no_lease_of_another(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as owner, penstock.open(tmp_path) as one, penstock.open(tmp_path) as other:
        owner.create("jobs").put_many([b"%d" % number for number in range(6)])
        owner.create("more").put(b"more")
        jobs, others, more = one.queue("jobs"), other.queue("jobs"), one.queue("more")
        claims = [(jobs, "a"), (jobs, "a"), (others, "b"), (jobs, "a"), (more, "a")]
        taken = [queue.claim(consumer=consumer)[0] for queue, consumer in claims]
        assert [each.payload for each in taken] == [b"0", b"1", b"2", b"3", b"more"]
        assert [each.consumer for each in taken] == ["a", "a", "b", "a", "a"]
        [long] = jobs.claim(consumer="a", lease=600)
        assert (long.lease_until or 0) - (long.claimed_at or 0) == 600_000


def test_a_program_that_opens_the_folder_of_a_server_is_its_guest(tmp_path: Path) -> None:
    with ServerChild(tmp_path / "store") as server:
        with penstock.open(tmp_path / "store") as store, penstock.open(server.url) as remote:
            store.create("jobs").put(b"a")
            assert [message.payload for message in remote.queue("jobs").claim()] == [b"a"]
            assert not owns(store)
        assert server.stop() == 0


def test_nothing_is_left_of_the_socket_once_the_store_is_closed(tmp_path: Path) -> None:
    share = tmp_path / ".penstock" / "share"
    with penstock.open(tmp_path) as owner:
        assert stat.S_ISSOCK((share / "socket").stat().st_mode)
        assert stat.S_IMODE(share.stat().st_mode) == 0o700
        with penstock.open(tmp_path) as guest:
            guest.queue().put(b"a")
        assert owner.queue().count() == 1
    assert list(share.iterdir()) == []


def test_what_a_killed_owner_left_does_not_keep_anyone_out(tmp_path: Path) -> None:
    with other_process(tmp_path) as owner:
        leave_by_kill(owner)
    assert (tmp_path / ".penstock" / "share" / "socket").exists()
    with penstock.open(tmp_path) as store:
        assert owns(store)


def test_a_path_that_is_too_long_for_a_socket_gets_a_short_one(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    with penstock.open(folder) as owner, penstock.open(folder) as guest:
        path = Path(place.find(place.share_of(str(folder))))
        assert len(os.fsencode(path)) <= 107
        assert not path.is_relative_to(folder)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        guest.queue().put(b"a")
        assert (owns(owner), owns(guest), owner.queue().count()) == (True, False, 1)
        owner.close()
        assert guest.queue().count() == 1
        assert owns(guest)
        another = Path(place.find(place.share_of(str(folder))))
    assert not path.parent.exists()
    assert not another.parent.exists()


def test_whichever_way_leads_to_a_folder_leads_to_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "store")
    monkeypatch.chdir(tmp_path)
    with penstock.open("store") as owner, penstock.open(tmp_path / "link") as guest:
        monkeypatch.chdir("/")
        guest.queue().put(b"a")
        assert owner.queue().count() == 1


def test_a_program_that_shares_with_nobody_loads_nothing_that_serves(tmp_path: Path) -> None:
    code = f"import sys, penstock; penstock.open({str(tmp_path)!r}).queue().put(b'a'); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert {"asyncio", "penstock.http.server", "penstock.sharing.owner_server"}.isdisjoint(loaded)


def test_an_owner_that_does_not_share_keeps_others_out(tmp_path: Path) -> None:
    locked = pytest.raises(penstock.StoreLocked, match=f"is open in pid {os.getpid()}, which does not share it")
    with penstock.open(tmp_path, share=False) as store:
        with locked:
            penstock.open(tmp_path, timeout=0.05)
        assert not (tmp_path / ".penstock" / "share").exists()
        store.queue().put(b"a")

    async def main() -> None:
        async with aio.open(tmp_path, share=False):
            with pytest.raises(penstock.StoreLocked, match="does not share it"):
                await aio.open(tmp_path, timeout=0.05)

    asyncio.run(main())


def test_an_owner_that_is_stuck_is_told_of(tmp_path: Path) -> None:
    with other_process(tmp_path) as owner:
        owner.send_signal(signal.SIGSTOP)
        with pytest.raises(penstock.StoreLocked, match=f"is open in pid {owner.pid}, which does not share it"):
            penstock.open(tmp_path, timeout=0.1)


def test_a_closed_guest_says_so(tmp_path: Path) -> None:
    with penstock.open(tmp_path), penstock.open(tmp_path) as guest:
        queue = guest.queue()
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(queue.claim, wait=60)
            until(lambda: not waiting.done())
            guest.close()
            with pytest.raises(penstock.StoreClosed):
                waiting.result()
        with pytest.raises(penstock.StoreClosed):
            queue.put(b"a")


# The owner goes


@pytest.mark.parametrize("leave", LEAVING)
def test_the_next_caller_takes_over_and_receipts_stay_valid(
    tmp_path: Path, leave: Callable[[subprocess.Popen[bytes]], None]
) -> None:
    with other_process(tmp_path) as owner, penstock.open(tmp_path) as store:
        queue = store.create("jobs", keep_done=60)
        queue.put_many([b"a", b"b", b"c"])
        held = queue.claim(3, lease=60)
        leave(owner)
        held[0].ack()
        held[1].fail(reason="no")
        held[2].extend(60)
        assert owns(store)
        assert [message.state for message in queue.messages()] == ["done", "available", "in_flight"]


@pytest.mark.parametrize("leave", LEAVING)
def test_who_waits_for_a_message_gets_it_from_the_next_owner(
    tmp_path: Path, leave: Callable[[subprocess.Popen[bytes]], None]
) -> None:
    with other_process(tmp_path) as owner, penstock.open(tmp_path) as one, penstock.open(tmp_path) as other:
        one.create("jobs")
        with ThreadPoolExecutor() as pool:
            waiting = [pool.submit(store.queue("jobs").claim, wait=60) for store in (one, other)]
            leave(owner)
            until(lambda: owns(one) or owns(other))
            until(lambda: in_line(one if owns(one) else other) == 2)
            other.queue("jobs").put_many([b"a", b"b"])
            assert sorted(each.result()[0].payload for each in waiting) == [b"a", b"b"]


def test_a_pop_that_waits_goes_on_when_the_owner_closes_the_store(tmp_path: Path) -> None:
    with other_process(tmp_path) as owner, penstock.open(tmp_path) as store:
        queue = store.create("jobs")
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(queue.pop, wait=60)
            leave_by_closing(owner)
            queue.put(b"a")
            popped = waiting.result()
        assert popped is not None
        assert popped.payload == b"a"


def test_puts_without_a_key_survive_owners_that_close(tmp_path: Path) -> None:
    ending = threading.Event()

    def put(store: penstock.Store) -> int:
        number = 0
        while not ending.is_set():
            store.queue("jobs").put(b"a")
            number += 1
        return number

    with penstock.open(tmp_path) as store:
        store.create("jobs")
        guests = [penstock.open(tmp_path) for _ in range(3)]
        with ThreadPoolExecutor() as pool:
            putting = [pool.submit(put, guest) for guest in guests]
            for _ in range(5):
                threading.Event().wait(0.05)
                store.close()
                store = penstock.open(tmp_path)
            ending.set()
            count = sum(each.result() for each in putting)
        assert store.queue("jobs").count() == count
        for guest in guests:
            guest.close()
        store.close()


def test_a_put_without_a_key_that_a_killed_owner_did_not_answer_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = threading.Semaphore(0)
    receive = Connection._receive

    def receive_what_was_asked_for(self: Connection, deadline: float) -> Answer:
        sent.release()
        return receive(self, deadline)

    with other_process(tmp_path) as owner, penstock.open(tmp_path) as store:
        queue = store.queue()
        monkeypatch.setattr(Connection, "_receive", receive_what_was_asked_for)
        owner.send_signal(signal.SIGSTOP)  # it gets requests, and does not answer
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(queue.put, b"a")
            repeatable = pool.submit(queue.put, b"b", key="b")
            for _ in range(2):
                sent.acquire()
            leave_by_kill(owner)
            with pytest.raises(penstock.StoreUnreachable, match="The put may have happened: look before"):
                asked.result()
            repeatable.result()
        assert [message.payload for message in queue.messages()] == [b"b"]


def test_a_listing_goes_on_with_the_next_owner(tmp_path: Path) -> None:
    with other_process(tmp_path) as owner, penstock.open(tmp_path) as store:
        queue = store.queue()
        ids = [each for _ in range(3) for each in queue.put_many([b"a"] * 1_000)]
        messages, first = queue.messages(), queue.peek(3_000)
        listed, peeked = [next(messages).id], [next(first).id]
        leave_by_kill(owner)
        listed += [message.id for message in messages]
        peeked += [message.id for message in first]
        assert (listed, peeked) == (ids, ids)


def test_coroutines_take_over_as_well(tmp_path: Path) -> None:
    async def main() -> None:
        with other_process(tmp_path) as owner:
            async with aio.open(tmp_path) as store, aio.open(tmp_path) as guest:
                jobs = await store.create("jobs")
                await jobs.put(b"a")
                [held] = await jobs.claim(lease=60)
                waiting = asyncio.create_task((await guest.queue("jobs")).claim(wait=60))
                await asyncio.sleep(0.05)
                leave_by_kill(owner)
                await held.ack()
                await jobs.put(b"b")
                assert [message.payload for message in await waiting] == [b"b"]

    asyncio.run(main())


# Forks


def test_a_child_that_was_forked_is_a_guest_of_its_parent(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store, penstock.open(tmp_path) as guest:
        queue = store.create("jobs")
        guest.queue("jobs").put(b"guest")
        child = os.fork()
        if child == 0:
            queue.put(b"child")
            guest.queue("jobs").put(b"child's guest")
            os._exit(0 if not owns(store) else 1)
        assert os.waitpid(child, 0)[1] == 0
        queue.put(b"parent")
        payloads = [message.payload for message in queue.messages()]
        assert payloads == [b"guest", b"child", b"child's guest", b"parent"]


FORK = """
import os, sys, penstock
store = penstock.open(sys.argv[1])
guest = penstock.open(sys.argv[1])
guest.queue().put(b"a")
if os.fork() == 0:
    os.close(1)
    sys.stdin.read()
    os._exit(0)
print("open", flush=True)
os.wait()
"""


def test_a_forked_child_does_not_hold_the_store_of_a_parent_that_was_killed(tmp_path: Path) -> None:
    with other_process(tmp_path, FORK) as parent, penstock.open(tmp_path) as store:
        assert not owns(store)
        leave_by_kill(parent)
        store.queue().put(b"b")
        assert owns(store)
        assert parent.stdin is not None
        parent.stdin.close()  # the child ends


def test_a_fork_after_closing_touches_nothing_that_was_opened_since(tmp_path: Path) -> None:
    stores = [penstock.open(tmp_path), penstock.open(tmp_path)]
    stores[1].queue().put(b"a")
    for store in stores:
        store.close()
    pipes = [os.pipe() for _ in range(8)]  # these reuse the numbers of closed descriptors
    child = os.fork()
    if child == 0:
        for _, writing in pipes:
            os.write(writing, b".")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    for reading, writing in pipes:
        os.close(writing)
        assert os.read(reading, 2) == b"."
        os.close(reading)


# Who may connect


def test_what_only_those_who_share_may_ask_is_not_answered_over_tcp(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store, penstock.open(tmp_path) as guest:
        assert guest.backend.stored("default") == store.backend.stored("default")  # type: ignore[attr-defined]
        server = serve_in_thread(store)
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
        connection.request("GET", "/-/share/stored?queue=default")
        assert connection.getresponse().status == 404
        connection.close()
        server.stop()


def test_a_target_that_is_no_path_is_refused(tmp_path: Path) -> None:
    with penstock.open(tmp_path), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(tmp_path / ".penstock" / "share" / "socket"))
        connection.sendall(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


def as_nobody(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What another user's Python does; it gets our modules from us, as it may not be allowed to read them."""
    nobody = pwd.getpwnam("nobody").pw_uid
    become = f"import os, penstock, penstock.sharing.backend, penstock.stores.journal.store; os.setuid({nobody})\n"
    command = [sys.executable, "-c", become + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@as_root
def test_another_users_process_cannot_connect(tmp_path: Path) -> None:
    path = Path("/tmp") / f"penstock-test-{os.getpid()}"
    path.mkdir(mode=0o777)
    path.chmod(0o777)
    try:
        with penstock.open(path):
            for each in [path, *path.rglob("*")]:
                if each.name not in ("share", "socket"):
                    each.chmod(0o777 if each.is_dir() else 0o666)
            told = as_nobody("penstock.open(os.sys.argv[1])", str(path))
            assert "StoreLocked" in told.stderr
            assert "if it is another user's, work as that user" in told.stderr
            (path / ".penstock" / "share").chmod(0o777)  # as if the folder did not keep them out
            (path / ".penstock" / "share" / "socket").chmod(0o777)
            connecting = (
                "import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect(os.sys.argv[1])\n"
                "try:\n  s.sendall(b'GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')\n  print(s.recv(1))\n"
                "except ConnectionError:\n  print(b'')"
            )
            told = as_nobody(connecting, str(path / ".penstock" / "share" / "socket"))
            assert told.stdout == "b''\n", told.stderr
    finally:
        subprocess.run(["rm", "-r", str(path)], check=True)


LISTEN = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
print("open", flush=True)
sys.stdin.read()
"""


@as_root
def test_a_guest_does_not_talk_to_another_users_process() -> None:
    share = Path("/tmp") / f"penstock-test-share-{os.getpid()}"
    share.mkdir()
    share.chmod(0o777)
    command = [sys.executable, "-c", LISTEN, str(share / "socket"), str(pwd.getpwnam("nobody").pw_uid)]
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"open\n"
            with (
                closing(RemoteBackend(f"{UNIX}{share}")) as backend,
                pytest.raises(penstock.StoreUnreachable, match="it belongs to user"),
            ):
                backend.connect()
            process.communicate()
    finally:
        subprocess.run(["rm", "-r", str(share)], check=True)


@as_root
def test_a_folder_that_cannot_be_written_says_what_to_do() -> None:
    path = Path("/tmp") / f"penstock-test-read-only-{os.getpid()}"
    try:
        penstock.open(path).close()
        path.chmod(0o755)
        told = as_nobody("penstock.open(os.sys.argv[1])", str(path))
        assert "StoreUnavailable" in told.stderr
        assert "permission denied: ask the owner of the file for access" in told.stderr
    finally:
        subprocess.run(["rm", "-r", str(path)], check=True)


# Servers


def fetched(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        return str(answer.read().decode())


def test_a_server_on_a_folder_that_a_program_owns_asks_the_owner(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as store, ServerChild(tmp_path / "store") as server:
        queue = store.create("jobs", keep_done=60)
        with penstock.open(server.url) as remote:
            served = remote.queue("jobs")
            ids = served.put_many([b"%d" % number for number in range(1_500)])
            assert [message.id for message in served.messages()] == ids
            assert [message.id for message in served.peek(1_200)] == ids[:1_200]
            [held] = served.claim(lease=60)
            assert queue.counts()["in_flight"] == 1
            held.fail(reason="no")
            assert [attempt.outcome for attempt in served.attempts(held.id)] == ["failed"]
            with ThreadPoolExecutor() as pool:
                assert served.purge() == 1_500
                waiting = pool.submit(served.pop, wait=60)
                queue.put(b"now")
                popped = waiting.result()
            assert popped is not None
            assert popped.payload == b"now"
            backend = RemoteBackend(server.url)
            made, following = backend.run(AllAttempts("jobs"))
            assert ([id_ for id_, _ in made], following) == ([popped.id], None)
            assert backend.run(Parts("jobs")) == [popped.id]
            backend.close()
            assert fetched(f"{server.url}/-/readyz")
            metrics = fetched(f"{server.url}/-/metrics")
            assert 'penstock_queue_messages{queue="jobs",state="done"} 1' in metrics
            assert "penstock_store_up 1" in metrics
        assert server.stop() == 0


def test_such_a_server_asks_for_no_more_than_it_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def ask(self: GuestBackend, call: Call[Any], tries: int = 0) -> Any:
        if "/figures" not in call.start:  # which the server asks for on its own, now and then
            asked.append(call.start)
        return await as_ever(self, call, tries)

    as_ever = GuestBackend.ask
    with penstock.open(tmp_path) as owner, penstock.open(tmp_path) as guest:
        ids = owner.create("jobs").put_many([bytes(1 << 20)] * 12)
        server = serve_in_thread(guest)
        url = f"{server.url}/-/api/queues/jobs"
        monkeypatch.setattr(GuestBackend, "ask", ask)
        listed = json.loads(fetched(f"{url}/messages?limit=2&fields=id,state"))
        assert listed == {"messages": [{"id": each, "state": "available"} for each in ids[:2]]}
        listed = json.loads(fetched(f"{url}/messages?limit=1&fields=state&after={ids[3]}"))
        assert listed == {"messages": [{"state": "available"}]}
        assert len(asked) == 2
        assert [each["id"] for each in json.loads(fetched(f"{url}/peek?n=3&skip=1"))["messages"]] == ids[1:4]
        assert len(asked) == 3
        assert len(json.loads(fetched(f"{url}/messages?limit=1000"))["messages"]) == 8  # MiB
        assert len(asked) == 4
        server.stop()


def test_coroutines_look_at_a_page_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []

    def peek(self: State, n: int) -> list[int]:
        looked.append(n)
        return as_ever(self, n)

    as_ever = State.peek
    monkeypatch.setattr(State, "peek", peek)

    async def first() -> str:
        async with await aio.open(str(tmp_path)) as store:
            await store.queue()
            async for message in (await store.queue()).peek(1_000_000):
                return message.id
        raise AssertionError

    with penstock.open(tmp_path) as store:
        put = store.queue().put(b"a")
    assert asyncio.run(first()) == put
    assert max(looked) <= PAGE


def test_packing_keeps_no_stream_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def shrink(self: JournalBackend, queue: str) -> int:
        return go_on.wait(60) - 1

    monkeypatch.setattr(JournalBackend, "shrink", shrink)

    with penstock.open(tmp_path) as owner, penstock.open(tmp_path) as guest, ThreadPoolExecutor(8) as pool:
        assert owns(owner)
        packing = [pool.submit(guest.run, Pack("default")) for _ in range(8)]
        try:
            assert guest.run(AllStreams()) == []
            assert not any(each.done() for each in packing)
        finally:
            go_on.set()
        assert [each.result() for each in packing] == [0] * 8


# The command line


def cli(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", "--store", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_commands_work_on_a_store_that_a_program_has_open(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        assert cli(tmp_path, "create", "jobs").returncode == 0
        assert cli(tmp_path, "put", "jobs", "a").returncode == 0
        assert [message.payload for message in store.queue("jobs").claim()] == [b"a"]
        assert cli(tmp_path, "pop", "jobs").returncode == 3
        packed = cli(tmp_path, "pack", "jobs")
        assert packed.returncode == 0, packed.stderr
