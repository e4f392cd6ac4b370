"""A producer and a worker, two processes that share a folder.

    python examples/producer_and_worker.py produce 20      as often as you like, in as many terminals
    python examples/producer_and_worker.py work            beside it; Ctrl-C or SIGTERM ends it cleanly
    python examples/producer_and_worker.py drain           the same, but ends when nothing is left

PENSTOCK_STORE is the store, ./penstock-data without it. On several machines run `penstock serve` and give all of
them its address: PENSTOCK_STORE=http://queue.example:8390.
"""

import json
import os
import sys
from contextlib import suppress

import penstock

STORE = os.environ.get("PENSTOCK_STORE", "penstock-data")


def main(what: str, count: int = 10) -> None:
    """Produce so many messages, or work them off."""
    with penstock.open(STORE) as store:
        with suppress(penstock.QueueExists):
            store.create("mails", max_attempts=3, keep_done=3600)  # done ones stay listed for an hour
        mails = store.queue("mails")
        if what == "produce":
            produce(mails, count)
        else:
            done = penstock.work(mails, send, concurrency=4, backoff=0.1, until_empty=what == "drain")
            print(done)


def produce(mails: penstock.Queue, count: int) -> None:
    """Put messages: when this returns they are on stable storage."""
    drafts = [
        penstock.Draft(json.dumps({"to": f"user{number}@shop.example"}), headers={"kind": "welcome"})
        for number in range(count)
    ]
    ids = mails.put_many(drafts)  # all or none
    print(f"put {len(ids)} messages, {mails.count()} wait")


def send(message: penstock.Message) -> None:
    """The work. Returning acknowledges; raising fails, and the message is tried again after the backoff."""
    mail = json.loads(message.payload)
    if message.attempts == 1 and mail["to"].startswith("user7@"):
        raise ConnectionError("the mail server did not answer")
    print(f"sent to {mail['to']}, attempt {message.attempts}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] not in (["produce"], ["work"], ["drain"]):
        sys.exit(__doc__)
    main(sys.argv[1], *map(int, sys.argv[2:3]))
