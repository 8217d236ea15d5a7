"""Inline sources and their generated binding."""

from __future__ import annotations

import pytest

import nodecache
from nodecache.inline import binding

ADD = "int add(int a, int b) { return a + b; }\n"


def test_functions_are_bound_with_their_docstrings(compiler):
    module = nodecache.load_inline(
        "inline_add", ADD + "int neg(int a) { return -a; }", functions={"add": 'sum "??/"', "neg": ""}
    )
    assert (module.add(2, 3), module.neg(4)) == (5, -4)
    assert 'sum "??/"' in module.add.__doc__
    again = nodecache.load_inline("inline_add", [ADD, "int neg(int a) { return -a; }"], functions=["add"])
    assert again.add(1, 1) == 2
    assert compiler.compiles == 2


def test_one_name_a_list_and_a_mapping_are_understood():
    assert binding("f") == binding(["f"]) == binding({"f": "f"})
    assert '"g", &space::g' in binding(["space::g"])


@pytest.mark.parametrize("functions", ["f()", ["a b"], {"x-y": ""}, [3], 5], ids=str)
def test_what_is_no_function_name_is_refused(functions):
    with pytest.raises(nodecache.SpecError, match="no name of a function"):
        binding(functions)


@pytest.mark.parametrize("text", [None, b"int f();", 5, ["int f();", None]], ids=str)
def test_what_is_no_source_text_is_refused(text):
    with pytest.raises(nodecache.SpecError, match="cpp_sources is or has what is no text"):
        nodecache.load_inline("inline_none", text)
