"""From a folder of files to a queue: each file that other programs drop there becomes a message.

    python examples/from_files.py INBOX STORE QUEUE        once; by cron or a systemd path unit for ever

A file is put, then moved to INBOX/taken. A crash in between leaves it in INBOX, and the next run puts it again
under the same key: within five minutes that changes nothing, later the message is there twice, with the same
header `file`. Names that begin with a dot or end with `.part` are still being written.
"""

import sys
from contextlib import suppress
from pathlib import Path

import penstock


def main(inbox: str, store: str, name: str) -> None:
    """Take all files, oldest first, a hundred at a time."""
    taken = Path(inbox, "taken")
    taken.mkdir(exist_ok=True)
    files = [each for each in Path(inbox).iterdir() if each.is_file() and not is_unfinished(each.name)]
    files.sort(key=lambda file: (file.stat().st_mtime_ns, file.name))
    with penstock.open(store) as opened:
        with suppress(penstock.QueueExists):
            opened.create(name)
        queue = opened.queue(name)
        for start in range(0, len(files), 100):
            batch = files[start : start + 100]
            queue.put_many([draft(file) for file in batch])  # one durable step
            for file in batch:
                file.rename(taken / file.name)
        print(f"took {len(files)} files; {queue.count()} messages wait in {name}")


def is_unfinished(name: str) -> bool:
    """Whether a file is still being written, by its name."""
    return name.startswith(".") or name.endswith(".part")


def draft(file: Path) -> penstock.Draft:
    """A file as a message: its bytes, its name, and its time."""
    changed = file.stat().st_mtime_ns
    key = f"{file.name} {changed}"
    return penstock.Draft(file.read_bytes(), headers={"file": file.name}, key=key, created_at=changed // 1_000_000)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
