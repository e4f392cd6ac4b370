"""Taking rows out of Parquet files, for messages that an archive has in a later state."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.spark.jobs.archiving.folder import Folder, Move

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROWS = 10_000  # at a time
Rewritten = tuple[list[Move], list[str], int]


def without(folder: Folder, superseded: "DataFrame") -> Rewritten:
    """Write the files that have such rows anew, in staging.

    What replaces what, which files go because nothing is left in them, and how many rows it is about.
    """
    by_file: dict[Path, list[Any]] = defaultdict(list)
    for row in superseded.select("file", "id", "checksum").collect():
        by_file[Path(unquote(urlsplit(row["file"]).path))].append(row)
    moves, gone = [], []
    for number, (path, rows) in enumerate(by_file.items()):
        target = str(path.relative_to(folder.path))
        anew = folder.staging / f"anew-{number}.parquet"
        if _rewrite(path, anew, {(row["id"], row["checksum"]) for row in rows}):
            moves.append(Move(str(anew.relative_to(folder.path)), target))
        else:
            gone.append(target)
    return moves, gone, sum(map(len, by_file.values()))


def _rewrite(path: Path, anew: Path, without: set[tuple[str, int]]) -> int:
    left = 0
    with pq.ParquetFile(path) as file, pq.ParquetWriter(anew, file.schema_arrow) as to:
        for batch in file.iter_batches(_ROWS):
            kept = batch.filter(_mask(batch, without))
            left += len(kept)
            to.write_batch(kept)
    return left


def _mask(batch: pa.RecordBatch, without: Iterable[tuple[str, int]]) -> pa.Array:
    """Which rows stay. An id may be in a file twice, of two stores; the checksum tells them apart."""
    suspects = pc.is_in(batch["checksum"], pa.array({checksum for _, checksum in without}, pa.int64()))
    if not pc.any(suspects).as_py():
        return pc.invert(suspects)
    pairs = zip(batch["id"].to_pylist(), batch["checksum"].to_pylist(), strict=True)
    gone = set(without)
    return pa.array([pair not in gone for pair in pairs])
