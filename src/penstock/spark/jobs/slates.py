"""pack and expire of slate stores: their owner lets time take what it may, and SlateDB tidies its files."""

import os
from collections.abc import Sequence
from contextlib import closing

from penstock.contract import names
from penstock.contract.kinds import check_exists
from penstock.contract.operations import Lookup
from penstock.contract.urls import absolute
from penstock.sharing.backend import open_shared
from penstock.spark.jobs.runs import run_id
from penstock.spark.jobs.summary import Cell, Summary
from penstock.stores.owner_operations import SlateOwner
from penstock.stores.slate import recovery, snapshot
from penstock.stores.slate.place import parse
from penstock.system.clock import SystemClock

PACKED = ("queue", "before", "after", "freed")
EXPIRED = ("queue", "expired", "done", "bytes", "freed")


def pack(store: str, queues: Sequence[str], given: str | None, dry_run: bool) -> Summary:
    """Have SlateDB's files tidied: what is there of each queue is not known."""
    url = _there(store)
    run = run_id(given, "pack", store=url, queues=sorted(queues))
    with closing(open_shared(url)) as backend:
        for queue in queues:
            backend.run(Lookup(names.checked(queue)))
        if not dry_run:
            SlateOwner(backend.run).tidy()
    note = "SlateDB compacts by itself, all queues together: files that nobody needs were looked for"
    return Summary("pack", run, PACKED, [], dry_run, notes=[note])


def expire(store: str, given: str | None, dry_run: bool) -> Summary:
    """Take out what time has let go."""
    url = _there(store)
    run = run_id(given, "expire", store=url)
    rows, looked_at = _let_go(url)
    if not dry_run:
        with closing(open_shared(url)) as backend:
            SlateOwner(backend.run).tidy()
    notes = [f"{looked_at:,} queues were looked at, {len(rows):,} of them had something to let go"]
    return Summary("expire", run, EXPIRED, rows, dry_run, notes=notes)


def _let_go(url: str) -> tuple[list[list[Cell]], int]:
    """What each queue still has in the database, and time has let go."""
    moment, log = snapshot.take(url, os.getpid(), objects=False), parse(url).log
    try:
        _, view = snapshot.opened_for(moment, log)
        with closing(view):
            found = recovery.load(view, log)
            recovery.measure(found, view, log)
    finally:
        snapshot.drop(moment)
    now = max(SystemClock().now(), found.at)
    rows: list[list[Cell]] = []
    for name, loaded in sorted(found.queues.items()):
        ledger = loaded.ledger
        places = {seq: ledger.state.locate(seq) for seq in ledger.state.listed(None, 0, ledger.state.next_seq)}
        sizes = {seq: page.size[at] for seq, (page, at) in places.items()}
        before, expired = ledger.state.counts()["done"], ledger.state.expired
        ledger.state.advance(now)
        size = sum(sizes.get(seq, 0) for seq in ledger.state.gone)
        if ledger.state.gone:
            gone = ledger.state.expired - expired
            rows.append([name, gone, max(0, len(ledger.state.gone) - gone) if before else 0, size, None])
    return rows, len(found.queues)


def _there(store: str) -> str:
    check_exists(store)
    return absolute(store)
