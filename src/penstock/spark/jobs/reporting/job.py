"""The run of the job report: a summary table, report.html and report.json."""

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import penstock
from penstock.contract.kinds import kind_of
from penstock.contract.message import STATES
from penstock.contract.monitoring import TotalHistory
from penstock.contract.names import DEFAULT
from penstock.errors import NotSupported, PenstockError
from penstock.spark.jobs.archive_table import check_archive
from penstock.spark.jobs.reporting.numbers import Figures, Numbers, compute, gathered, parse_window, remembered
from penstock.spark.jobs.runs import Cell, Session, Summary, check_folder, check_store, own_session, run_id, table
from penstock.system.clock import SystemClock
from penstock.system.files import SystemDisk, replace_file

_COLUMNS = ("queue", *STATES, "wait_p50", "wait_p99", "process_p50", "process_p99")
_ROWS = 50  # queues in the table


def report(
    spark: Session,
    store: str | os.PathLike[str],
    out: str | os.PathLike[str],
    archive: str | os.PathLike[str] | None = None,
    window: str | None = None,
    id: str | None = None,  # noqa: A002 - the word of every job
    dry_run: bool = False,
) -> Summary:
    """Report on the messages of a store and an archive, in out/report.html and out/report.json.

    `window` is the length of a time window, as in "1 hour"; the default gives up to 60. Times in the summary
    are in seconds. A dry run computes the summary and writes nothing.
    """
    url, folder = os.fspath(store), Path(out)
    path = None if archive is None else os.fspath(archive)
    length = None if window is None else parse_window(window)
    check_store(url)
    check_folder("out", folder)
    if path is not None:
        check_archive(path)
    if id is not None and (before := _written(folder, run_id(id, "report"))):
        return before
    try:  # after the checks, as matplotlib takes half a second, and before Spark starts
        from penstock.spark.jobs.reporting.page import render
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("matplotlib"):
            raise
        raise NotSupported("reports are drawn by matplotlib: pip install 'penstock[report]'") from error
    session = own_session(spark)
    settings = table(session, url, "queues", "name string, keep_done double").collect()
    with gathered(session, url, path) as (facts, attempts):
        numbers = compute(facts, attempts, [row["name"] for row in settings], length)
    # The queue `default` always exists, and is often unused.
    used = {each.queue for each in numbers.queues if each.put or each.queue != DEFAULT}
    not_kept = sorted(row["name"] for row in settings if row["keep_done"] == 0 and row["name"] in used)
    shown = re.sub(r"(?<=//)[^/@]*@", "", url)  # no password
    streams = kind_of(url).tables(url).streams(url, penstock.open)
    document: dict[str, Any] = {
        "store": shown,
        "archive": path,
        "made_at": SystemClock().now(),
        **numbers.as_json(),
    }
    document["streams"] = [each._asdict() for each in streams]
    run = run_id(id, "report", **document | {"made_at": 0})
    notes = _notes(not_kept)
    rows = [_row(each) for each in numbers.queues[:_ROWS]]
    document["remembered"] = history = last_day(url)
    if not dry_run:
        day = None if history is None else remembered(history)
        html = render(numbers, shown, path, document["made_at"], notes, streams, day)
        _write(folder, html, {"id": run, **document, "notes": notes, "rows": rows})
    return Summary("report", run, _COLUMNS, rows, dry_run, notes=_told(numbers, notes, folder, dry_run))


def last_day(url: str) -> dict[str, Any] | None:
    """The last day as a server remembers it; None: there is no server, or it is of an earlier version."""
    history: dict[str, Any] | None = None
    if kind_of(url).remote:
        with penstock.open(url) as store, suppress(PenstockError):
            history = store.run(TotalHistory("day"))
    return history


def _row(each: Figures) -> list[Cell]:
    times = [time for part in (each.waiting, each.processing) for time in (part.p50, part.p99)]
    return [each.queue, *(each.states[state] for state in STATES), *times]


def _notes(not_kept: list[str]) -> list[str]:
    """Caveats about the numbers."""
    if not not_kept:
        return []
    some = ", ".join(not_kept[:3]) + (f" and {len(not_kept) - 3:,} more" if len(not_kept) > 3 else "")
    return [
        f"Queues that do not keep done messages (keep_done=0) show only what is still there: {some}. Keep them "
        "for some time, and archive them, to have them counted."
    ]


def _told(numbers: Numbers, notes: list[str], folder: Path, dry_run: bool) -> list[str]:
    told = ["waiting and processing times are in seconds"] if numbers.windows else ["there are no messages"]
    if len(numbers.queues) > _ROWS:
        told.append(f"the {_ROWS} queues with the most messages of {len(numbers.queues):,}")
    return [*told, *notes, *([] if dry_run else [f"{folder / 'report.html'} shows more"])]


def _write(folder: Path, html: str, document: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(SystemDisk(), folder / "report.html", html.encode())
    replace_file(SystemDisk(), folder / "report.json", json.dumps(document, ensure_ascii=False).encode())


def _written(folder: Path, run: str) -> Summary | None:
    """The summary in report.json, if this run wrote it."""
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        document = json.loads((folder / "report.json").read_text())
        if document["id"] == run:
            return Summary("report", run, _COLUMNS, document["rows"], repeated=True, notes=document["notes"])
    return None
