"""A warning about several drafters is one line."""

from tauscope_client.runs.drafter_warnings import grouped


def test_the_same_text_about_several_drafters_is_one_line():
    said = [
        ("a", "slow kernels"),
        ("b", "slow kernels"),
        ("a", "odd mask"),
        ("c", "slow kernels"),
        ("b", "slow kernels"),
    ]
    assert grouped(said) == ["drafters 'a', 'b' and 'c': slow kernels", "drafter 'a': odd mask"]
    assert grouped([]) == []
