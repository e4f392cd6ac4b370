"""The HTML page of a report: one file without scripts or links to other files. Users' texts are escaped here."""

from collections.abc import Callable, Sequence
from functools import cache
from html import escape
from importlib.resources import files

from penstock.contract.message import STATES
from penstock.contract.streams import StreamInfo
from penstock.spark.jobs.reporting import charts
from penstock.spark.jobs.reporting.charts import count, duration, moment, share
from penstock.spark.jobs.reporting.numbers import (
    MOST_ATTEMPTS,
    Consumer,
    DeadLetters,
    Figures,
    Numbers,
    Reason,
    Slice,
    Times,
    Windows,
)

ROWS = 50  # queues in the table
_CHARTED = 6  # queues with charts of their own
_LISTED = 500  # windows in the table
_NARROW, _WIDE, _HALF = 326, 1036, 492  # widths of a chart: on a phone; on a screen, alone or one of a pair
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # browsers run no script in the page
_TIMES = {"waiting": "Waiting time", "processing": "Processing time"}
_ABOUT = {
    "waiting": "From when a message could first be claimed until it was, by the time of that claim.",
    "processing": "From the last claim of a message until it was done or failed, by the time of that.",
}
_KEY_TIMES = [("p50", "half took at most this (p50)"), ("p90", "9 in 10 (p90)"), ("p99", "99 in 100 (p99)")]
_KEY_COUNTS = [("put", "put"), ("done", "done"), ("failed", "failed")]


@cache
def _style() -> str:
    return files(__package__).joinpath("page.css").read_text()


def render(
    numbers: Numbers,
    store: str,
    archive: str | None,
    made_at: int,
    notes: Sequence[str],
    streams: Sequence[StreamInfo] = (),
    day: tuple[Windows, list[Slice]] | None = None,
) -> str:
    """The page. `day`: the last one, as a server remembers it."""
    where = f"store {escape(store)}" + (f" and archive {escape(archive)}" if archive else "")
    when = "There are no messages yet."
    if numbers.windows:
        when = (
            f"{moment(numbers.first)} to {moment(numbers.last)} UTC, in windows of {numbers.windows}. "
            f"Made {moment(made_at)} UTC."
        )
    told = "".join(f"<p>{escape(note)}</p>" for note in notes)
    parts = [_tiles(numbers.total)]
    if numbers.windows:
        parts += [_over_time(numbers, numbers.windows), _outcomes(numbers)]
    if day is not None:
        parts.append(_last_day(*day))
    parts.append(_queues(numbers.queues))
    if numbers.dead_letters:
        parts.append(_dead_letters(numbers.dead_letters))
    if numbers.consumers:
        parts.append(_consumers(numbers.consumers))
    if streams:
        parts.append(_streams(streams, made_at))
    if numbers.windows and len(numbers.queues) > 1:
        parts.append(_largest(numbers, numbers.windows))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>Penstock report</title>\n<style>{_style()}</style>\n</head>\n<body>\n"
        f'<header><h1>Penstock report</h1><p class="soft">{where}</p><p class="soft">{when}</p>'
        f"{f'<div class=notes role=note>{told}</div>' if told else ''}</header>\n"
        f"<main>\n{''.join(parts)}</main>\n{_footer()}</body>\n</html>\n"
    )


# The parts of the page


def _tiles(total: Figures) -> str:
    settled = total.done + total.failed
    states = total.states
    tiles = [
        ("Put", count(total.put), "messages in all"),
        ("Done", count(total.done), f"{share(total.done, settled)} of settled"),
        ("Failed", count(total.failed), f"{share(total.failed, settled)} of settled"),
        (
            "Waiting now",
            count(states["available"] + states["delayed"]),
            f"{count(states['delayed'])} of them delayed",
        ),
        ("In flight now", count(states["in_flight"]), "held by consumers"),
        ("Waiting time", duration(total.waiting.p50), _more(total.waiting, "claimed")),
        ("Processing time", duration(total.processing.p50), _more(total.processing, "settled")),
        ("Longest wait", duration(total.waiting.max), f"of {count(total.waiting.count)} first claims"),
    ]
    shown = "".join(f"<div><dt>{name}</dt><dd>{value}</dd><dd>{more}</dd></div>" for name, value, more in tiles)
    return f'<dl class="tiles">{shown}</dl>\n'


def _more(times: Times, what: str) -> str:
    return f"p50; p99 {duration(times.p99)}" if times.count else f"nothing was {what} yet"


def _over_time(numbers: Numbers, windows: Windows) -> str:
    slices = numbers.all_slices
    cards = _throughput(slices, windows, "Throughput", f"Messages per window of {windows}.", (_WIDE, 240), 200)
    cards += _depth(slices, windows, "Messages that were neither done nor failed, at the end of each window.")
    pairs = "".join(_percentiles(slices, windows, what, _TIMES[what], _ABOUT[what]) for what in _TIMES)
    return (
        f'<h2>Over time</h2>\n<div class="cards">{cards}<div class="cards two">{pairs}</div></div>\n'
        f"{_table_of_windows(slices, windows)}"
    )


def _last_day(windows: Windows, slices: Sequence[Slice]) -> str:
    about = f"Messages per {windows}, counted by the server as it happened: also of those that are kept nowhere."
    cards = _throughput(slices, windows, "Throughput of the last day", about, (_WIDE, 200), 180)
    cards += _depth(slices, windows, "Messages that were neither done nor failed, as the server saw it.")
    return f'<h2>The last day, as the server remembers it</h2>\n<div class="cards">{cards}</div>\n'


def _outcomes(numbers: Numbers) -> str:
    settled = numbers.total.done + numbers.total.failed
    once = numbers.total.attempts.get(1, 0)
    said = f"{share(once, settled)} of {count(settled)} settled messages needed one attempt."
    bars = "".join(_attempt(*each, settled) for each in numbers.total.attempts.items())
    if not settled:
        said, bars = "No message has been settled.", ""
    body = f'<ul class="bars tried">{bars}</ul>' if bars else _none("nothing to show yet")
    about = f"Settled messages by the attempts they needed. {said}"
    tried = f'<section class="card"><h3>Attempts</h3><p class="soft">{about}</p>{body}</section>'
    return f'<h2>Outcomes</h2>\n<div class="cards two">{tried}{_reasons(numbers.all_reasons)}</div>\n'


def _attempt(number: int, messages: int, settled: int) -> str:
    more = " or more" if number == MOST_ATTEMPTS else ""
    name = f"{number}{more} attempt{'' if number == 1 else 's'}"
    return _bar(name, f"{count(messages)}<small>{share(messages, settled)}</small>", messages / settled)


def _bar(name: str, value: str, part: float) -> str:
    """A line of a list: a name and a value over a bar. Both are HTML."""
    bar = f'<i style="--share:{100 * part:.1f}%"></i>'
    return f"<li><div><span>{name}</span><b>{value}</b></div>{bar}</li>"


def _reasons(reasons: Sequence[Reason]) -> str:
    if not reasons:
        body = _none("no attempt has failed")
    else:
        most = max(max(each.attempts, each.messages) for each in reasons)
        body = f'<ul class="bars">{"".join(_reason(each, most) for each in reasons)}</ul>'
    about = "Attempts that failed, lost leases included, by reason; and messages that have no more attempts."
    return f'<section class="card"><h3>Why attempts failed</h3><p class="soft">{about}</p>{body}</section>'


def _reason(each: Reason, most: int) -> str:
    said = "<em>no reason given</em>" if each.reason is None else escape(each.reason)
    ended = f"<small>{count(each.messages)} for good</small>" if each.messages else ""
    return _bar(said, f"{count(each.attempts)}{ended}", max(each.attempts, each.messages) / most)


def _queues(queues: Sequence[Figures]) -> str:
    shown = queues[:ROWS]
    more = ""
    if len(queues) > len(shown):
        more = (
            f'<p class="soft">The {len(shown)} queues with the most messages of {count(len(queues))}; all of them '
            "are in report.json.</p>"
        )
    heads = "".join(f"<th scope=col>{name.replace('_', ' ')}</th>" for name in STATES)
    times = "".join(f"<th scope=col>{name}</th>" for name in ("p50", "p90", "p99")) * 2
    head = (
        f"<tr><th scope=col rowspan=2>Queue</th><th colspan={len(STATES)} scope=colgroup>"
        "Messages</th><th colspan=3 scope=colgroup>Waiting time</th>"
        f"<th colspan=3 scope=colgroup>Processing time</th></tr><tr>{heads}{times}</tr>"
    )
    rows = "".join(map(_queue, shown))
    return f"<h2>Queues</h2>\n{more}{_scrolled('Queues', head, rows)}\n"


def _queue(each: Figures) -> str:
    whole = sum(each.states.values())
    mix = "".join(f'<i class={state} style="--share:{n}"></i>' for state, n in each.states.items() if n)
    said = ", ".join(f"{count(n)} {state.replace('_', ' ')}" for state, n in each.states.items() if n)
    bar = f'<div class=mix role=img aria-label="{said}">{mix}</div>' if whole else ""
    counts = "".join(f"<td{'' if n else ' class=zero'}>{count(n)}</td>" for n in each.states.values())
    times = _times(each.waiting) + _times(each.processing)
    return f"<tr><th scope=row>{escape(each.queue)}{bar}</th>{counts}{times}</tr>"


def _dead_letters(letters: Sequence[DeadLetters]) -> str:
    """Where messages went that failed for good."""
    states = "".join(f"<th scope=col>{state.replace('_', ' ')}</th>" for state in STATES)
    head = (
        "<th scope=col>Failed in</th><th scope=col class=text>Now in</th><th scope=col>messages</th>"
        f"{states}<th scope=col class=text>usual reason</th>"
    )
    rows = ""
    for each in letters:
        counts = "".join(f"<td{'' if n else ' class=zero'}>{count(n)}</td>" for n in each.states.values())
        why = "<em>no reason given</em>" if each.reason is None else escape(each.reason)
        rows += (
            f"<tr><th scope=row>{escape(each.origin)}</th><td class=text>{escape(each.queue)}</td>"
            f"<td>{count(each.messages)}</td>{counts}<td class=text>{why}</td></tr>"
        )
    about = (
        "Messages that failed for good and moved to a dead-letter queue, by where they failed and where they are "
        "now. Those that went back to their origin count there, as any other."
    )
    shown = _scrolled("Dead letters", f"<tr>{head}</tr>", rows)
    return f'<h2>Dead letters</h2>\n<p class="soft">{about}</p>{shown}\n'


def _consumers(consumers: Sequence[Consumer]) -> str:
    names = ("Consumer", "messages", "attempts", "failures", "last seen (UTC)")
    head = "".join(f"<th scope=col>{name}</th>" for name in names)
    rows = ""
    for each in consumers:
        named = "<em>without a name</em>" if each.consumer is None else escape(each.consumer)
        failures = f"<td{'' if each.failures else ' class=zero'}>{count(each.failures)}</td>"
        rows += (
            f"<tr><th scope=row>{named}</th><td>{count(each.messages)}</td><td>{count(each.attempts)}</td>"
            f"{failures}<td>{moment(each.last_seen, seconds=True)}</td></tr>"
        )
    about = "What claimed the messages that are still known; last seen at a claim or at its end."
    return f'<h2>Consumers</h2>\n<p class="soft">{about}</p>{_scrolled("Consumers", f"<tr>{head}</tr>", rows)}\n'


def _streams(streams: Sequence[StreamInfo], made_at: int) -> str:
    names = ("Stream", "Queue", "mode", "batch", "settled", "held", "age", "lag")
    head = "".join(f"<th scope=col>{name}</th>" for name in names)
    rows = ""
    for each in streams:
        age = None if each.since is None else max(0, made_at - each.since) / 1000
        numbers = "".join(
            f"<td{'' if n else ' class=zero'}>{count(n)}</td>" for n in (each.batch, each.settled, each.messages)
        )
        rows += (
            f"<tr><th scope=row>{escape(each.stream)}</th><td>{escape(each.queue)}</td><td>{each.mode}</td>"
            f"{numbers}<td>{duration(age)}</td><td>{count(each.lag)}</td></tr>"
        )
    about = (
        "What reads queues with Spark: the messages that each holds until its batch is settled, and for how long."
    )
    return f'<h2>Streams</h2>\n<p class="soft">{about}</p>{_scrolled("Streams", f"<tr>{head}</tr>", rows)}\n'


def _times(times: Times) -> str:
    return "".join(
        f"<td{'' if each else ' class=zero'}>{duration(each)}</td>" for each in (times.p50, times.p90, times.p99)
    )


def _largest(numbers: Numbers, windows: Windows) -> str:
    """Charts of the largest queues."""
    shown = [each for each in numbers.queues[:_CHARTED] if each.put]
    cards = ""
    for each in shown:
        slices = numbers.slices[each.queue]
        charted = _throughput(slices, windows, "Throughput", f"Messages per {windows}.", (_HALF, 170), 170, False)
        charted += _percentiles(slices, windows, "waiting", "Waiting time", "Until the first claim.", False)
        cards += f'<section class="card queue"><h3>{escape(each.queue)}</h3><div class="cards two">{charted}</div>'
        cards += "</section>\n"
    of = f"The {len(shown)} with the most messages." if len(numbers.queues) > len(shown) else "All of them."
    return f'<h2>By queue</h2>\n<p class="soft">{of}</p><div class="cards">{cards}</div>\n'


def _footer() -> str:
    terms = {
        "Put, done, failed": "messages that the store or the archive knows. A done message is gone when its queue "
        "no longer keeps it (keep_done), unless it was archived; so are expired, removed and purged ones.",
        "Depth": "messages that were put and neither done nor failed at the end of a window, of those known.",
        "Waiting time": "from when a message could first be claimed, its delay being over, to its first "
        "claim. Of a message that came back the delay is no longer known, and counts.",
        "Processing time": "from the last claim to done or failed. An attempt whose lease ran out took its lease.",
        "p50, p90, p99": "half, nine in ten and 99 in a hundred took at most so long.",
    }
    shown = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in terms.items())
    return f"<footer><dl>{shown}</dl><p>All times are in UTC. The numbers are in report.json.</p></footer>\n"


# Charts and tables


def _throughput(
    slices: Sequence[Slice],
    windows: Windows,
    title: str,
    about: str,
    wide: tuple[int, int],
    narrow: int,
    tips: bool = True,
) -> str:
    said = ", ".join(f"{count(sum(getattr(each, name) for each in slices))} {name}" for name, _ in _KEY_COUNTS)
    most = max(slices, key=lambda each: each.put)
    said += f"; most were put at {moment(most.start)}: {count(most.put)}"
    drawn = _both(lambda width, height: charts.throughput(slices, windows, width, height, tips), wide, narrow)
    return _figure(title, about, said, drawn, _key(_KEY_COUNTS))


def _depth(slices: Sequence[Slice], windows: Windows, about: str) -> str:
    most = max(slices, key=lambda each: each.depth)
    said = f"most at {moment(most.start)}: {count(most.depth)}; at the end {count(slices[-1].depth)}"
    drawn = _both(lambda width, height: charts.depth(slices, windows, width, height), (_WIDE, 200), 180)
    return _figure("Depth", about, said, drawn, "")


def _percentiles(
    slices: Sequence[Slice], windows: Windows, what: str, title: str, about: str, tips: bool = True
) -> str:
    times: list[Times] = [getattr(each, what) for each in slices]
    known = [each for each in times if each.count]
    if not known:
        none = "nothing was claimed" if what == "waiting" else "nothing was settled"
        return _figure(title, about, none, _none(none), "")
    if not any(each.max for each in known):
        return _figure(title, about, "0 s", _none("less than a millisecond, each time"), "")
    low, high = min(each.p50 or 0 for each in known), max(each.p99 or 0 for each in known)
    said = f"{_TIMES[what]}: the lowest p50 of a window is {duration(low)}, the highest p99 {duration(high)}"
    height = 220 if tips else 170
    drawn = _both(
        lambda width, height: charts.percentiles(slices, windows, what, width, height, tips),
        (_HALF, height),
        height,
    )
    return _figure(
        title, about, said, drawn, _key(_KEY_TIMES if tips else [(name, name) for name, _ in _KEY_TIMES])
    )


def _both(draw: Callable[[int, int], str], wide: tuple[int, int], narrow: int) -> str:
    """A chart for wide screens and one for phones, where the labels of a scaled one would be too small."""
    return f"<div class=wide>{draw(*wide)}</div><div class=narrow>{draw(_NARROW, narrow)}</div>"


def _figure(title: str, about: str, said: str, drawn: str, key: str) -> str:
    return (
        f"<figure><figcaption><h3>{escape(title)}</h3><p>{escape(about)}</p>{key}</figcaption>"
        f'<div role=img aria-label="{escape(title)}: {escape(said)}">{drawn}</div></figure>\n'
    )


def _key(names: Sequence[tuple[str, str]]) -> str:
    kinds = {"done": " class=area", "failed": " class=area"}
    shown = "".join(f"<li class={name}><i{kinds.get(name, '')}></i>{text}</li>" for name, text in names)
    return f"<ul class=key>{shown}</ul>"


def _none(text: str) -> str:
    return f"<p class=none>{text}</p>"


def _scrolled(name: str, head: str, rows: str) -> str:
    """A table that scrolls sideways on a phone; focusable, to be scrolled by keys."""
    table = f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"
    return f'<div class=scroll tabindex=0 role=region aria-label="{name}">{table}</div>'


def _table_of_windows(slices: Sequence[Slice], windows: Windows) -> str:
    seconds = windows.length < 60_000
    times = "".join(f"<th scope=col>{name}</th>" for name in ("p50", "p90", "p99")) * 2
    head = (
        "<tr><th scope=col rowspan=2>From (UTC)</th><th colspan=4 scope=colgroup>Messages</th>"
        "<th colspan=3 scope=colgroup>Waiting time</th><th colspan=3 scope=colgroup>Processing time</th></tr>"
        f"<tr><th scope=col>put</th><th scope=col>done</th><th scope=col>failed</th><th scope=col>depth</th>"
        f"{times}</tr>"
    )
    rows = "".join(
        f"<tr><th scope=row>{moment(each.start, seconds)}</th>"
        f"<td>{count(each.put)}</td><td>{count(each.done)}</td><td>{count(each.failed)}</td>"
        f"<td>{count(each.depth)}</td>{_times(each.waiting)}{_times(each.processing)}</tr>"
        for each in slices[-_LISTED:]
    )
    return f"<details><summary>The same as a table</summary>{_scrolled('Windows', head, rows)}</details>\n"
