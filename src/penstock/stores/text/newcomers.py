"""Drafts on their way into a text queue: their ids, which of them are there already, and their checksums."""

import os
from collections.abc import Sequence
from dataclasses import replace
from zlib import crc32

from penstock.contract.message import Entry as Draft
from penstock.contract.message import Plain
from penstock.stores.text.view import View


def numbered(view: View, drafts: Sequence[Draft], now: int) -> tuple[list[str | None], Sequence[Draft]]:
    """A new id for each draft that is not there under its key, and those drafts, without keys."""
    if isinstance(drafts, Plain) or not any(draft.key is not None for draft in drafts):
        secrets = os.urandom(8 * len(drafts)).hex()
        return [secrets[at : at + 16] for at in range(0, len(secrets), 16)], drafts
    for draft in drafts:
        view.ledger.check_values(len(draft.payload), draft.priority)
    ids: list[str | None] = []
    new, keys = [], set()
    for draft in drafts:
        known = draft.key is not None and (draft.key in keys or view.keys.get(draft.key, ("", 0))[1] > now)
        if known:
            ids.append(None)
            continue
        ids.append(os.urandom(8).hex())
        new.append(replace(draft, key=None))
        if draft.key is not None:
            keys.add(draft.key)
    return ids, new


def answers(ids: Sequence[str | None], drafts: Sequence[Draft], view: View) -> list[str]:
    """An id for each draft; of those that were there already, the first one's."""
    return [
        view.keys[draft.key or ""][0] if each is None else each for draft, each in zip(drafts, ids, strict=True)
    ]


def text_crc(entry: bytes) -> int:
    """The checksum of the text of an entry that was just written."""
    end = entry.index(b"\n\\")
    return crc32(entry[1:end].replace(b"\n ", b"\n"))
