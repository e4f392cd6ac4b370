"""What clients may send in either protocol: it is read, or refused with an error of SQS."""

from contextlib import suppress
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.http.server.sqs.actions import ACTIONS
from penstock.http.server.sqs.errors import SqsError
from penstock.http.server.sqs.shapes import tree

SEND, BATCH, CREATE = (ACTIONS[name].takes for name in ("SendMessage", "SendMessageBatch", "CreateQueue"))
PARTS = sorted(
    {
        *(member.name for action in ACTIONS.values() for member in action.takes.members),
        *(member.tag for action in ACTIONS.values() for member in action.takes.members),
        *("Id", "Name", "Value", "Key", "StringValue", "DataType", "1", "2", "10", "0", "-1", "", "é"),
    }
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(PARTS) | st.text(), inner, max_size=4)
    ),
    max_leaves=8,
)


def form(**pairs: str) -> Any:
    return tree({name.replace("__", "."): value for name, value in pairs.items()})


def test_a_form_says_what_json_says() -> None:
    given = form(
        QueueUrl="u", MessageBody="b", DelaySeconds="5",
        MessageAttribute__1__Name="n", MessageAttribute__1__Value__DataType="Number",
        MessageAttribute__1__Value__StringValue="1",
    )  # fmt: skip
    as_json = {
        "QueueUrl": "u", "MessageBody": "b", "DelaySeconds": 5,
        "MessageAttributes": {"n": {"DataType": "Number", "StringValue": "1"}},
    }  # fmt: skip
    assert SEND.of_form(given) == as_json
    assert SEND.read("", as_json) == as_json


def test_the_items_of_a_form_are_in_the_order_of_their_numbers() -> None:
    numbered = {f"SendMessageBatchRequestEntry.{n}.Id": str(n) for n in (10, 2, 1)}
    assert [each["Id"] for each in BATCH.of_form(tree(numbered))["Entries"]] == ["1", "2", "10"]


def test_a_list_of_one_needs_no_number() -> None:
    takes = ACTIONS["GetQueueAttributes"].takes
    assert takes.of_form(form(AttributeName="All")) == {"AttributeNames": ["All"]}


def test_tags_have_keys_and_attributes_have_names() -> None:
    given = form(
        QueueName="q",
        Tag__1__Key="team",
        Tag__1__Value="a",
        Attribute__1__Name="DelaySeconds",
        Attribute__1__Value="3",
    )
    assert CREATE.of_form(given) == {"QueueName": "q", "tags": {"team": "a"}, "Attributes": {"DelaySeconds": "3"}}


@given(st.sampled_from(sorted(ACTIONS)), st.dictionaries(st.sampled_from(PARTS), anything, max_size=6))
def test_members_are_read_or_refused(name: str, members: dict[str, Any]) -> None:
    with suppress(SqsError):
        ACTIONS[name].takes.read("the request", members)


@example("ListQueues", {"MaxResults..": "1"})
@given(
    st.sampled_from(sorted(ACTIONS)),
    st.dictionaries(
        st.lists(st.sampled_from(PARTS), min_size=1, max_size=7).map(".".join), st.text(), max_size=12
    ),
)
def test_forms_are_read_or_refused(name: str, pairs: dict[str, str]) -> None:
    takes = ACTIONS[name].takes
    with suppress(SqsError):
        takes.read("the request", takes.of_form(tree(pairs)))


@pytest.mark.parametrize(
    ("members", "error"),
    [
        ({"QueueUrl": "u"}, "MissingRequiredParameterException"),
        ({"QueueUrl": "u", "MessageBody": None}, "MissingRequiredParameterException"),
        ({"QueueUrl": "u", "MessageBody": 5}, "SerializationException"),
        ({"QueueUrl": "u", "MessageBody": "b", "DelaySeconds": "5"}, "SerializationException"),
        ({"QueueUrl": "u", "MessageBody": "b", "DelaySeconds": True}, "SerializationException"),
        ({"QueueUrl": "u", "MessageBody": "b", "DelaySeconds": 901}, "InvalidParameterValueException"),
        ({"QueueUrl": "u", "MessageBody": "b", "DelaySeconds": -1}, "InvalidParameterValueException"),
        ({"QueueUrl": "u", "MessageBody": "b", "MessageGroupId": "é"}, "InvalidParameterValueException"),
        ({"QueueUrl": "u", "MessageBody": "b", "MessageGroupId": "g" * 129}, "InvalidParameterValueException"),
        ({"QueueUrl": "u", "MessageBody": "b", "MessageAttributes": []}, "SerializationException"),
        (
            {
                "QueueUrl": "u",
                "MessageBody": "b",
                "MessageAttributes": {"a": {"DataType": "Binary", "BinaryValue": "!"}},
            },
            "SerializationException",
        ),
    ],
)
def test_a_wrong_member_has_the_error_that_amazon_gives(members: dict[str, Any], error: str) -> None:
    with pytest.raises(SqsError) as refused:
        SEND.read("the request", members)
    assert refused.value.name == error


def test_members_that_are_not_known_are_skipped() -> None:
    assert SEND.read("", {"QueueUrl": "u", "MessageBody": "b", "Tomorrow": {}}) == {
        "QueueUrl": "u",
        "MessageBody": "b",
    }


def test_an_entry_of_a_batch_fails_alone() -> None:
    entries = [{"Id": "a", "MessageBody": "b"}, {"Id": "b", "MessageBody": "b", "DelaySeconds": 901}]
    (_, good), (name, bad) = BATCH.read("", {"QueueUrl": "u", "Entries": entries})["Entries"]
    assert (good["MessageBody"], name, type(bad)) == ("b", "b", SqsError)


@example({"\b": "\r", "&": "<"})
@given(st.dictionaries(st.text(), st.text(), max_size=3))
def test_any_text_is_well_formed_xml(tags: dict[str, str]) -> None:
    gives = ACTIONS["ListQueueTags"].gives
    found = Xml.fromstring("".join(gives.as_xml("Result", {"Tags": tags})))
    given = {each.findtext("Key"): each.findtext("Value") for each in found.iter("Tag")}
    if all(
        letter in "\t\n\r" or (letter >= " " and letter not in "\ufffe\uffff")
        for letter in "".join([*tags, *tags.values()])
    ):
        assert given == tags
