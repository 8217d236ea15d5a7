"""The list of weights and prefixes that a command line or recipe gives."""

import collections

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
        (["1", "2", "3"], (["1", "2", "3"], None)),
        (["1", "2"], (["2"], [1.0])),
        (collections.UserList(["1", "a"]), (["a"], [1.0])),
    ],
    ids=str,
)
def test_prefixes_and_weights_are_told_apart(blend, found):
    assert get_blend_from_list(blend) == found


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
