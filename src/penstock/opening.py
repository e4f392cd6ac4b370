"""penstock.open: from a URL to a store."""

import os
from typing import TYPE_CHECKING

from penstock.contract.kinds import Options, Sync, kind_of
from penstock.contract.store import Store
from penstock.system.clock import Clock

if TYPE_CHECKING:
    from penstock.stores.journal.format import Dialect


def open(  # noqa: A001
    url: str | os.PathLike[str],
    *,
    sync: Sync = "always",
    clock: Clock | None = None,
    dialect: "Dialect" = "doc",
    timeout: float | None = None,
    peers: int = 0,
    token: str | None = None,
    ca: str | None = None,
    share: bool = True,
) -> Store:
    """Open a store.

    A store on disk is created if it does not exist. The URL says which kind of store it is:

    - a folder, or `journal:DIR`: a journal store; `journal:DIR?dialect=2.x`: with that dialect
    - `text:DIR`: text files that people read and edit; `NAME.tq`: one such file
    - `folder:DIR`: a file per message; many processes may open it at once
    - `slate:DIR`, `slate:s3://bucket/prefix`: SlateDB, on disk or in a bucket (AWS_ENDPOINT, AWS_ACCESS_KEY_ID and
      the like configure the bucket)
    - `memory:`: a new store in memory; `memory:NAME`: one that this process shares by name
    - `http://host:port`, `https://host:port`: the store of a server (`penstock serve`)

    Args:
        url: where the store is
        sync: when a change counts as stored: "always" before the call returns; "interval" and "never" trade safety
            for speed, where a store has a disk to sync
        clock: the store's clock; tests pass a `penstock.SimulatedClock` and move it
        dialect: journal stores: "2.x" writes journals that a real Kestrel 2.x can read; it may also be in the
            URL
        timeout: servers: seconds that an answer may take beyond a requested wait (60). Folders that another
            process owns: the same, and how long to look for an owner that does not answer (10). Slate stores:
            seconds that the disk or the bucket may take for a change (30)
        peers: folder stores: how many other processes claim from its queues. With peers, each process claims at
            random among the first messages, so that two processes seldom compete for one file
        token: servers: the secret that `penstock token create` printed; default $PENSTOCK_TOKEN
        ca: https servers: a PEM file of trusted certificates; default $SSL_CERT_FILE, or the system's certificates
        share: journal and slate stores on disk: serve the store to other processes of this user while it is open
            here; with False they get StoreLocked

    Raises:
        StoreLocked: another process has the store open and does not share it
        StoreCorrupt: stored bytes are damaged; the message says where and what can be saved
        StoreUnreachable: the server does not answer
    """
    url = os.fspath(url)
    options = Options(sync=sync, clock=clock, dialect=dialect, timeout=timeout, peers=peers, token=token, ca=ca)
    options.check_sync()
    kind = kind_of(url)
    kind.check(url, options)
    if not (kind.owned and share):
        return Store(url, kind.open(url, options))
    from penstock.sharing.backend import open_shared  # here, so that import penstock stays quick

    return Store(url, open_shared(url, options))
