import random
import zlib
from itertools import accumulate

import numpy as np
import pytest

from penstock.spark.checksums import joined


@pytest.mark.parametrize("sizes", [[777], [0, 1, 2, 30, 1_000, 70_000], [1 << 18, (1 << 18) + 1, 3]])
def test_the_checksum_of_the_whole_follows_from_those_of_its_pieces(sizes: list[int]) -> None:
    dice = random.Random(str(sizes))
    counts = [1, 2, 3, 1, 100, 1023] if max(sizes) < 1_000 else [1, 5, 1, 200]
    runs = [[dice.randbytes(dice.choice(sizes)) for _ in range(count)] for count in counts]
    crcs = np.array([zlib.crc32(piece) for run in runs for piece in run], np.uint32)
    ends = np.array(list(accumulate(len(piece) for run in runs for piece in run)))
    starts = np.array([0, *accumulate(map(len, runs[:-1]))])
    expected = [zlib.crc32(b"".join(run)) for run in runs]
    assert joined(crcs, ends, starts).tolist() == expected
    crcs[-1] ^= 1 << dice.randrange(32)
    assert joined(crcs, ends, starts).tolist()[:-1] == expected[:-1]
    assert joined(crcs, ends, starts)[-1] != expected[-1]
