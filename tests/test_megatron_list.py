"""The list of weights and prefixes that a command line or recipe gives."""

import collections
import warnings

import pytest

from nodecache.megatron import get_blend_from_list


@pytest.mark.parametrize(
    ("blend", "found"),
    [
        (None, None),
        (["a"], (["a"], None)),
        ([" a ", "b", "c\n"], (["a", "b", "c"], None)),
        (["a", "b"], (["a", "b"], None)),
        (["30", "a", "70", " b "], (["a", "b"], [30.0, 70.0])),
        ([30, "a", 0.5, "b"], (["a", "b"], [30.0, 0.5])),
        (("1e-3", "a"), (["a"], [0.001])),
        (["0", "a", "1", "b"], (["a", "b"], [0.0, 1.0])),
        (["1_000", "a", "2", "b"], (["a", "b"], [1000.0, 2.0])),
        (collections.UserList(["1", "a"]), (["a"], [1.0])),
    ],
    ids=str,
)
def test_prefixes_and_weights_are_told_apart(blend, found):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert get_blend_from_list(blend) == found


@pytest.mark.parametrize(
    ("blend", "found", "said"),
    [
        (["30", "a", "70"], (["30", "a", "70"], None), "2 of 3 entries look like weights .*is a prefix missing"),
        (["a", "70", "b"], (["a", "70", "b"], None), "1 of 3 entries looks like a weight"),
        (["a", "30", "b", "70"], (["a", "30", "b", "70"], None), "2 of 4 entries .*beginning with a weight"),
        (["1", "2", "3"], (["1", "2", "3"], None), "3 of 3 entries"),
        (["1", "2"], (["2"], [1.0]), r"blend\[1\] is '2', a prefix that looks like a weight"),
    ],
    ids=str,
)
def test_a_prefix_that_looks_like_a_weight_is_taken_as_megatron_takes_it_with_a_warning(blend, found, said):
    with pytest.warns(UserWarning, match=said) as warned:
        assert get_blend_from_list(blend) == found
    assert warned[0].filename == __file__


@pytest.mark.parametrize(
    ("blend", "said"),
    [
        ([], "blend is []"),
        ("30 a", "blend is '30 a'"),
        (b"a", "blend is b'a'"),
        ({"a": 1}, "blend is {'a': 1}"),
        ({"a"}, "blend is {'a'}"),
        (5, "blend is 5"),
        (["1", "a", "x", "b"], r"blend\[2\] is 'x'"),
        (["x", "a", "1", "b"], r"blend\[0\] is 'x'"),
        (["1", "a", "nan", "b"], r"blend\[2\] is 'nan'"),
        (["inf", "a"], r"blend\[0\] is 'inf'"),
        (["1", "a", "-1", "b"], r"blend\[2\] is '-1'"),
        ([1, 2], r"blend\[1\] is 2"),
        ([None], r"blend\[0\] is None"),
        ([10**400, "a", 1, "b"], r"blend\[0\]"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_neither_is_an_error_that_names_the_element(blend, said):
    with pytest.raises(ValueError, match=said.replace("[]", r"\[\]")):
        get_blend_from_list(blend)
