"""Files and folders, the only access to disk. It is thin, so that tests can replace it with a simulated disk.

Guarantees that every store relies on:

- Nothing is durable before it is synced: a file's bytes and size by `File.sync`, a name in a folder (created,
  renamed, linked, unlinked) by `Disk.sync_folder` of that folder. Neither does the other's work.
- Before it is synced, a write may be torn or overtake an earlier one if the machine stops.
- A sync that fails must not be repeated: the kernel has marked the unwritten pages clean, so the next one
  "succeeds" although they are lost. A caller that gets the error has to stop and verify what is on disk.
- A rename from one folder to another is durable once both are synced. Sync the target first: the other
  order has a moment in which the file is in neither.
"""

from penstock.system.files.door import (
    OWN_FOLDER,
    Data,
    Disk,
    File,
    Kind,
    Status,
    StrPath,
    is_full,
    is_refused,
    make_folder,
    refusal,
    refuse_links,
    remove_folder,
    replace_file,
    status_if_there,
    unavailable,
    write_hint,
)
from penstock.system.files.system import ReadingDisk, SystemDisk, SystemFile, appenders, identity

__all__ = [
    "OWN_FOLDER",
    "Data",
    "Disk",
    "File",
    "Kind",
    "ReadingDisk",
    "Status",
    "StrPath",
    "SystemDisk",
    "SystemFile",
    "appenders",
    "identity",
    "is_full",
    "is_refused",
    "make_folder",
    "refusal",
    "refuse_links",
    "remove_folder",
    "replace_file",
    "status_if_there",
    "unavailable",
    "write_hint",
]
