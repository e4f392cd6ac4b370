"""penstock.open with every kind of URL, and what importing Penstock loads."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_origin

import pytest

import penstock


@pytest.mark.parametrize(
    "url", ["data", "./memory:data", "C:\\queues", Path("data"), "journal:data", "a/new/data"]
)
def test_a_path_is_a_journal_store_that_is_made_if_it_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str | Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with penstock.open(url) as store:
        store.queue().put(b"kept")
    with penstock.open(url) as store:
        assert [message.payload for message in store.queue().messages()] == [b"kept"]
    folder = tmp_path / str(url).removeprefix("journal:")
    assert (folder / "default").exists()


def test_a_journal_store_needs_a_folder_and_a_known_dialect(tmp_path: Path) -> None:
    with pytest.raises(penstock.InvalidArgument, match="give journal:DIR"):
        penstock.open("journal:")
    with pytest.raises(penstock.InvalidArgument, match=r"dialect='3\.x' is none of doc, 2\.x"):
        penstock.open(tmp_path, dialect="3.x")  # type: ignore[arg-type]


def test_the_url_of_a_journal_store_may_say_its_dialect_and_nothing_else(tmp_path: Path) -> None:
    for wrong, why in (
        ("?dialect=3.x", r"dialect='3\.x' is none of doc, 2\.x"),
        ("?dialect=", "dialect='' is none of"),
        ("?dialct=2.x", r"there is no option 'dialct', only dialect, as in journal:DIR\?dialect=2\.x"),
    ):
        with pytest.raises(penstock.InvalidArgument, match=why):
            penstock.open(f"journal:{tmp_path}/jobs{wrong}")
    with pytest.raises(penstock.InvalidArgument, match=r"its dialect is 'doc', and dialect='2\.x': leave one out"):
        penstock.open(f"journal:{tmp_path}/jobs?dialect=doc", dialect="2.x")
    assert not list(tmp_path.iterdir())


def test_a_question_mark_in_a_plain_path_is_part_of_the_name(tmp_path: Path) -> None:
    penstock.open(tmp_path / "what?now=1").close()
    penstock.open(f"journal:{tmp_path}/why?").close()
    assert {path.name for path in tmp_path.iterdir()} == {"what?now=1", "why?"}


def test_an_unknown_kind_of_store_is_named() -> None:
    with pytest.raises(penstock.NotSupported, match="there is no kind of store 'sqs'"):
        penstock.open("sqs:jobs")


def test_sync_is_one_of_three_words() -> None:
    for sync in ("always", "interval", "never"):
        penstock.open("memory:", sync=sync).close()
    with pytest.raises(penstock.InvalidArgument, match="sync='sometimes' is none of always, interval, never"):
        penstock.open("memory:", sync="sometimes")  # type: ignore[arg-type]


def test_every_memory_store_is_a_new_one_unless_it_has_a_name() -> None:
    with penstock.open("memory:") as one, penstock.open("memory:") as other:
        one.create("jobs")
        assert len(other.queues()) == 1
    with penstock.open("memory:shared") as one, penstock.open("memory:shared") as same:
        one.create("jobs").put(b"x")
        assert len(same.queue("jobs")) == 1
        with penstock.open("memory:another") as other:
            assert len(other.queues()) == 1


def test_a_named_memory_store_lives_until_the_last_one_closes_it() -> None:
    first = penstock.open("memory:shared")
    first.create("jobs")
    second = penstock.open("memory:shared")
    first.close()
    first.close()
    with pytest.raises(penstock.StoreClosed):
        first.queues()
    assert len(second.queues()) == 2
    second.close()
    with penstock.open("memory:shared") as anew:
        assert len(anew.queues()) == 1


def test_a_named_memory_store_has_one_clock() -> None:
    clock = penstock.SimulatedClock()
    with penstock.open("memory:shared", clock=clock), penstock.open("memory:shared", clock=clock):
        penstock.open("memory:shared").close()
        with pytest.raises(penstock.InvalidArgument, match="is open with another clock"):
            penstock.open("memory:shared", clock=penstock.SimulatedClock())


def test_importing_penstock_loads_nothing_heavy() -> None:
    code = "import sys, penstock; penstock.open('memory:').queue().put(b''); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = {"click", "rich", "numpy", "pyarrow", "pyspark", "asyncio", "ssl", "http", "socket"}
    assert heavy.isdisjoint(name.partition(".")[0] for name in loaded)


def test_every_public_name_is_there_and_documented() -> None:
    reference = (Path(__file__).parents[2] / "docs" / "reference" / "python.md").read_text()
    for name in penstock.__all__:
        public = getattr(penstock, name)
        if get_origin(public) is Literal:  # has no docstring of its own
            assert f"::: penstock.{name}\n" in reference
        else:
            assert public.__doc__


@pytest.mark.parametrize(
    ("name", "member"),
    [
        ("text.format", "parse"),
        ("journal.doctor", "examine"),
        ("slate.doctor", "examine"),
        ("slate.backups", "backup"),
        ("slate.dumping", "dump"),
    ],
)
def test_modules_are_found_where_they_were(name: str, member: str) -> None:
    assert hasattr(importlib.import_module(f"penstock.{name}"), member)
