"""Errors of the command line: what they advise, as JSON, and the same over HTTP; and results that are empty."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

import penstock
from penstock.cli import cli
from tests.http.serving import ask, serving

Run = Callable[..., Result]


@pytest.fixture(params=["here", "over HTTP"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    name = "memory:errors"
    with penstock.open(name) as store:
        store.create("jobs", max_size=2, max_attempts=1)
        if request.param == "here":
            yield name
        else:
            with serving(store) as server:
                yield server.url


@pytest.fixture
def run(url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("PENSTOCK_STORE", url)

    def run(*arguments: str, code: int) -> Result:
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == code, result.output
        return result

    return run


def problem(result: Result) -> dict[str, Any]:
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    told: dict[str, Any] = json.loads(line)
    return told


REFUSALS = [
    (("pop", "nope"), "QueueNotFound", "there is no queue 'nope'", "`penstock create nope` creates it"),
    (("create", "jobs"), "QueueExists", "queue 'jobs' exists already", "`penstock set jobs` changes them"),
    (("delete", "default", "-y"), "QueueProtected", "cannot be deleted", "`penstock purge default --yes`"),
    (("ack", "jobs", "1.0000"), "LeaseExpired", "no longer hold their message", "penstock claim jobs --lease 5m"),
]


@pytest.mark.parametrize(("command", "error", "what", "hint"), REFUSALS)
def test_an_error_advises_commands_wherever_the_store_is(
    run: Run, command: tuple[str, ...], error: str, what: str, hint: str
) -> None:
    said = run(*command, code=1).stderr
    happened, advised = said.splitlines()
    assert happened.startswith("penstock: ")
    assert what in happened
    assert advised.startswith("hint: ")
    assert hint in advised
    assert "()" not in said
    assert "store." not in said


@pytest.mark.parametrize(("command", "error", "what", "hint"), REFUSALS)
def test_an_error_is_a_line_of_json_with_json(
    run: Run, command: tuple[str, ...], error: str, what: str, hint: str
) -> None:
    told = problem(run(*command, "--json", code=1))
    assert told["error"] == error
    assert what in told["message"]
    assert hint in told["hint"]


def test_lost_receipts_are_named_in_json(run: Run) -> None:
    receipts = ["1.0000000000000000", "2.0000000000000000"]
    told = problem(run("ack", "jobs", *receipts, "--json", code=1))
    assert (told["queue"], told["receipts"]) == ("jobs", receipts)


def test_a_full_queue_says_what_shows_and_changes_it(run: Run) -> None:
    for _ in range(2):
        run("put", "jobs", "a", code=0)
    told = problem(run("put", "jobs", "a", "--json", code=1))
    assert told["error"] == "QueueFull"
    assert told["message"] == "queue 'jobs' holds 2 of at most 2 messages; 1 more do not fit"
    assert "`penstock show jobs`" in told["hint"]
    assert "`penstock set jobs --max-size N`" in told["hint"]


@pytest.mark.parametrize(
    ("command", "error", "message"),
    [
        (("put", "jobs", "a", "--priority", "x"), "UsageError", "'x' is not a valid integer"),
        (("put", "jobs", "a", "--delay", "x"), "UsageError", "'x' is not a duration"),
        (("put", "jobs", "@nowhere"), "UsageError", "cannot read 'nowhere'"),
        (("claim", "jobs", "--lease", "0"), "InvalidArgument", "lease=0 would end at once"),
        (("list", "--colour"), "UsageError", "No such option"),
        (("nothing",), "UsageError", "No such command"),
        (("streams", "delete"), "UsageError", "Missing argument"),
    ],
)
def test_wrong_usage_is_json_too(run: Run, command: tuple[str, ...], error: str, message: str) -> None:
    told = problem(run(*command, "--json", code=2))
    assert told["error"] == error
    assert message in told["message"]


def test_json_after_two_dashes_belongs_to_the_command_that_is_run(run: Run) -> None:
    assert run("work", "nope", "--", "true", "--json", code=1).stderr.startswith("penstock: there is no queue")


def test_advice_names_the_store_that_the_command_named(url: str) -> None:
    said = CliRunner().invoke(cli, ["--store", url, "pop", "a+b"]).stderr
    assert f"`penstock --store {url} create a+b` creates it" in said


def test_python_and_http_get_advice_of_their_own(url: str) -> None:
    with penstock.open(url) as store:
        with pytest.raises(penstock.QueueNotFound) as refused:
            store.queue("a/b")
        assert str(refused.value) == "there is no queue 'a/b': create it with store.create('a/b')"
        with pytest.raises(penstock.QueueExists, match=r"open it with store\.queue\('jobs'\)"):
            store.create("jobs")
        with pytest.raises(penstock.QueueProtected, match=r"empty it with purge\(\)"):
            store.delete("default")
    if url.startswith("http"):
        status, _, body = ask(url, "/a%2Fb")
        assert status == 404
        assert "create it with PUT /a%2Fb" in json.loads(body)["detail"]
        assert "store." not in json.loads(body)["detail"]


# Nothing there


def test_an_empty_queue_says_so_on_stderr_to_people_only(run: Run) -> None:
    for command in (("pop", "jobs"), ("claim", "jobs"), ("peek", "jobs"), ("pop", "jobs", "--raw")):
        empty = run(*command, code=3)
        assert (empty.stdout, empty.stderr) == ("", "queue 'jobs' has no available messages\n")
    quiet = run("claim", "jobs", "--json", code=3)
    assert (quiet.stdout, quiet.stderr) == ("[]\n", "")


def test_an_empty_queue_says_who_holds_its_messages_and_until_when(run: Run) -> None:
    run("put", "jobs", "a", code=0)
    run("claim", "jobs", "--lease", "10h", code=0)
    run("put", "jobs", "b", "--delay", "5d", code=0)
    assert run("pop", "jobs", code=3).stderr == (
        "queue 'jobs' has no available messages; 1 is in flight, the next lease ends in 10 h; 1 is delayed, the "
        "next is due in 5 d\n"
    )


def test_an_empty_queue_says_what_has_failed(run: Run) -> None:
    run("put", "jobs", "a", code=0)
    [message] = json.loads(run("claim", "jobs", "--json", code=0).stdout)
    run("fail", "jobs", message["receipt"], code=0)
    said = run("peek", "jobs", code=3).stderr
    assert said == "queue 'jobs' has no available messages; 1 failed: `penstock redrive jobs` retries them\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("peek", "jobs", "--state", "failed"), "queue 'jobs' has no failed messages"),
        (("revoke", "jobs", "7"), "queue 'jobs' has no messages of these ids that a consumer holds"),
        (("redrive", "jobs"), "queue 'jobs' has no failed messages"),
        (("redrive", "jobs", "7"), "queue 'jobs' has no failed messages of these ids"),
        (("remove", "jobs", "7"), "queue 'jobs' has no messages of these ids"),
    ],
)
def test_a_command_that_finds_nothing_says_what_is_missing(run: Run, command: tuple[str, ...], said: str) -> None:
    empty = run(*command, code=3)
    assert (empty.stdout, empty.stderr) == ("", f"{said}\n")
