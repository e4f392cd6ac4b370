"""`penstock extend` and `penstock message`, on every kind of store."""

from tests.cli.conftest import Place


def test_a_lease_is_extended_from_now_on(place: Place) -> None:
    place.jobs.put_many(["a", "b"])
    first, second = place.jobs.claim(2, lease=30)
    extended = place.json("extend", "jobs", first.receipt or "", second.receipt or "", "--lease", "600")
    assert extended["extended"] == 2
    assert [message.lease_until for message in place.jobs.messages()] == [extended["lease_until"]] * 2
    assert extended["lease_until"] > (first.lease_until or 0) + 500_000
    assert place.run("extend", "jobs", first.receipt or "").stdout.startswith("extended 1 lease until 20")
    first.ack()


def test_a_lost_lease_is_named_and_the_others_are_extended(place: Place) -> None:
    place.jobs.put_many(["a", "b"])
    lost, held = place.jobs.claim(2, lease=30)
    place.jobs.remove(lost.id)
    failed = place.run("extend", "jobs", held.receipt or "", lost.receipt or "", "--lease", "600", code=1)
    assert (lost.receipt or "?") in failed.stderr
    assert (held.receipt or "?") not in failed.stderr
    [left] = place.jobs.messages("in_flight")
    assert (left.lease_until or 0) > (held.lease_until or 0) + 500_000


def test_a_lease_of_no_time_is_wrong_usage(place: Place) -> None:
    assert "lease=0" in place.run("extend", "jobs", "x", "--lease", "0", code=2).stderr


def test_a_message_is_shown_with_its_fields_and_its_attempts(place: Place) -> None:
    put = place.jobs.put('{"cat": {"size": [1, 2]}}', headers={"kind": "image"})
    [claimed] = place.jobs.claim(consumer="me")
    claimed.fail(reason="no disk")
    shown = place.run("message", "jobs", put).stdout
    lines = shown.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["id", put],
        ["queue", place.jobs.name],
        ["state", "available"],
    ]
    assert "header       kind=image" in lines
    assert "payload      25 bytes" in lines
    [attempt] = [line.split() for line in lines if "no disk" in line and not line.startswith("reason")]
    assert (attempt[:2], attempt[-3:]) == (["1", "me"], ["failed", "no", "disk"])
    assert shown.endswith('{\n  "cat": {\n    "size": [\n      1,\n      2\n    ]\n  }\n}\n')


def test_a_message_is_json_with_all_its_fields_and_its_history(place: Place) -> None:
    put = place.jobs.put("a", headers={"kind": "image"})
    [claimed] = place.jobs.claim(consumer="me")
    claimed.ack()
    found = place.json("message", "jobs", put)
    history = found.pop("history")
    assert found == place.json("peek", "jobs", "--state", "done")[0]
    assert [(each["attempt"], each["consumer"], each["outcome"]) for each in history] == [(1, "me", "acked")]


def test_a_payload_comes_byte_for_byte_or_in_hexadecimal(place: Place) -> None:
    payload = bytes(range(128, 256)) + b"\r\n plain"
    put = place.jobs.put(payload)
    assert place.run("message", "jobs", put, "--payload").stdout_bytes == payload
    shown = place.run("message", "jobs", put).stdout.splitlines()
    assert shown[-1] == f"{'00000080  0d 0a 20 70 6c 61 69 6e':<57}  .. plain"


def test_a_payload_cannot_move_the_cursor(place: Place) -> None:
    put = place.jobs.put("one\n\x1b[2Jtwo")
    assert place.run("message", "jobs", put).stdout.endswith("\none\n\\x1b[2Jtwo\n")


def test_of_a_large_payload_the_beginning_is_shown(place: Place) -> None:
    text, odd = place.jobs.put_many(["x" * 70_000, b"\xff" * 70_000])
    assert "... and 4,464 more: --payload writes all of it" in place.run("message", "jobs", text).stdout
    assert "... and 65,904 more: --payload writes all of it" in place.run("message", "jobs", odd).stdout


def test_a_message_that_is_not_there_is_exit_code_3(place: Place) -> None:
    missing = place.run("message", "jobs", "77", code=3)
    assert (missing.stdout, missing.stderr) == ("", f"queue {place.jobs.name!r} has no message '77'\n")
    quiet = place.run("message", "jobs", "77", "--json", code=3)
    assert quiet.output == ""


def test_payload_and_json_exclude_each_other(place: Place) -> None:
    assert "leave one of them out" in place.run("message", "jobs", "1", "--json", "--payload", code=2).stderr


def test_a_queue_that_is_not_there_is_an_error(place: Place) -> None:
    for command in (["message", "none", "1"], ["extend", "none", "x"]):
        assert "there is no queue 'none'" in place.run(*command, code=1).stderr
