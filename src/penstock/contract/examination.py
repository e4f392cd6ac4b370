"""The result of an examination of a store (`penstock doctor`)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from penstock.contract.message import STATES

Severity = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """One finding, and the advice that goes with it."""

    severity: Severity  # "note": opening deals with it, or it does no harm
    text: str
    next: str = ""
    file: str | None = None  # the path of the file that the finding is about
    offset: int | None = None  # position in that file
    line: int | None = None  # number of the line in a text file


def note(
    text: str, advice: str = "", file: str | None = None, offset: int | None = None, line: int | None = None
) -> Finding:
    """A finding that does no harm, or that opening deals with."""
    return Finding("note", text, advice, file, offset, line)


def problem(
    text: str, advice: str = "", file: str | None = None, offset: int | None = None, line: int | None = None
) -> Finding:
    """A finding that someone has to act on."""
    return Finding("problem", text, advice, file, offset, line)


@dataclass(frozen=True)
class Held:
    """A message that a consumer holds."""

    id: str
    consumer: str | None
    lease_until: int | None  # None: another program has marked it, and says no time
    attempts: int
    file: str
    line: int | None = None  # number of the line in a text file


class Examined(Protocol):
    """The findings about one queue."""

    name: str
    findings: list[Finding]

    def cells(self) -> Mapping[str, int | None]:
        """The queue's numbers by column heading, for people."""


Queue = TypeVar("Queue", bound=Examined)


@dataclass
class QueueExamination:
    """The contents of one queue's journal, as opening the store at that moment would show them."""

    name: str
    journal: str  # the name of its latest file
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
        """The queue's numbers by column heading."""
        sizes = {"files": self.files, "bytes": self.bytes, "groups": self.groups}
        return {**sizes, **self.counts, "packing frees": self.packing_frees}


@dataclass
class Examination(Generic[Queue]):
    """The findings about a store."""

    folder: str
    at: int  # the time of the examination
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
