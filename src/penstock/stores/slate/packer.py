"""Packing of slate stores: the owner expires messages, and SlateDB collects its unreferenced files."""

from collections.abc import Sequence
from contextlib import closing

from penstock.contract.operations import Lookup
from penstock.contract.tables import Expired, Packed, Tasks
from penstock.stores.owner_operations import SlateOwner
from penstock.stores.slate import recovery
from penstock.stores.slate.snapshot import read_only
from penstock.system.clock import SystemClock


class SlatePacker:
    """Frees space. How much each queue takes is unknown: SlateDB has all queues in the same files."""

    note = "SlateDB compacts by itself, all queues together: only unreferenced files were removed"

    def pack(self, url: str, queues: Sequence[str], dry_run: bool, tasks: Tasks) -> list[Packed]:
        store, _ = tasks.open(url)
        with closing(store):
            for queue in queues:
                store.run(Lookup(queue))
            if not dry_run:
                SlateOwner(store.run).tidy()
        return []

    def expire(self, url: str, dry_run: bool, tasks: Tasks) -> tuple[list[Expired], int]:
        with read_only(url) as (view, log):
            found = recovery.load(view, log)
            recovery.measure(found, view, log)
        now = max(SystemClock().now(), found.at)
        rows = []
        for name, loaded in sorted(found.queues.items()):
            state = loaded.ledger.state
            places = {seq: state.rows.locate(seq) for seq in state.listed(None, 0, state.next_seq)}
            sizes = {seq: page.size[at] for seq, (page, at) in places.items()}
            before, expired = state.counts()["done"], state.expired
            state.advance(now)
            if state.gone:
                gone = state.expired - expired
                done = max(0, len(state.gone) - gone) if before else 0
                rows.append(Expired(name, gone, done, sum(sizes.get(seq, 0) for seq in state.gone), None))
        if not dry_run:
            store, _ = tasks.open(url)
            with closing(store):
                SlateOwner(store.run).tidy()
        return rows, len(found.queues)
