"""What a request makes its answer carry."""

import pytest

from tauscope_wire.expectations import DraftExpectation, HiddenExpectation
from tauscope_wire.messages import DraftRequest, HiddenByHandle, HiddenRequest, LogitsRequest, Prompt

TOKENS = [1, 2, 3, 4, 5]


def test_both_conventions_expect_the_same_planes() -> None:
    output = HiddenRequest(token_ids=TOKENS, layers=[-1, 3, 1], final_norm=True)
    as_tuple = HiddenRequest(token_ids=TOKENS, layers=[0, 4, 2], convention="tuple", final_norm=True)
    for request in (output, as_tuple):
        assert HiddenExpectation.of_request(request).planes == (-1, 3, 1, "final_norm")


@pytest.mark.parametrize(
    ("positions", "expected"), [(None, "all"), ("last", "last"), ((1, 3), (1, 3))], ids=["all", "last", "range"]
)
def test_positions_are_those_asked_for(positions: object, expected: object) -> None:
    assert HiddenExpectation.of_request(HiddenRequest(token_ids=TOKENS, positions=positions)).positions == expected


@pytest.mark.parametrize(
    ("return_", "data", "handle"), [("inline", True, False), ("handle", False, True), ("both", True, True)]
)
def test_data_and_handle_come_as_asked_for(return_: str, data: bool, handle: bool) -> None:
    expect = HiddenExpectation.of_request(HiddenRequest(token_ids=TOKENS, **{"return": return_}))
    assert (expect.data, expect.handle) == (data, handle)


def test_logits_come_only_when_asked_for() -> None:
    asked = LogitsRequest(top_k=4)
    assert HiddenExpectation.of_request(HiddenRequest(token_ids=TOKENS)).logits is False
    assert HiddenExpectation.of_request(HiddenRequest(token_ids=TOKENS, logits=asked)).logits == asked


def test_token_ids_are_expected_only_where_they_were_sent() -> None:
    assert HiddenExpectation.of_request(HiddenRequest(token_ids=TOKENS)).token_ids == TOKENS
    assert HiddenExpectation.of_request(HiddenRequest(text="x")).token_ids is None
    assert issubclass(HiddenRequest, Prompt)


def drafts(**changes: object) -> DraftRequest:
    return DraftRequest(
        drafter="d", hidden=HiddenByHandle(handle="h"), token_ids=TOKENS, **{"response_start": 2, **changes}
    )


def test_response_means_every_position_up_to_the_last_but_one() -> None:
    assert list(DraftExpectation.of_request(drafts()).anchors or ()) == [2, 3]
    assert list(DraftExpectation.of_request(drafts(response_start=4)).anchors or ()) == []
    assert list(DraftExpectation.of_request(drafts(anchors=[1, 3])).anchors or ()) == [1, 3]
