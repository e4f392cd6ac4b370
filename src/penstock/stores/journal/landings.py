"""Which batch of each streaming sink has landed last, so that one that Spark writes again lands once.

.penstock/sinks/SINK    a line of JSON (the sink, the query, the batch) and a line with its crc32
"""

import hashlib
import json
import os

from penstock.contract import names
from penstock.contract.landing import Landing, is_repeated
from penstock.errors import StoreCorrupt
from penstock.stores.journal.catalog import Catalog
from penstock.stores.journal.checksum import crc32
from penstock.system.files import Disk, replace_file

SINKS = "sinks"
_LONGEST_FILE = 200


def has_landed(disk: Disk, catalog: Catalog, landing: Landing) -> bool:
    """Whether a batch has landed before; StreamMismatch if it is of another query, whose numbers start anew."""
    path = _path(catalog, landing.sink)
    if not disk.exists(path):
        return False
    with disk.open(path) as file:
        line, _, check = file.read(0, file.size()).partition(b"\n")
    if check != _check(line):
        raise StoreCorrupt(f"{path!r} is damaged: its checksum is wrong. Put back a copy of this file")
    return is_repeated(landing, Landing(*json.loads(line)))


def keep(disk: Disk, catalog: Catalog, landing: Landing) -> None:
    """A batch has landed."""
    path = _path(catalog, landing.sink)
    above = os.path.dirname(path)
    if not disk.exists(above):
        disk.mkdir(above)
        disk.sync_folder(catalog.path)
    line = json.dumps(list(landing)).encode()
    replace_file(disk, path, line + b"\n" + _check(line))
    disk.sync_folder(above)


def _check(line: bytes) -> bytes:
    return f"crc32 {crc32(line):08x}\n".encode()


def _path(catalog: Catalog, sink: str) -> str:
    file = names.file_name(sink)
    if len(file.encode()) > _LONGEST_FILE:  # no other name has a % that no two digits follow
        file = f"{file[:30]}%_{hashlib.sha256(sink.encode()).hexdigest()}"
    return os.path.join(catalog.path, SINKS, file)
