"""Durations as arguments of commands, and times in tables."""

import json

import click
import pytest
from click.testing import CliRunner

import penstock
from penstock.cli import cli
from penstock.cli.times import Duration, length, parse, relative

URL = "memory:durations"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("90", 90),
        ("0.5", 0.5),
        ("90s", 90),
        ("5m", 300),
        ("2h", 7200),
        ("1d", 86_400),
        ("1h30m", 5400),
        ("1d2h3m4s", 93_784),
        ("1.5h", 5400),
        ("5M", 300),
        (" 5m ", 300),
    ],
)
def test_a_duration_is_seconds_or_has_units(text: str, seconds: float) -> None:
    assert parse(text) == seconds
    assert type(parse(text)) is type(seconds)


@pytest.mark.parametrize("text", ["", " ", "m", "5 m", "30m1h", "5x", "5m5", "1h1h", "five", "1:30", "5min"])
def test_other_texts_are_none_and_the_error_names_the_forms(text: str) -> None:
    with pytest.raises(
        click.BadParameter, match=r"is not a duration: give seconds \(90, 0.5\).* 5m, 2h, 1d, 1h30m"
    ):
        Duration().convert(text, None, None)


@pytest.mark.parametrize("value", [True, None, ["5m"], {}])
def test_other_values_of_a_file_are_none(value: object) -> None:
    with pytest.raises(click.BadParameter, match="is not a duration"):
        Duration().convert(value, None, None)


@pytest.mark.parametrize("text", ["-1", "61s", "nan", "2h"])
def test_a_duration_beyond_its_limits_is_refused_with_them(text: str) -> None:
    with pytest.raises(click.BadParameter, match="out of range: give 1 s to 60 s"):
        Duration(1, 60).convert(text, None, None)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["--store", URL, *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_every_setting_in_seconds_takes_a_duration() -> None:
    with penstock.open(URL) as store:
        run("create", "jobs", "--keep-done", "1d", "--max-lease", "2h", "--retention", "1h30m")
        settings = store.queue("jobs").settings
        assert (settings.keep_done, settings.max_lease, settings.retention) == (86_400, 7_200, 5_400)
        run("set", "jobs", "--keep-done", "forever", "--max-lease", "90", "--retention", "0.5")
        settings = store.queue("jobs").settings
        assert (settings.keep_done, settings.max_lease, settings.retention) == (None, 90, 0.5)


def test_every_time_of_a_message_takes_a_duration() -> None:
    with penstock.open(URL) as store:
        queue = store.queue()
        run("put", "default", "a", "--delay", "5m", "--retention", "2h")
        [message] = queue.messages("delayed")
        assert message.expires_at is not None
        assert message.visible_at - message.received_at == 300_000
        assert message.expires_at == message.received_at + 7_200_000
        queue.put(b"b")
        [claimed] = json.loads(run("claim", "--lease", "10m", "--wait", "0s", "--json"))
        assert claimed["lease_until"] - claimed["claimed_at"] == 600_000
        run("fail", "default", claimed["receipt"], "--delay", "1h")
        [_, message] = queue.messages("delayed")
        assert message.visible_at >= claimed["claimed_at"] + 3_600_000


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0 s"), (0.25, "0.2 s"), (1, "1 s"), (119, "119 s"), (120, "2 m"), (7_199, "120 m"), (7_200, "2 h"),
     (172_799, "48 h"), (172_800, "2 d"), (86_400_000, "1,000 d")],
)  # fmt: skip
def test_a_length_has_one_unit(seconds: float, shown: str) -> None:
    assert length(seconds) == shown


@pytest.mark.parametrize(
    ("time", "shown"),
    [(0, "3 m ago"), (179_500, "now"), (180_000, "now"), (192_000, "in 12 s"), (7_380_000, "in 2 h")],
)
def test_a_time_is_shown_as_people_say_it(time: int, shown: str) -> None:
    assert relative(time, 180_000) == shown
