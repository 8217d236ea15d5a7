"""A build that fails: told once to everybody who waited, with the compiler's words."""

from __future__ import annotations

from pathlib import Path

import pytest

import nodecache

LOAD_AND_TELL = """\
import json, sys, time
import nodecache
try:
    nodecache.load("tiny", [sys.argv[1]])
except nodecache.BuildError as error:
    print(json.dumps({"text": str(error), "first": error.first_error, "log": error.log, "attempt": error.attempt,
                      "at": time.time()}))
    sys.exit(3)
"""

DIAGNOSTIC = "echo 'tiny.cpp:3:1: error: the flux is inverted' >&2; echo 'tiny.cpp:3:1: note: turn it' >&2; exit 1"


def test_a_failing_compile_is_tried_once_and_told_to_all(start, tiny, compiler):
    """Cases 11 and 18."""
    compiler.set(before="sleep 3", instead=DIAGNOSTIC)
    source = tiny()
    children = [start(LOAD_AND_TELL, source) for _ in range(8)]
    results = [child.wait(60) for child in children]
    assert [result.status for result in results] == [3] * 8
    told = [result.json for result in results]
    assert compiler.compiles == 1
    assert len({each["attempt"] for each in told}) == 1
    assert all("the flux is inverted" in each["text"].splitlines()[0] for each in told)
    assert not any("shared object" in each["text"] for each in told)
    assert max(each["at"] for each in told) - min(each["at"] for each in told) < 20


def test_a_later_call_tries_afresh(start, tiny, compiler):
    compiler.set(instead=DIAGNOSTIC)
    source = tiny()
    assert start(LOAD_AND_TELL, source).wait().status == 3
    compiler.set()
    assert start(LOAD_AND_TELL, source).wait().status == 0
    assert compiler.compiles == 2


def test_the_long_output_appears_once_a_node(start, tiny, compiler):
    """Case 58: the builder's exception has it, each waiter's the first error and where the rest is."""
    lines = 'for i in $(seq 200); do echo "tiny.cpp:$i:1: error: complaint $i" >&2; done; exit 1'
    compiler.set(before="sleep 2", instead=lines)
    source = tiny()
    results = [child.wait(60) for child in [start(LOAD_AND_TELL, source) for _ in range(8)]]
    long = [result for result in results if "complaint 200" in result.json["text"]]
    assert len(long) == 1
    for result in results:
        assert "complaint 1" in result.json["text"].splitlines()[0]
        assert result.json["log"] in result.json["text"]
        if result not in long:
            assert len(result.json["text"].splitlines()) < 8
    assert "complaint 200" in Path(results[0].json["log"]).read_text()


def test_a_syntax_error_is_told_with_file_line_and_the_compilers_sentence(tiny):
    """Case 57."""
    source = tiny()
    lines = source.read_text().splitlines()
    assert "return PyLong" in lines[5]
    lines[5] = lines[5].replace(";", "")
    source.write_text("\n".join(lines) + "\n")
    with pytest.raises(nodecache.BuildError) as caught:
        nodecache.load("tiny", [source])
    head = "\n".join(str(caught.value).splitlines()[:30])
    assert f"{source}:6:" in head
    assert "expected ';' before" in head
    assert Path(caught.value.log).exists()
    assert str(caught.value.log) in str(caught.value)
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize(
    "instead", ["exit 0", "for word; do last=$word; done; : > $last; exit 0"], ids=["nothing", "an empty file"]
)
def test_a_compiler_that_lies_about_success_publishes_nothing(tiny, compiler, root, instead):
    """Case 25."""
    compiler.set(instead=instead)
    with pytest.raises(nodecache.BuildError, match=r"cannot find obj/0\.o|tiny\.so is not usable"):
        nodecache.load("tiny", [tiny()])
    assert list((root / "entries").iterdir()) == []
    assert list((root / "staging").iterdir()) == []
    compiler.set()
    assert nodecache.load("tiny", [tiny()]).add(2, 3) == 5


def test_a_module_without_its_init_function_is_a_build_error_with_the_remedy(tiny):
    with pytest.raises(nodecache.BuildError, match=r"does not export PyInit_other\.\n.*Name the module other"):
        nodecache.load("other", [tiny()])


def test_verbose_changes_neither_key_nor_command(tiny, root):
    """Case 11, second half."""
    quiet = nodecache.load("tiny", [tiny()])
    assert nodecache.load("tiny", [tiny()], verbose=True) is quiet
    assert len(list((root / "entries").iterdir())) == 1


def test_a_missing_library_at_load_is_an_error_and_no_rebuild_loop(tiny, compiler, tmp_path):
    import subprocess

    library = tmp_path / "lib" / "libgone.so"
    library.parent.mkdir()
    (tmp_path / "gone.c").write_text("int gone(void) { return 1; }\n")
    subprocess.run(["cc", "-shared", "-o", library, tmp_path / "gone.c"], check=True)
    source = tiny(expression="gone()", extra='extern "C" int gone();')
    with pytest.raises(nodecache.LoadError, match=r"libgone\.so is not found by the loader"):
        nodecache.load("tiny", [source], extra_ldflags=[f"-L{library.parent}", "-lgone"])
    assert compiler.compiles == 1


@pytest.mark.parametrize("gone", ["build.ninja", "step", "src", "tmp", "obj", ""], ids=str)
def test_a_cleaner_in_the_staging_folder_is_no_failure_of_the_sources(gone, start, tiny, compiler, root):
    """The build starts over once; the second time is an error, and nobody is told that the source is wrong."""
    compiler.set(before="rm -rf $PWD/" + gone if gone else "rm -rf $PWD", instead="exit 1")
    source = tiny()
    with pytest.raises(nodecache.BuildInterrupted, match="removed from its staging folder"):
        nodecache.load("tiny", source)
    assert compiler.compiles == 2
    assert not list((root / "attempts").glob("*/failure"))
    compiler.set()
    assert nodecache.load("tiny", source).add(2, 3) == 5


@pytest.mark.parametrize("gone", ["", "lock", "src", "obj"], ids=lambda gone: gone or "all")
def test_a_staging_folder_that_is_cleaned_once_costs_no_rank_its_module(
    gone, start, tiny, compiler, load_program, root
):
    """One of the ranks builds again, with one warning; all get the module."""
    once = f"mkdir {root}/cleaned 2> /dev/null && {{ sleep 1; rm -rf $PWD/{gone}; }}"
    compiler.set(before=once)
    source = tiny()
    results = [rank.wait(60) for rank in [start(load_program, "tiny", source) for _ in range(4)]]
    assert [result.status for result in results] == [0] * 4, [result.err for result in results]
    assert [result.json["sum"] for result in results] == [5] * 4
    assert compiler.compiles == 2
    said = [line for result in results for line in result.err.splitlines() if "removed from its staging" in line]
    assert len(said) == 1, said
    assert f"Keep temp cleaners away from {root}." in said[0]
    assert list((root / "staging").iterdir()) == []
