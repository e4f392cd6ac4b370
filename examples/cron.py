"""Cron: put the job of the day once, and work off what is there.

    */5 * * * *  cd /srv/shop && python examples/cron.py work       a worker that ends when nothing is left
    0 3 * * *    cd /srv/shop && python examples/cron.py put        on every host that has this crontab

However many hosts put the job, and however often a script repeats the line within five minutes, it is there
once: the key is the date, and a put under a key that is known answers with the first id. Keys are known for five
minutes; a handler should bear a job that is repeated later. Two workers at a time do no harm: a message belongs
to one of them. PENSTOCK_STORE is the store, for several hosts that of a server.
"""

import os
import sys
from contextlib import suppress
from datetime import UTC, datetime

import penstock

STORE = os.environ.get("PENSTOCK_STORE", "penstock-data")


def put(invoices: penstock.Queue) -> None:
    """The job of today, under its date."""
    today = datetime.now(UTC).date().isoformat()
    print(f"the job of {today} is message {invoices.put(today, key=f'invoices-{today}')}")


def work(invoices: penstock.Queue) -> None:
    """What is there, each with a lease that is extended for as long as it takes; then return."""
    worked = penstock.work(invoices, write_invoices, concurrency=2, until_empty=True)
    print(f"worked off {worked.acked} jobs, {worked.failed} failed")


def write_invoices(message: penstock.Message) -> None:
    """The work of a day. If it raises, the message is tried again, by this worker or by the next."""
    print(f"invoices of {message.payload.decode()}")


if __name__ == "__main__":
    with penstock.open(STORE) as store:
        with suppress(penstock.QueueExists):
            store.create("invoices", max_attempts=5)
        {"put": put, "work": work}[sys.argv[1]](store.queue("invoices"))
