"""Compare Penstock's output and files with tests/golden/expected, or record them anew.

    python -m tests.golden                      compare
    python -m tests.golden --write [TEST...]    record what these tests (all) expect
    python -m tests.golden --keep VERSION       write stores of today into stores/VERSION, where none are yet

Every file that changes is named. Look at the difference (`git diff tests/golden/expected`) before you commit it:
each line of it is something that users, their files or their programs will see.
"""

import os
import sys
from pathlib import Path

import pytest

from tests.golden.expectations import EXPECTED, WRITE, snapshot
from tests.golden.test_files import keep


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--keep"] and len(arguments) == 2:
        keep(arguments[1])
        return 0
    if arguments and arguments[0] != "--write":
        sys.exit(__doc__)
    tests = arguments[1:] or [str(Path(__file__).parent)]
    if not arguments:
        return pytest.main(tests)
    before = snapshot()
    os.environ[WRITE] = "1"
    code = pytest.main(tests)
    after = snapshot()
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            what = "new" if name not in before else "removed" if name not in after else "changed"
            sys.stdout.write(f"{what}: {EXPECTED / name}\n")
    sys.stdout.write("nothing changed\n" if before == after else "look at them before you commit them\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
