"""Receipts and ids as text, and what they say."""

import re
from collections.abc import Iterable, Sequence

from penstock.rules.ledger import Receipt

_ID = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_RECEIPT = re.compile(r"(0|[1-9][0-9]{0,18})\.[0-9a-f]{16}", re.ASCII)
_SECRET = re.compile(r"\.[0-9a-f]{16}", re.ASCII)


def parse_receipts(receipts: Sequence[str]) -> Sequence[Receipt | None]:
    """What receipts say; None of those that never were one."""
    secret = receipts[0][-17:] if len(receipts) > 1 else ""
    if _SECRET.fullmatch(secret) and {receipt[-17:] for receipt in receipts} == {secret}:
        seqs = [receipt[:-17] for receipt in receipts]  # of one claim, most likely
        digits = "".join(seqs).isascii() and all(map(str.isdigit, seqs))
        if digits and min(seqs) >= "1" and max(map(len, seqs)) < 20:  # no zero leads
            nonce = int(secret[1:], 16)
            return [(int(seq), nonce) for seq in seqs]
    return list(map(_receipt, receipts))


def _receipt(text: str) -> Receipt | None:
    if _RECEIPT.fullmatch(text) is None:
        return None
    return int(text[:-17]), int(text[-16:], 16)


def parse_ids(ids: Iterable[str]) -> list[int]:
    """What the ids name; text that was never an id names nothing."""
    return [int(text) for text in ids if _ID.fullmatch(text)]
