"""Modules in one process: which object a load gives, and what a load of something else does to it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import nodecache

EIGHT_THREADS = """\
import json, sys, threading
import nodecache
barrier, results = threading.Barrier(8), []
def work(source):
    barrier.wait()
    results.append((source, nodecache.load("tiny", [source])))
threads = [threading.Thread(target=work, args=(sys.argv[1 + number % (len(sys.argv) - 1)],)) for number in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps({"sums": [[source, module.add(2, 3)] for source, module in results],
                  "modules": len({id(module) for _, module in results})}))
"""


def test_the_same_key_gives_the_same_module_object(tiny, compiler):
    source = tiny()
    assert nodecache.load("tiny", [source]) is nodecache.load("tiny", [source])
    assert compiler.compiles == 1


def test_a_changed_source_gives_new_code_and_the_old_module_goes_on(tiny):
    """Case 28."""
    old = nodecache.load("tiny", [tiny(expression="1")])
    new = nodecache.load("tiny", [tiny(expression="2")])
    assert (old.add(0, 0), new.add(0, 0)) == (1, 2)


BOUND = """\
#include <pybind11/pybind11.h>
struct {type} {{}};
PYBIND11_MODULE(st, m) {{
    m.def("value", [] {{ return {value}; }});
    pybind11::class_<{type}>(m, "Class");
}}
"""


@pytest.fixture
def bound(tmp_path):
    """Write ``st.cpp``, a pybind11 module with a function ``value`` and a class, and return its path."""

    def write(value, type_name):
        path = tmp_path / "st.cpp"
        path.write_text(BOUND.format(value=value, type=type_name))
        return path

    return write


def test_pybind11_modules_of_one_name_each_answer_for_their_own_source(bound):
    """pybind11 3 keeps finished modules by name; an edited source must not get the module from before the edit."""
    modules = [nodecache.load("st", [bound(number, f"Type{number}")]) for number in range(3)]
    assert [module.value() for module in modules] == [0, 1, 2]
    assert {module.__name__ for module in modules} == {"st"}
    assert {module.__spec__.name for module in modules} == {"st"}
    assert {module.Class.__module__ for module in modules} == {"st"}


def test_other_flags_give_another_pybind11_module_of_the_same_name(bound):
    source = bound("VALUE", "TYPE")
    one, two = (
        nodecache.load("st", [source], extra_cflags=[f"-DVALUE={value}", f"-DTYPE=Flagged{value}"]) for value in (1, 2)
    )
    assert (one.value(), two.value()) == (1, 2)


def test_a_module_that_others_loaded_under_the_name_is_not_taken_for_ours(bound, start):
    """A plain import of another file may have put a module of that name into the interpreter's cache."""
    from importlib.util import module_from_spec, spec_from_file_location

    built = start(
        "import sys, nodecache; print(nodecache.load('st', sys.argv[1:]).__file__)", bound(1, "Foreign")
    ).wait(60)
    spec = spec_from_file_location("st", built.out.strip())
    foreign = module_from_spec(spec)
    spec.loader.exec_module(foreign)
    ours = nodecache.load("st", [bound(2, "Ours")])
    assert ours is not foreign
    assert (foreign.value(), ours.value(), foreign.__spec__.origin) == (1, 2, built.out.strip())


def test_a_type_that_pybind11_has_registered_is_told_with_what_to_do(bound):
    nodecache.load("st", [bound(1, "Twice")])
    with pytest.raises(nodecache.LoadError, match=r"same C\+\+ type.*module_local.*restart the process"):
        nodecache.load("st", [bound(2, "Twice")])


def test_submodules_of_an_edited_pybind11_module_are_new_as_well(tmp_path):
    """pybind11 finds a submodule by its name in sys.modules, and would only add overloads to the one from before."""
    source = tmp_path / "st.cpp"
    modules = []
    for value in range(2):
        source.write_text(
            "#include <pybind11/pybind11.h>\nPYBIND11_MODULE(st, m) {"
            f'm.def_submodule("part").def("value", [] {{ return {value}; }}); }}\n'
        )
        modules.append(nodecache.load("st", [source]))
    assert [module.part.value() for module in modules] == [0, 1]


def test_inline_variables_of_an_edited_module_have_the_new_values(tiny):
    """GCC marks them as unique in the process, and the loader then takes those that came first."""
    modules = []
    for value in (1, 2):
        extra = f"inline int K = {value};\ntemplate <class T> struct S {{ static int v; }};\n"
        extra += f"template <class T> int S<T>::v = {value};"
        modules.append(nodecache.load("tiny", tiny(expression="10 * K + S<int>::v", extra=extra)))
    assert [module.add(0, 0) for module in modules] == [11, 22]


def test_a_module_with_the_name_of_a_loaded_package_does_not_take_its_place(tiny, start):
    """Python itself enters modules with single-phase initialization into sys.modules."""
    program = """\
import json, sys
import nodecache
module = nodecache.load("json", sys.argv[1:])
import json as again
print(module.add(2, 3), again is json, module is not json)
"""
    assert start(program, tiny("json")).wait().out == "5 True True\n"


def test_the_module_tells_how_this_process_came_to_it(tiny, start, load_program):
    module = nodecache.load("tiny", tiny())
    told = module.__nodecache__
    assert told.role == "built"
    assert told.path == module.__file__
    assert told.seconds > 0
    later = start(load_program, "tiny", tiny()).wait().json
    assert (later["role"], later["key"]) == ("hit", told.key)


def complaints(ended):
    """What it wrote to stderr, but for waits, which a busy machine makes long enough to be told."""
    return [line for line in ended.err.splitlines() if not line.startswith("waiting for ")]


def test_eight_threads_compile_once_and_get_one_module(start, tiny, compiler):
    """Case 14, first half."""
    ended = start(EIGHT_THREADS, tiny()).wait(60)
    assert complaints(ended) == []
    result = ended.json
    assert [value for _, value in result["sums"]] == [5] * 8
    assert result["modules"] == 1
    assert compiler.compiles == 1


def test_threads_that_want_different_code_under_one_name_each_get_theirs(start, tiny, compiler, tmp_path):
    """Case 14, second half."""
    plus = tiny(folder=tmp_path / "plus")
    minus = tiny(expression="a - b", folder=tmp_path / "minus")
    ended = start(EIGHT_THREADS, plus, minus).wait(60)
    assert complaints(ended) == []
    result = ended.json
    assert sorted(result["sums"]) == sorted([[str(plus), 5], [str(minus), -1]] * 4)
    assert compiler.compiles == 2


def test_threads_and_processes_together_compile_once(start, tiny, compiler, load_program):
    """Case 8, second half: eight threads of one process beside eight processes."""
    source = tiny()
    threads = start(EIGHT_THREADS, source)
    processes = [start(load_program, "tiny", source) for _ in range(8)]
    assert [value for _, value in threads.wait(60).json["sums"]] == [5] * 8
    assert [process.wait(60).json["sum"] for process in processes] == [5] * 8
    assert compiler.compiles == 1


def test_two_processes_build_different_code_under_one_name(start, tiny, load_program, tmp_path):
    """Case 15, first half."""
    one = tiny(expression="1", folder=tmp_path / "one")
    two = tiny(expression="2", folder=tmp_path / "two")
    children = [start(load_program, "tiny", source) for source in (one, two)]
    assert [child.wait(60).json["sum"] for child in children] == [1, 2]


def test_the_same_source_under_two_definitions_is_two_entries(tiny, compiler):
    """Case 15, second half."""
    source = tiny(expression="N")
    values = [nodecache.load("tiny", [source], extra_cflags=[f"-DN={n}"]).add(0, 0) for n in (1, 2) * 5]
    assert values == [1, 2] * 5
    assert compiler.compiles == 2


def test_several_sources_with_one_file_name_make_one_module(tiny, tmp_path):
    one = tiny(expression="other(a, b)", extra="long other(long, long);")
    two = tmp_path / "more" / "tiny.cpp"
    two.parent.mkdir()
    two.write_text("long other(long a, long b) { return a * b; }\n")
    assert nodecache.load("tiny", [one, two]).add(3, 4) == 12


def test_a_signal_handler_may_load(tiny, start):
    program = """\
import os, signal, sys
import nodecache
signal.signal(signal.SIGUSR1, lambda *_: print(nodecache.load("tiny", [sys.argv[1]]).add(2, 3), flush=True))
os.kill(os.getpid(), signal.SIGUSR1)
print(nodecache.load("tiny", [sys.argv[1]]).add(4, 5))
"""
    assert start(program, tiny()).wait().out == "5\n9\n"


def test_an_import_of_the_package_makes_and_starts_nothing(root, start):
    program = "import nodecache, os, sys; print(os.listdir('/proc/self/task'), 'torch' in sys.modules)"
    result = start(program).wait()
    assert result.status == 0
    assert result.out.count("'") == 2
    assert "False" in result.out
    assert not root.exists()


def test_a_module_object_is_found_again_after_a_fork(start, tiny):
    program = """\
import os, sys
import nodecache
module = nodecache.load("tiny", [sys.argv[1]])
pid = os.fork()
if pid == 0:
    os._exit(0 if nodecache.load("tiny", [sys.argv[1]]) is module else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert start(program, tiny()).wait().out == "0\n"


def test_a_missing_source_is_an_error_that_names_it():
    with pytest.raises(nodecache.SpecError, match=r"/nowhere/x\.cpp cannot be read: No such file"):
        nodecache.load("x", ["/nowhere/x.cpp"])


def test_an_entry_is_read_only_and_private(tiny):
    module = nodecache.load("tiny", [tiny()])
    folder = Path(module.__file__).parent
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} <= {0o400, 0o500}
    assert folder.stat().st_mode & 0o777 == 0o700


def test_loads_of_many_keys_in_many_threads_all_end(tiny, compiler):
    sources = [tiny(f"tiny{number}") for number in range(4)]
    sums: list[int] = []

    def work(number: int) -> None:
        for shift in range(4):
            at = (number + shift) % 4
            sums.append(nodecache.load(f"tiny{at}", [sources[at]]).add(2, 3))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sums == [5] * 32
    assert compiler.compiles == 4
