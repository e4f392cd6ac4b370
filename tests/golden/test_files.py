"""The files of stores, byte by byte, and stores of earlier versions, which are found as they were left."""

import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import penstock
from tests.golden import folders
from tests.golden.conversations import find_open, leave_open
from tests.golden.expectations import compare
from tests.golden.normaliser import Normaliser
from tests.golden.processes import Server, Shell, Time
from tests.golden.scenario import RUNS, found, play, written
from tests.golden.talk import Talk

KINDS = ("journal", "text", "folder", "slate")
STORES = Path(__file__).parent / "stores"
KEPT = [path.relative_to(STORES) for path in sorted(STORES.rglob("*.tar.xz"))]


def named(kind: str, run: str) -> str:
    return f"{kind}-{run}" if run else kind


@pytest.mark.parametrize("what", RUNS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_told_and_writes_the_same(kind: str, what: str, tmp_path: Path) -> None:
    folder, (play, end) = tmp_path / "store", RUNS[what]
    with written(f"{kind}:{folder}") as run:
        play(run)
        seen = found(run.store)
        assert run.clock.now() == end
    folders.compare_lines(f"files/{named(kind, what)}.found.txt", seen, tmp_path)
    if what != "ordering":  # dead letters move in a thread's time: the commits that others share with them vary
        folders.compare_files(f"files/{named(kind, what)}.txt", tmp_path)


@pytest.mark.parametrize("kind", ["journal", "text"])
def test_packing_writes_the_same_bytes(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with written(f"{kind}:{folder}") as run:
        play(run)
    time = Time(tmp_path / "time")
    time.advance((RUNS[""][1] - int(time.path.read_text())) / 1000)
    shell = Shell(time, tmp_path)
    ran = shell.run("--store", f"{kind}:{folder}", "pack")
    shell.end()
    said = [*ran.out.split("\n"), ran.err]
    folders.compare_lines(f"files/{kind}.packed.txt", [*said, *folders.dump(folder)], tmp_path)


@pytest.mark.parametrize("kept", KEPT, ids=str)
def test_a_store_that_was_written_before_is_found_as_it_was_left(kept: Path, tmp_path: Path) -> None:
    name = kept.name.partition(".")[0]
    kind, _, what = name.partition("-")
    folders.unpack(STORES / kept, tmp_path / "store")
    if what == "streams":
        compare(f"stores/{kept.parent}/{name}.txt", _converse(find_open, f"{kind}:store", tmp_path))
        return
    clock = penstock.SimulatedClock(RUNS[what][1])
    with penstock.open(f"{kind}:{tmp_path / 'store'}", clock=clock) as store:
        seen = found(store)
    compare(f"stores/{kept.parent}/{name}.txt", "\n".join(seen).lstrip("\n") + "\n")


def keep(version: str) -> None:
    """Archive stores as this version writes them: closed, and as a crash leaves them."""
    folder = STORES / version
    folder.mkdir(parents=True)  # FileExistsError: what was kept stays
    for kind, what in product(KINDS, RUNS):
        store, name = folder / "store", named(kind, what)
        with written(f"{kind}:{store}") as run:
            RUNS[what][0](run)
            (folder / f"{name}.open.tar.xz").write_bytes(folders.pack(store))
        (folder / f"{name}.closed.tar.xz").write_bytes(folders.pack(store))
        shutil.rmtree(store)
    for kind in ("journal", "slate"):
        with TemporaryDirectory() as made:
            _converse(leave_open, f"{kind}:store", Path(made))
            (folder / f"{kind}-streams.closed.tar.xz").write_bytes(folders.pack(Path(made) / "store"))


def _converse(conversation: Callable[[Talk], None], store: str, folder: Path) -> str:
    time = Time(folder / "time")
    with Server(time, store) as server, Talk(server.port, time, Normaliser(), {}) as talk:
        conversation(talk)
    return talk.text()
