"""The summary of the last run of every part: a page, and the tables of docs/benchmarks.md.

python -m benchmarks.page benchmarks/out docs/benchmarks.md    writes the tables between the file's two marks

For each cell of Penstock: its value, the best peer, the limit, and how good it is against both; more than 1 is
better, whether the cell is a rate or a time.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.harness import RAW_APPEND, RAW_SEQUENTIAL
from benchmarks.report import number, quantity

BEGIN, END = "<!-- begin: the last full run -->", "<!-- end: the last full run -->"
HEADS = ("what", "Penstock", "best peer", "against it", "limit", "against it", "also compared with", "targets")
_STYLE = """
:root { color-scheme: light dark; --line: #d5dbdf; --soft: #5b666e; --good: #0f766e; --bad: #b4324a; }
@media (prefers-color-scheme: dark) {
  :root { --line: #3a444b; --soft: #9aa6ae; --good: #4fc3b5; --bad: #f08a9b; }
}
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
p, caption { color: var(--soft); text-align: left; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1rem; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: left; vertical-align: top; }
th { font-weight: 600; } td { font-variant-numeric: tabular-nums; }
.reached { color: var(--good); } .missed, .failed { color: var(--bad); }
figure { background: #fff; border-radius: 6px; margin: 0 0 2.5rem; overflow-x: auto; padding: .5rem; }
figure svg { height: auto; max-width: 100%; }
"""

Document = Mapping[str, Any]  # a PART.json


@dataclass(frozen=True)
class Row:
    """A cell of Penstock as the summary shows it."""

    what: str
    value: str
    peer: str
    against_peer: str
    limit: str
    against_limit: str
    others: str
    targets: str  # "reached", "missed", "failed" or nothing

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns, as HEADS names them."""
        return (
            self.what,
            self.value,
            self.peer,
            self.against_peer,
            self.limit,
            self.against_limit,
            self.others,
            self.targets,
        )


def rows(document: Document) -> Iterator[Row]:
    """The rows of a part."""
    cells = {cell["name"]: cell for cell in document["cells"]}
    for cell in document["cells"]:
        if cell["of"] == "penstock":
            yield _row(cell, cells)


def _row(cell: Document, cells: Mapping[str, Document]) -> Row:
    compared: dict[str, list[tuple[float, str]]] = {"peer": [], "limit": [], "penstock": []}
    reached = []
    for each in cell["comparisons"]:
        if each["target"] is not None:
            reached.append(each["reached"])
        name = each["against"]
        if name is not None and each["median"]:
            of = "limit" if name in (RAW_APPEND, RAW_SEQUENTIAL) else cells[name]["of"]
            good = each["median"] if cell["better"] == "higher" else 1 / each["median"]
            compared[of].append((good, _named(name, cells)))
    peer, limit = (min(compared[of], default=None) for of in ("peer", "limit"))
    targets = "" if not reached else "reached" if all(reached) else "missed"
    return Row(
        cell["name"],
        quantity(cell["value"]["median"], cell["unit"]) if cell["value"] else "",
        peer[1] if peer else "",
        f"{number(peer[0])} x" if peer else "",
        limit[1] if limit else "",
        f"{number(limit[0])} x" if limit else "",
        ", ".join(f"{number(good)} x {name}" for good, name in compared["penstock"]),
        targets if cell["value"] else "failed",
    )


def _named(name: str, cells: Mapping[str, Document]) -> str:
    """A cell with its value; a raw limit is probed anew beside each visit, and has none."""
    if name not in cells or not cells[name]["value"]:
        return name
    return f"{name}: {quantity(cells[name]['value']['median'], cells[name]['unit'])}"


def surroundings(document: Document) -> str:
    """Where and when a part was measured, in a sentence."""
    machine, append, sequential = document["machine"], document["raw_append"], document["raw_sequential"]
    raw = ""
    if append and sequential:
        raw = f"; raw append {quantity(append['median'], 'ops/s')}, "
        raw += f"raw sequential {quantity(sequential['median'], 'bytes/s')}"
    rounds = max((sample["round"] for cell in document["cells"] for sample in cell["samples"]), default=0)
    return (
        f"{document['date']}, {machine['cores']} cores, {machine['python']}, {machine['system']}, "
        f"{machine['filesystem']}, {rounds} {'round' if rounds == 1 else 'rounds'}{raw}."
    )


def _documents(folder: Path, parts: Iterable[str]) -> dict[str, Document]:
    """The results of each part that was run."""
    found = {part: folder / f"{part}.json" for part in parts}
    return {part: json.loads(path.read_text()) for part, path in found.items() if path.exists()}


def write(folder: Path, parts: Iterable[str]) -> None:
    """Write index.html about all parts whose results are in the folder."""
    sections = [
        f"<h2>{escape(part)}</h2>\n<p>{escape(surroundings(document))}</p>\n{_table(document)}\n"
        f"<figure>{_plot(folder / f'{part}.svg')}</figure>\n"
        for part, document in _documents(folder, parts).items()
    ]
    (folder / "index.html").write_text(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Penstock: benchmarks</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>Benchmarks</h1>\n"
        "<p>Medians of interleaved rounds. “Against it”: more than 1 is better, for rates and for times. "
        "Ratios are what counts; absolute figures on a shared machine are not.</p>\n"
        f"{''.join(sections)}</body>\n</html>\n",
        encoding="utf-8",
    )


def _table(document: Document) -> str:
    head = "".join(f'<th scope="col">{head}</th>' for head in HEADS)
    body = "".join(
        "<tr>"
        + "".join(f"<td>{escape(text)}</td>" for text in row.texts[:-1])
        + f'<td class="{row.targets}">{row.targets}</td></tr>\n'
        for row in rows(document)
    )
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>'


def _plot(path: Path) -> str:
    """The plot as an element: without the XML declaration, which HTML has no place for."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return text[text.index("<svg") :] if "<svg" in text else ""


def markdown(documents: Mapping[str, Document]) -> str:
    """The same tables for the docs, without plots."""
    lines = []
    for part, document in documents.items():
        lines += [f"### Part: {part}", "", surroundings(document), ""]
        lines += [_line(HEADS), _line("---" for _ in HEADS), *(_line(row.texts) for row in rows(document)), ""]
    return "\n".join(lines)


def _line(texts: Iterable[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"


def write_docs(folder: Path, parts: Iterable[str], path: Path) -> None:
    """Replace what is between the two marks of a page of the docs."""
    tables = markdown(_documents(folder, parts))
    before = path.read_text(encoding="utf-8")
    after, count = re.subn(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n\n{tables}\n{END}", before, flags=re.DOTALL)
    if not count:
        raise SystemExit(f"{path} has no line {BEGIN!r}: put it, and {END!r}, where the tables belong")
    path.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    from benchmarks.__main__ import PARTS

    write_docs(Path(sys.argv[1]), PARTS, Path(sys.argv[2]))
