"""The benchmark harness: tiny cells run for real, and its arithmetic compared with numbers computed by hand."""

import functools
import json
import math
import random
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import benchmarks.__main__ as cli
from benchmarks import backlog, growth, journal, page, peers, text, workers
from benchmarks.harness import (
    RAW_APPEND,
    RAW_SEQUENTIAL,
    Cell,
    Results,
    Sample,
    ratios,
    schedule,
    spread,
    summarise,
    take,
)
from benchmarks.jobs import environment
from benchmarks.jobs.run import WARM_UP, Run
from benchmarks.jobs.systems import EMBEDDED, PEERS
from benchmarks.probes import Machine, Raw, append_rate, filesystem, machine, probe, sequential_rate
from benchmarks.report import headline, number, quantity, score, write_json

small_probe = functools.partial(probe, appends=2, mebibytes=1)
somewhere = Machine(cores=2, python="CPython 3.11", system="Linux", filesystem="ext4")


def cell(name: str = "put", unit: str = "ops/s", value: float = 100, **others: Any) -> Cell:
    """A cell that always measures the same."""
    others = {"group": "ledger", "better": "higher", "measure": lambda folder: value, **others}
    return Cell(name=name, unit=unit, **others)


def sample(cell: str, number: int, value: float, append: float = 1000, sequential: float = 1e6) -> Sample:
    """A sample whose probes differ by half to both sides of the given rates."""
    before, after = Raw(append * 0.5, sequential * 0.5), Raw(append * 1.5, sequential * 1.5)
    return Sample(cell, number, seconds=1, value=value, before=before, after=after)


def summary(cells: list[Cell], samples: list[Sample]) -> Results:
    return summarise(cells, samples, somewhere, rounds=3, seed=1)


# Cells


def test_a_cell_that_cannot_be_compared_is_refused_when_it_is_made() -> None:
    with pytest.raises(ValueError, match="'put': bytes/message cannot be compared with raw append"):
        cell(unit="bytes/message", against={RAW_APPEND: 1})
    with pytest.raises(ValueError, match="'put': bytes/message cannot be compared with raw sequential"):
        cell(unit="bytes/message", against={RAW_SEQUENTIAL: 1})
    with pytest.raises(ValueError, match="needs bytes_per_op"):
        cell(unit="ops/s", against={RAW_SEQUENTIAL: 1})
    with pytest.raises(ValueError, match="more than 0"):
        cell(target=0)


def test_a_selection_brings_the_cells_it_is_compared_with_and_theirs() -> None:
    cells = [
        cell("base"),
        cell("middle", against={"base": None}),
        cell("top", against={"middle": 0.5, RAW_APPEND: None}),
        cell("other", group="recovery"),
    ]
    assert [each.name for each in cli.select(cells)] == ["base", "middle", "top", "other"]
    assert [each.name for each in cli.select(cells, ["TOP"])] == ["base", "middle", "top"]
    assert [each.name for each in cli.select(cells, ["recov", "base"])] == ["base", "other"]
    assert cli.select(cells, ["nothing"]) == []


def test_a_comparison_with_a_cell_that_is_missing_or_has_another_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="'put' is compared with 'gone', which is no cell in ops/s"):
        cli.select([cell(against={"gone": 1})])
    with pytest.raises(ValueError, match="'put' is compared with 'open', which is no cell in ops/s"):
        cli.select([cell(against={"open": 1}), cell("open", unit="s")])
    with pytest.raises(ValueError, match="two cells have the same name"):
        cli.select([cell(), cell()])


# Visits


def test_every_round_visits_every_cell_once_in_an_order_of_its_own() -> None:
    cells = [cell(name) for name in "abcdefgh"]
    visits = schedule(cells, rounds=5, seed=7)
    assert [number for number, _ in visits] == [number for number in range(1, 6) for _ in cells]
    orders = ["".join(each.name for at, each in visits if at == number) for number in range(1, 6)]
    assert all(sorted(order) == list("abcdefgh") for order in orders)
    assert len(set(orders)) == 5
    assert visits == schedule(cells, rounds=5, seed=7)
    assert visits != schedule(cells, rounds=5, seed=8)


def test_a_cell_is_probed_right_before_and_after_in_the_place_where_it_runs(tmp_path: Path) -> None:
    events: list[str] = []
    folders: list[Path] = []

    def measure(folder: Path) -> float:
        assert list(folder.iterdir()) == []
        (folder / "data").write_bytes(b"left behind")
        folders.append(folder)
        events.append("measure")
        return 3

    def fake_probe(folder: Path) -> Raw:
        assert folder.is_relative_to(tmp_path)
        events.append("probe")
        return Raw(append=len(events), sequential=len(events) * 10)

    taken = [take(cell(measure=measure), number, tmp_path, fake_probe) for number in (1, 2)]
    assert events == ["probe", "measure", "probe"] * 2
    assert [(each.round, each.value, each.before, each.after) for each in taken] == [
        (1, 3, Raw(1, 10), Raw(3, 30)),
        (2, 3, Raw(4, 40), Raw(6, 60)),
    ]
    assert folders[0] != folders[1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_a_value_that_is_no_positive_number_is_a_failure(tmp_path: Path, value: float) -> None:
    taken = take(cell(value=value), 1, tmp_path, small_probe)
    assert taken.value is None
    assert taken.error == f"ValueError: measured {value} ops/s, which is no positive number"


def test_a_visit_that_raises_keeps_the_error_and_cleans_up(tmp_path: Path) -> None:
    def measure(folder: Path) -> float:
        (folder / "data").write_bytes(b"left behind")
        raise OSError("disk on fire")

    taken = take(cell(measure=measure), 4, tmp_path, small_probe)
    assert (taken.cell, taken.round, taken.value) == ("put", 4, None)
    assert taken.error == "OSError: disk on fire"
    assert "in measure" in (taken.traceback or "")
    assert list(tmp_path.iterdir()) == []


# Probes and the machine


def test_probes_measure_something_and_leave_nothing(tmp_path: Path) -> None:
    raw = small_probe(tmp_path)
    assert raw.append > 0
    assert raw.sequential > 0
    assert list(tmp_path.iterdir()) == []


def test_probes_write_what_they_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, synced = [0.0], []

    def sync(file: int) -> None:
        synced.append((tmp_path / "probe").stat().st_size)
        now[0] += 0.25

    monkeypatch.setattr("benchmarks.probes._datasync", sync)
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    assert append_rate(tmp_path, seconds=1, appends=100) == 4
    assert synced == [1024, 2048, 3072, 4096]
    assert append_rate(tmp_path, seconds=1, appends=2) == 4
    synced.clear()
    assert sequential_rate(tmp_path, mebibytes=3) == 4 * 2**20
    assert synced == [2**20, 2 * 2**20, 3 * 2**20]


def test_the_file_system_is_that_of_the_deepest_and_latest_mount() -> None:
    mounts = (
        "22 1 8:1 / / rw shared:1 - ext4 /dev/a rw\n"
        "30 22 0:5 / /srv rw - tmpfs tmpfs rw\n"
        "31 30 8:2 / /srv/my\\040disk rw - btrfs /dev/b rw\n"
        "32 30 8:3 / /srv/my\\040disk rw - xfs /dev/c rw\n"
    )
    assert filesystem(Path("/home/you"), mounts) == "ext4"
    assert filesystem(Path("/srv/x"), mounts) == "tmpfs"
    assert filesystem(Path("/srv/my disk/out"), mounts) == "xfs"
    assert filesystem(Path("/srvx"), mounts) == "ext4"
    assert filesystem(Path("/anywhere"), "") == "unknown"


def test_the_machine_is_described(tmp_path: Path) -> None:
    here = machine(tmp_path)
    assert here.cores >= 1
    assert here.python.count(".") >= 2


# Arithmetic; the mean of both probes is 1000 appends per second, or 1,000,000 bytes per second


@pytest.mark.parametrize(
    ("unit", "value", "against", "bytes_per_op", "ratio"),
    [
        ("ops/s", 900, RAW_APPEND, None, 0.9),
        ("s", 0.005, RAW_APPEND, None, 5),  # five appends would have fitted into that time
        ("MB/s", 0.25, RAW_SEQUENTIAL, None, 0.25),
        ("ops/s", 500, RAW_SEQUENTIAL, 1024, 0.512),
        ("s", 6, RAW_SEQUENTIAL, 2_000_000, 3),  # the disk alone would take two seconds
    ],
)
def test_a_value_is_divided_by_the_mean_of_its_own_probes(
    unit: str, value: float, against: str, bytes_per_op: float | None, ratio: float
) -> None:
    one = cell(unit=unit, against={against: None}, bytes_per_op=bytes_per_op)
    assert ratios(one, against, [sample("put", 1, value)]) == [pytest.approx(ratio)]
    # Twice as fast a disk in the second round leaves a rate half and a time twice the ratio.
    both = [sample("put", 1, value), sample("put", 2, value, append=2000, sequential=2e6)]
    change = 2 if unit == "s" else 0.5
    assert ratios(one, against, both) == [pytest.approx(ratio), pytest.approx(ratio * change)]


def test_cells_are_compared_within_a_round_and_the_median_counts() -> None:
    cells = [cell("small"), cell("large", against={"small": 0.5})]
    samples = [
        *(sample("small", number, value) for number, value in ((1, 100), (2, 10), (3, 400))),
        *(sample("large", number, value) for number, value in ((3, 300), (1, 60), (2, 9))),
    ]
    [comparison] = summary(cells, samples).cells[1].comparisons
    assert comparison.per_round == [0.75, 0.6, 0.9]
    assert comparison.median == 0.75  # not 60 / 100, which no round has seen
    assert comparison.reached is True


def test_a_round_in_which_either_side_failed_has_no_ratio() -> None:
    cells = [cell("small"), cell("large", against={"small": 0.5})]
    failed = Sample("small", 1, seconds=1, error="ValueError: no")
    samples = [failed, sample("large", 1, 5), sample("small", 2, 10), sample("large", 2, 2)]
    [comparison] = summary(cells, samples).cells[1].comparisons
    assert (comparison.per_round, comparison.reached) == ([0.2], False)


@pytest.mark.parametrize(
    ("better", "target", "reached"),
    [("higher", 100, True), ("higher", 101, False), ("lower", 100, True), ("lower", 99, False)],
)
def test_a_target_is_a_minimum_or_a_maximum_of_the_value_itself(better: str, target: float, reached: bool) -> None:
    one = cell(better=better, target=target)
    results = summary([one], [sample("put", number, value) for number, value in ((1, 90), (2, 100), (3, 500))])
    [comparison] = results.cells[0].comparisons
    assert (comparison.against, comparison.median, comparison.reached) == (None, 100, reached)
    assert results.cells[0].value == spread([90, 100, 500])
    assert headline(results) == f"{int(reached)} of 1 targets reached"


def test_a_target_without_a_result_is_not_reached() -> None:
    assert headline(summary([cell(target=1)], [])) == "0 of 1 targets reached"
    assert headline(summary([cell()], [])) == "no targets"


def test_a_score_of_one_is_the_target_and_more_is_better() -> None:
    assert score(5, 10, "higher") == 0.5
    assert score(5, 10, "lower") == 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.012345, "0.0123"),
        (0.9, "0.9"),
        (4.5678, "4.57"),
        (99.96, "100"),
        (789.4, "789"),
        (999.7, "1,000"),
        (12_345, "12,300"),
        (999_999, "1,000,000"),
        (4_567_000, "4.57M"),
        (1_234_000_000, "1.23G"),
    ],
)
def test_numbers_show_three_digits_that_matter(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0.0000421, "s", "42.1 µs"), (0.0421, "s", "42.1 ms"), (42.1, "s", "42.1 s"), (0.5, "MB/s", "0.5 MB/s")],
)
def test_short_times_are_shown_in_short_units(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


# The command


def write_a_megabyte(folder: Path) -> float:
    return (folder / "data").write_bytes(bytes(1_000_000)) / 1e6


def fail(folder: Path) -> float:
    raise RuntimeError("the store was closed")


CELLS = [
    cell("put, [small] $1$", value=200, against={RAW_APPEND: 1e-9}),
    cell("put, large", value=50, against={"put, [small] $1$": 0.5, RAW_SEQUENTIAL: None}, bytes_per_op=1024),
    cell("memory", unit="bytes/message", value=80, better="lower", target=100, group="size"),
    cell("rewrite", unit="MB/s", measure=write_a_megabyte, group="size"),
]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def run(monkeypatch: pytest.MonkeyPatch, out: Path, *arguments: str, cells: list[Cell] = CELLS) -> Result:
    monkeypatch.setattr(cli, "PARTS", {"first": (), "second": ()})
    monkeypatch.setattr(cli, "cells_of", lambda part: cells if part == "first" else [])
    monkeypatch.setattr(cli, "probe", small_probe)
    return CliRunner().invoke(cli.main, ["--rounds", "2", "--out", str(out), *arguments])


def results(out: Path) -> list[dict[str, Any]]:
    """The cells of a run."""
    cells: list[dict[str, Any]] = json.loads((out / "first.json").read_text())["cells"]
    return cells


def test_a_run_leaves_a_table_a_document_and_a_picture(monkeypatch: pytest.MonkeyPatch, out: Path) -> None:
    ran = run(monkeypatch, out, "--seed", "5")
    assert ran.exit_code == 0, ran.output
    assert ran.stderr == "first: 4 cells, 2 rounds, 10 minutes, --seed 5\n"
    lines = [" ".join(line.split()) for line in ran.stdout.splitlines()]
    assert "put, large 50 ops/s 50 .. 50 0.25x put, [small] $1$ ≥ 0.5x ✗ missed" in lines
    assert "memory 80 bytes/message 80 .. 80 80 bytes/message ≤ 100 bytes/message ✓ reached" in lines
    assert "rewrite 1 MB/s 1 .. 1" in lines
    assert lines.index("ledger") < lines.index("size")
    assert "2 of 3 targets reached" in lines
    assert "✗ missed: put, large: 0.25x put, [small] $1$, target ≥ 0.5x" in lines
    assert any(line.startswith("raw append ") and "raw sequential" in line for line in lines)
    assert any(line.endswith("2 rounds, seed 5") for line in lines)

    document = json.loads((out / "first.json").read_text())
    assert set(document) == {"machine", "date", "rounds", "seed", "raw_append", "raw_sequential", "cells"}
    assert (document["rounds"], document["seed"]) == (2, 5)
    assert set(document["machine"]) == {"cores", "python", "system", "filesystem"}
    assert document["raw_append"]["low"] <= document["raw_append"]["median"] <= document["raw_append"]["high"]
    large = document["cells"][1]
    assert (large["name"], large["group"], large["unit"], large["better"], large["bytes_per_op"]) == (
        "put, large",
        "ledger",
        "ops/s",
        "higher",
        1024,
    )
    assert large["value"] == {"median": 50, "low": 50, "high": 50}
    against_small, against_raw = large["comparisons"]
    assert against_small == {
        "against": "put, [small] $1$",
        "target": 0.5,
        "per_round": [0.25, 0.25],
        "median": 0.25,
        "reached": False,
    }
    first = large["samples"][0]
    assert (first["cell"], first["round"], first["value"], first["error"]) == ("put, large", 1, 50, None)
    limit = (first["before"]["sequential"] + first["after"]["sequential"]) / 2
    assert against_raw["per_round"][0] == pytest.approx(50 * 1024 / limit)
    assert (against_raw["target"], against_raw["reached"]) == (None, None)

    assert "<svg" in (out / "first.svg").read_text()
    assert list((out / "scratch").iterdir()) == []


def test_a_cell_that_raises_is_reported_beside_the_results_of_the_others(
    monkeypatch: pytest.MonkeyPatch, out: Path
) -> None:
    broken = cell("broken", measure=fail, target=1)
    dependent = cell("dependent", against={"broken": 0.5})
    ran = run(monkeypatch, out, cells=[*CELLS, broken, dependent])
    assert ran.exit_code == 1
    lines = [" ".join(line.split()) for line in ran.stdout.splitlines()]
    assert "broken failed no result ≥ 1 ops/s ✗" in lines
    assert "dependent 100 ops/s 100 .. 100 no result ≥ 0.5x ✗" in lines
    assert "✗ failed: broken, round 1, 2: RuntimeError: the store was closed" in lines
    assert "2 of 5 targets reached" in lines
    document = json.loads((out / "first.json").read_text())
    found = {each["name"]: each for each in document["cells"]}
    assert found["broken"]["value"] is None
    assert found["broken"]["samples"][1]["error"] == "RuntimeError: the store was closed"
    assert found["memory"]["value"]["median"] == 80
    assert (out / "first.svg").exists()


def test_a_part_whose_minutes_are_over_ends_after_its_first_round(
    monkeypatch: pytest.MonkeyPatch, out: Path
) -> None:
    assert run(monkeypatch, out, "--minutes", "0").exit_code == 0
    rounds = [sample["round"] for each in results(out) for sample in each["samples"]]
    assert rounds == [1] * len(CELLS)


def test_the_page_shows_each_cell_beside_its_best_peer_and_its_limit(
    monkeypatch: pytest.MonkeyPatch, out: Path
) -> None:
    cells = [
        cell("ours <1>", value=200, against={"slow": 1, "fast": 3, RAW_APPEND: None}),
        cell("slow", value=50, of="peer"),
        cell("fast", value=100, of="peer"),
        cell("latency", unit="s", value=0.002, better="lower", against={"their latency": 1}),
        cell("their latency", unit="s", value=0.005, better="lower", of="peer"),
    ]
    assert run(monkeypatch, out, cells=cells).exit_code == 0
    shown, latency = page.rows(json.loads((out / "first.json").read_text()))
    assert shown.texts[:4] == ("ours <1>", "200 ops/s", "fast: 100 ops/s", "2 x")
    assert (shown.limit, shown.targets) == (RAW_APPEND, "missed")
    assert latency.texts[:4] == ("latency", "2 ms", "their latency: 5 ms", "2.5 x")
    text = (out / "index.html").read_text()
    assert "<td>ours &lt;1&gt;</td><td>200 ops/s</td><td>fast: 100 ops/s</td><td>2 x</td>" in text
    assert text.count("<svg") == 1


def test_the_docs_get_the_tables_between_their_marks(monkeypatch: pytest.MonkeyPatch, out: Path) -> None:
    assert run(monkeypatch, out).exit_code == 0
    docs = out / "benchmarks.md"
    docs.write_text(f"before\n{page.BEGIN}\nan earlier run\n{page.END}\nafter\n")
    page.write_docs(out, ["first", "second"], docs)
    before, tables, after = re.split(f"{page.BEGIN}|{page.END}", docs.read_text())
    assert (before, after) == ("before\n", "\nafter\n")
    assert "| memory | 80 bytes/message |  |  |  |  |  | reached |" in tables
    assert "earlier" not in tables
    docs.write_text("no marks")
    with pytest.raises(SystemExit, match="put it"):
        page.write_docs(out, ["first"], docs)


def test_an_interrupted_run_reports_what_it_has(monkeypatch: pytest.MonkeyPatch, out: Path) -> None:
    def interrupt(folder: Path) -> float:
        raise KeyboardInterrupt

    ran = run(monkeypatch, out, cells=[cell("never", measure=interrupt, against={RAW_APPEND: 1})])
    assert ran.exit_code == 0, ran.output
    assert "interrupted" in ran.stderr
    assert "not visited" in ran.stdout
    assert json.loads((out / "first.json").read_text())["cells"][0]["samples"] == []
    assert list((out / "scratch").iterdir()) == []


def test_only_narrows_a_run_and_list_measures_nothing(monkeypatch: pytest.MonkeyPatch, out: Path) -> None:
    ran = run(monkeypatch, out, "--list", "--only", "large")
    assert ran.stdout == "first: ledger: put, [small] $1$ (ops/s)\nfirst: ledger: put, large (ops/s)\n"
    assert not out.exists()
    ran = run(monkeypatch, out, "--only", "memory", "--only", "rewrite")
    assert ran.exit_code == 0, ran.output
    assert [each["name"] for each in json.loads((out / "first.json").read_text())["cells"]] == [
        "memory",
        "rewrite",
    ]


def test_only_without_a_match_says_how_to_see_the_cells(monkeypatch: pytest.MonkeyPatch, out: Path) -> None:
    ran = run(monkeypatch, out, "--only", "teleport")
    assert ran.exit_code == 2
    assert "no cell has teleport in group or name; --list shows them all" in ran.stderr


def test_the_help_shows_examples() -> None:
    ran = CliRunner().invoke(cli.main, ["--help"])
    assert ran.exit_code == 0
    assert "  python -m benchmarks rules journal --rounds 3 " in ran.stdout


def test_every_cell_that_make_bench_runs_is_declared_well() -> None:
    parts = [cli.select(cli.cells_of(part)) for part in cli.PARTS]
    names = [cell.name for cells in parts for cell in cells]
    assert len(names) == len(set(names)) > 0
    assert all(parts)


# Peers, and the cells of the journal store


@pytest.fixture(params=peers.EVERY)
def make(request: pytest.FixtureRequest) -> Callable[[Path], peers.Peer]:
    return peers.EVERY[request.param]


def test_a_peer_keeps_what_was_put_and_gives_each_message_once(make: journal.Make, tmp_path: Path) -> None:
    payloads = journal.random_payloads(3)
    with closing(make(tmp_path)) as queue:
        for payload in payloads:
            queue.put(payload)
        assert queue.consume() == payloads[0]
    with closing(make(tmp_path)) as queue:
        assert [queue.consume() for _ in range(3)] == [*payloads[1:], None]
    with closing(make(tmp_path)) as queue:
        assert queue.consume() is None


def test_a_peer_serves_threads(make: journal.Make, tmp_path: Path) -> None:
    payloads = journal.random_payloads(20)

    def put(some: list[bytes]) -> None:
        for payload in some:
            queue.put(payload)
        queue.leave()

    with closing(make(tmp_path)) as queue:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(put, [payloads[at : at + 5] for at in range(0, 20, 5)]))
        assert sorted(queue.consume() or b"" for _ in payloads) == sorted(payloads)


SETTINGS: dict[str, Callable[[Any], Any]] = {  # how each peer asks SQLite, over the connection that it writes with
    "persist-queue": lambda peer: peer.queue._putter.execute,
    "litequeue": lambda peer: peer.queue.conn.execute,
    "huey": lambda peer: peer.storage.conn.execute,
    "diskcache": lambda peer: peer.cache._sql,
}


@pytest.mark.parametrize("name", peers.EVERY)
def test_a_peer_syncs_every_commit(name: str, tmp_path: Path) -> None:
    with closing(peers.EVERY[name](tmp_path)) as peer:
        execute = SETTINGS[name](peer)
        assert execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert execute("PRAGMA synchronous").fetchone()[0] == 2  # FULL


def test_payloads_are_random_text_of_the_size_asked_for() -> None:
    payloads = journal.random_payloads(50, 100)
    assert {len(payload) for payload in payloads} == {100}
    assert len(set(payloads)) == 50
    assert b"".join(payloads).isascii()


def test_a_rate_counts_operations_until_the_time_is_over_or_most_are_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]

    def step() -> None:
        now[0] += 0.25

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr(journal, "SECONDS", 1)
    assert journal.rate(step) == 4
    assert journal.rate(step, operations=10) == 40
    assert journal.rate(step, most=2) == 4
    assert now[0] == 2.5


def test_an_error_in_a_thread_is_the_measurement_s(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []

    def step(dice: random.Random) -> None:
        raise OSError("disk on fire")

    monkeypatch.setattr(journal, "THREADS", 3)
    with pytest.raises(OSError, match="disk on fire"):
        journal._rate_of_threads(step, lambda: left.append(1))
    assert left == [1, 1, 1]


@pytest.mark.parametrize("name", [cell.name for cell in (*journal.CELLS, *backlog.CELLS, *text.CELLS)])
def test_a_cell_of_the_journal_measures(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"SECONDS": 0.01, "PREFILLED": 5, "BATCH": 10, "BATCHES": 2, "THREADS": 4, "QUEUES": 3}
    for constant, value in small.items():
        monkeypatch.setattr(journal, constant, value)
    for constant, value in {"PREFILLED": 5, "BATCH": 10, "SIZE": 2_000_000, "BY_HAND": 9, "SHELLS": 2}.items():
        monkeypatch.setattr(text, constant, value)
    for constant, value in {"MANY": 2_000, "TURNS": 2, "PER_TURN": 10}.items():
        monkeypatch.setattr(backlog, constant, value)
    folder = tmp_path / "visit" / "cell"
    folder.mkdir(parents=True)
    [one] = [cell for cell in (*journal.CELLS, *backlog.CELLS, *text.CELLS) if cell.name == name]
    assert math.isfinite(one.measure(folder))


@pytest.mark.parametrize("kind", ["put", "memory", "open"])
def test_a_cell_of_growth_measures(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for constant, value in {"MESSAGES": (20,), "QUEUES": (4,), "SPREAD": 20, "TURNS": 1, "PER_TURN": 5}.items():
        monkeypatch.setattr(growth, constant, value)
    (folder := tmp_path / "visit" / "cell").mkdir(parents=True)
    measured = {cell.name: cell.measure(folder) for cell in growth._cells() if cell.name.startswith(f"{kind}, ")}
    assert list(measured) == [f"{kind}, 20 messages", f"{kind}, 4 queues"]
    assert all(map(math.isfinite, measured.values()))


def test_a_store_that_lost_messages_is_no_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "visit" / "cell"
    folder.mkdir(parents=True)
    monkeypatch.setattr(backlog, "MANY", 1_000)
    reopen = backlog._reopen(1_000, "clean")
    assert reopen(folder) > 0
    monkeypatch.setattr(backlog, "MANY", 1_001)
    (again := tmp_path / "visit" / "again").mkdir()
    with pytest.raises(RuntimeError, match=r"of 1,001 messages there are {.*'available': 1000"):
        reopen(again)


# Workers


def test_a_run_puts_each_job_once_and_knows_when_it_was_put_and_started(tmp_path: Path) -> None:
    with Run(EMBEDDED, tmp_path, most=30) as run:
        one, many, paced = run.put("one", 10), run.put("many", 10), run.put("pace", 10, 500)
        assert [*one, *many, *paced] == list(range(WARM_UP, WARM_UP + 30))
        times = [run.finish(numbers) for numbers in (one, many, paced)]
    puts = [put for rows in times for put, _ in rows]
    assert puts == sorted(puts)
    assert all(started > put > 0 for rows in times for put, started in rows)
    assert (
        times[2][-1][0] - times[2][0][0] >= 9 * 2_000_000 * 0.9
    )  # nanoseconds; a put may be late, the next is not


def test_the_percentiles_of_a_round_are_of_the_same_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PACED", 20)
    monkeypatch.setattr(workers, "RATE", 1_000)
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    second.mkdir()
    latency = workers._Latency(EMBEDDED)
    assert 0 < latency.at(99)(first) >= latency.at(50)(second) > 0
    assert list(second.iterdir()) == []


def test_a_peer_that_pip_cannot_get_is_left_out_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = tmp_path / "bin" / "python"
    pip.parent.mkdir()
    pip.write_text("#!/bin/sh\ncase $* in *rq*) echo searching >&2; echo no rq anywhere >&2; exit 1;; esac\n")
    pip.chmod(0o755)
    monkeypatch.setattr(environment, "FOLDER", tmp_path)
    (requirements := tmp_path / "requirements.txt").write_text("# peers\nrq==2\nhuey[redis]>=3\n")

    cells, lines = workers.prepared(workers.CELLS, requirements)
    assert lines == [
        f"not compared with {peer.name}: no rq anywhere" for peer in PEERS if peer.library.app == "rq"
    ]
    assert {each.name for each in workers.CELLS} - {each.name for each in cells} == {
        each.name for each in workers.CELLS if each.name.startswith("RQ")
    }
    assert cli.select(cells) == cells  # none is compared with one that is gone
    assert (tmp_path / "installed.txt").read_text() == "huey[redis]>=3\n"


def test_the_table_of_workers_says_how_many_times_as_fast_and_what_survives(tmp_path: Path) -> None:
    peer = cell("RQ, Redis, jobs", value=50)
    ours = cell("Penstock, jobs", against={peer.name: 10})
    results = summary([ours, peer], [sample(ours.name, 1, 100), sample(peer.name, 1, 50)])
    write_json(results, tmp_path / "workers.json")
    assert workers.table(tmp_path / "workers.json").splitlines()[2:] == [
        "| Penstock | 100 |  |  |  |  | yes |",
        "| RQ, Redis | 50 | 2 x |  |  |  | no |",
    ]
