"""Which licence statements let a package into the training data."""

import pytest
from deploy.demo.train.licences import judge, spdx_is_permissive


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("BSD-3-Clause AND 0BSD AND Zlib", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("MIT OR GPL-3.0-only", True),
        ("MIT AND (GPL-3.0-only OR BSD-2-Clause)", True),
        ("MIT AND MPL-2.0", False),
        ("GPL-3.0-or-later WITH GCC-exception-3.1", False),
        ("LicenseRef-Proprietary", False),
        ("MIT AND", False),
        ("", False),
    ],
)
def test_an_spdx_expression_is_permissive_only_if_every_required_part_is(expression, allowed):
    assert spdx_is_permissive(expression) is allowed


def test_the_expression_outranks_classifiers_and_classifiers_outrank_the_field():
    mit = ["License :: OSI Approved :: MIT License"]
    assert not judge("MPL-2.0", mit, "MIT").allowed
    assert judge(None, mit, "GPL").allowed
    assert judge(None, [], "Apache 2.0 License").allowed


def test_one_unclear_classifier_keeps_a_package_out():
    stated = ["License :: OSI Approved :: MIT License", "License :: DFSG approved"]
    assert not judge(None, stated, None).allowed


def test_a_licence_text_and_a_missing_licence_are_no_evidence():
    assert not judge(None, [], "Permission is hereby granted, free of charge, " * 3).allowed
    assert not judge(None, ["Programming Language :: Python"], None).allowed
    assert not judge(None, ["License :: OSI Approved"], None).allowed
