"""The files of a queue's journal: their names, and the order in which they are read.

cars            the latest file
cars.904        rotated away at that time
cars.950.pack   what all files up to that time were packed into; they are dead, and it replaces them
cars~~951       temporary, ignored
"""

import re
from collections.abc import Iterable


def journals(names: Iterable[str]) -> list[str]:
    """The journals that these files belong to."""
    pattern = re.compile(r"([^.~/][^.~/]*)(\.[0-9]+(\.pack)?)?", re.ASCII)
    return list(dict.fromkeys(matched[1] for name in sorted(names) if (matched := pattern.fullmatch(name))))


def is_temporary(name: str, journal: str | None = None) -> bool:
    """Whether a file is a temporary one, of this journal or of any."""
    pattern = r"[^.~/]+" if journal is None else re.escape(journal)
    return re.fullmatch(pattern + r"~~[0-9]+", name, re.ASCII) is not None


def replay_order(names: Iterable[str], journal: str) -> list[str]:
    """The files of one journal in the order in which they are read; dead and temporary ones are left out."""
    pattern = re.compile(re.escape(journal) + r"\.([0-9]+)(\.pack)?", re.ASCII)
    rotated: dict[int, str] = {}
    packs: dict[int, str] = {}
    current = []
    for name in names:
        if name == journal:
            current = [name]
        elif matched := pattern.fullmatch(name):
            (packs if matched[2] else rotated)[int(matched[1])] = name
    packed = max(packs, default=None)
    living = {time: name for time, name in rotated.items() if packed is None or time > packed}
    first = [] if packed is None else [packs[packed]]
    return first + [living[time] for time in sorted(living)] + current
