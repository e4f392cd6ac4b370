"""From Kestrel to Penstock: a folder that Kestrel left becomes a store, every queue and every message in it.

    python examples/from_kestrel.py SPOOL STORE

Stop Kestrel first: it knows nothing of locks. SPOOL, its `queuePath`, stays as it is. The copy STORE is opened,
and what Kestrel had handed out without a confirmation waits again. A journal that ends in the middle of an entry
keeps all before it; the rest goes to STORE/.penstock/quarantine. Penstock keeps Kestrel's format, so STORE can
go back, too: docs/journal.md. For another kind of store no copy is needed, as SPOOL is only read:
`penstock convert 'journal:SPOOL?dialect=2.x' slate:s3://bucket/queues`.
"""

import shutil
import sys

import penstock
from penstock.journal import doctor


def main(spool: str, store: str) -> None:
    """Copy, examine, open, count."""
    shutil.copytree(spool, store)  # fails if it is there: nothing is mixed up
    for finding in doctor.examine(store, dialect="2.x").findings:
        print(f"{finding.severity}: {finding.text}")
    # Kestrel 2.x: its opcode 8 has another meaning than in the document. Once packed, the journals are Penstock's.
    with penstock.open(store, dialect="2.x") as opened:
        for info in opened.queues():
            print(f"{info.name}: {info.counts['available']} messages wait")
            for message in opened.queue(info.name).peek(3):
                print(f"  {message.created_at} {message.payload[:60]!r}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
