"""Accepted drafts against a loop."""

import numpy as np

from tauscope_client.probe.accepted import accepted_at_anchors


def by_hand(drafts, text, anchors):
    counts = []
    for row, anchor in zip(drafts, anchors, strict=True):
        count = 0
        for step, draft in enumerate(row, start=1):
            if anchor + step >= len(text) or text[anchor + step] != draft:
                break
            count += 1
        counts.append(count)
    return counts


def test_accepted_drafts_are_the_prefix_that_the_text_continues_with():
    rng = np.random.default_rng(0)
    text = rng.integers(0, 2, size=60)
    anchors = np.arange(10, 59)
    drafts = rng.integers(0, 2, size=(len(anchors), 5))
    found = accepted_at_anchors(drafts, text, anchors)
    assert found.tolist() == by_hand(drafts, text, anchors)
    assert set(found.tolist()) >= {0, 1, 2, 3}


def test_drafts_past_the_end_are_rejected_whatever_they_say():
    assert accepted_at_anchors([[5, 0, 0]], [0, 1, 5], [1]).tolist() == [1]
    assert accepted_at_anchors([[0, 0, 0]], [0, 1, 5], [2]).tolist() == [0]
