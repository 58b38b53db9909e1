"""Which tokens of a conversation the assistant said. A token here is a character, so that masks can be read."""

import pytest

from tauscope_client.extract.masks import answered_spans
from tauscope_wire.messages import Message

STOP = ">"


def talk(*contents):
    roles = ["user", "assistant"]
    return [Message(role=roles[place % 2], content=content) for place, content in enumerate(contents)]


def plain(messages, asks):
    text = "".join(f"<{message.role[0]}:{message.content}>\n" for message in messages)
    return text + ("<a:" if asks else "")


def thinking(messages, asks):
    """Thoughts (before a `|`) are shown in the last turn only, as reasoning models' templates do."""
    last = len(messages) - 1
    shown = [
        f"<{m.role[0]}:{m.content if place == last else m.content.split('|')[-1]}>\n"
        for place, m in enumerate(messages)
    ]
    return "".join(shown) + ("<a:" if asks else "")


def said(messages, render, loss="assistant"):
    whole = render(messages, False)
    spans = answered_spans(messages, whole, render, loss=loss, stop_ids=[STOP])
    return [whole[start:stop] for start, stop in spans]


@pytest.mark.parametrize(
    ("loss", "expected"),
    [("assistant", ["yes>", "no>"]), ("last", ["no>"]), ("all", ["<u:a>\n<a:yes>\n<u:b>\n<a:no>\n"])],
)
def test_answers_count_with_the_stop_that_ends_them(loss, expected):
    assert said(talk("a", "yes", "b", "no"), plain, loss) == expected


def test_a_conversation_without_an_answer_has_no_span():
    assert said(talk("a"), plain) == []


def test_answers_that_a_template_shortens_later_count_as_they_stand_in_the_text():
    assert said(talk("a", "hm|yes", "b", "so|no"), thinking) == ["yes>", "so|no>"]


def test_an_answer_begins_where_the_text_leaves_the_prompt():
    def opened(messages, asks):  # the prompt opens a thought that this answer does not have
        return plain(messages, asks) + ("(think)" if asks else "")

    assert said(talk("a", "yes"), opened) == ["yes>"]


def test_a_turn_whose_history_was_rewritten_has_no_span():
    def forgetful(messages, asks):  # two turns and more lose the first
        return plain(messages[2:] if len(messages) > 2 else messages, asks)

    assert said(talk("a", "yes", "b", "no"), forgetful) == ["no>"]
