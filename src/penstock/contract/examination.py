"""The result of an examination of a store (`penstock doctor`)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from penstock.contract.message import STATES

Severity = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """One thing that was found, and what to do about it."""

    severity: Severity  # "note": opening deals with it, or it does no harm
    text: str
    next: str = ""
    file: str | None = None  # its path, if the finding is about one
    offset: int | None = None  # and where in it


def note(text: str, advice: str = "", file: str | None = None, offset: int | None = None) -> Finding:
    """A finding that does no harm, or that opening deals with."""
    return Finding("note", text, advice, file, offset)


def problem(text: str, advice: str = "", file: str | None = None, offset: int | None = None) -> Finding:
    """A finding that someone has to act on."""
    return Finding("problem", text, advice, file, offset)


class Examined(Protocol):
    """The findings about one queue."""

    name: str
    findings: list[Finding]

    def cells(self) -> Mapping[str, int | None]:
        """The queue's numbers for people, by the headings of their columns."""


Queue = TypeVar("Queue", bound=Examined)


@dataclass
class QueueExamination:
    """What the journal of one queue holds, as the store would show it if it were opened at that moment."""

    name: str
    journal: str  # the name of its latest file, from which those of the others follow
    files: int = 0
    bytes: int = 0
    groups: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))
    packing_frees: int = 0  # bytes, about
    findings: list[Finding] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether there is no problem."""
        return all(each.severity != "problem" for each in self.findings)

    def cells(self) -> Mapping[str, int | None]:
        """The queue's numbers for people."""
        sizes = {"files": self.files, "bytes": self.bytes, "groups": self.groups}
        return {**sizes, **self.counts, "packing frees": self.packing_frees}


@dataclass
class Examination(Generic[Queue]):
    """What was found in a store."""

    folder: str
    at: int  # the time for which it holds
    holder: str | None = None  # the process that has the store open
    queues: list[Queue] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)  # about the store as a whole

    @property
    def sound(self) -> bool:
        """Whether there is no problem."""
        return all(each.severity != "problem" for _, each in self.all_findings())

    def all_findings(self) -> list[tuple[str | None, Finding]]:
        """Every finding, with the queue that it is about; None: the store."""
        found: list[tuple[str | None, Finding]] = [(None, each) for each in self.findings]
        return found + [(queue.name, each) for queue in self.queues for each in queue.findings]

    def as_json(self) -> dict[str, Any]:
        """The examination as JSON, for programs."""
        return {"sound": self.sound, **asdict(self)}
