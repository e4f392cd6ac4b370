"""The names of runs: a run that is asked for again is the same one, and takes effect once."""

import hashlib
import json
import re
from typing import Any

from penstock.errors import InvalidArgument

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}", re.ASCII)


def run_id(given: str | None, job: str, **what: Any) -> str:
    """The name of a run: what was given, or a hash of the job, its inputs and its arguments."""
    if given is None:
        text = json.dumps([job, what], sort_keys=True, default=str)
        return f"{job}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if not _NAME.fullmatch(given):
        raise InvalidArgument(f"id {given!r}: give 1 to 100 letters, digits and any of _ . : -")
    return given
