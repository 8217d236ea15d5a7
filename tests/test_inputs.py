"""Inputs: headers and linked files by content, wherever they lie and however they are named."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import nodecache
from nodecache import compile as compile_module
from nodecache.digest import digest_bytes, digest_file, read_bytes
from nodecache.errors import InputsChanged
from nodecache.extension import obtain
from nodecache.inputs import MOST, Eyes, Inputs
from nodecache.learn import Began, learn, parse_dependencies, parse_link_dependencies
from nodecache.spec import Spec, read_sources


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def edit_unseen(path: Path, text: str) -> None:
    """Change a file without changing its size or its time."""
    status = path.stat()
    assert len(text) == status.st_size
    path.write_text(text)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def role(module) -> str:
    return module.__nodecache__.role


def test_a_nested_header_edited_unseen_rebuilds_and_an_unrelated_one_does_not(tiny, compiler, tmp_path):
    """Case 33."""
    source = tiny(expression="a + b + VALUE", extra='#include "a.h"')
    write(tmp_path / "src/a.h", "#include <sub/b.h>\n")
    header = write(tmp_path / "inc/sub/b.h", "#define VALUE 10\n")
    write(tmp_path / "inc/sub/unrelated.h", "1\n")

    def load():
        return nodecache.load("tiny", source, extra_include_paths=[tmp_path / "inc"])

    assert load().add(2, 3) == 15
    edit_unseen(header, "#define VALUE 20\n")
    assert load().add(2, 3) == 25
    write(tmp_path / "inc/sub/unrelated.h", "2\n")
    assert role(load()) == "built"  # the module of before, from this process's memory
    assert compiler.compiles == 2


OTHER_IMAGE = """\
import subprocess, sys, nodecache
source, folder = sys.argv[1:]
subprocess.run(["mount", "--bind", folder, "/usr/include/protocols"], check=True)
module = nodecache.load("tiny", [source])
print(module.add(0, 0), module.__nodecache__.role)
"""


SYSTEM_CHANGES = """\
import os, pathlib, subprocess, sys
source, change, upper = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "none", upper], check=True)
os.mkdir(upper + "/new"), os.mkdir(upper + "/work")
folders = f"lowerdir=/usr,upperdir={upper}/new,workdir={upper}/work"
subprocess.run(["mount", "-t", "overlay", "none", "-o", folders, "/usr"], check=True)
multiarch = subprocess.run(["c++", "-print-multiarch"], check=True, capture_output=True, text=True).stdout.strip()
include = pathlib.Path("/usr/include")
def header(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#define VALUE {value}\\n")
    os.utime(path, (1, 1))
    os.utime(path.parent, (1, 1))
def link(path, target):
    path.with_name("new").symlink_to(target)
    path.with_name("new").rename(path)
    os.utime(path.parent, (1, 1))
before, after = {
    "a link in the system's folder leads to another header":
        (lambda: (header(include / "v1.h", 1), header(include / "v2.h", 2), link(include / "seen.h", "v1.h")),
         lambda: link(include / "seen.h", "v2.h")),
    "a linked folder leads elsewhere":
        (lambda: (header(include / "one/seen.h", 1), header(include / "two/seen.h", 2), link(include / "sub", "one"),
                  (include / "seen.h").write_text("#include <sub/seen.h>\\n")),
         lambda: link(include / "sub", "two")),
    "a header appears in a folder that is searched before":
        (lambda: header(include / "seen.h", 1), lambda: header(include / multiarch / "seen.h", 2)),
    "a header is installed below /usr/local":
        (lambda: header(include / "seen.h", 1), lambda: header(pathlib.Path("/usr/local/include/seen.h"), 2)),
    "a header appears in a subfolder that is there already":
        (lambda: (header(include / "sub/deep.h", 1), header(include / multiarch / "sub/other.h", 3),
                  (include / "seen.h").write_text("#include <sub/deep.h>\\n")),
         lambda: header(include / multiarch / "sub/deep.h", 2)),
}[change]
before()
load = "import sys, nodecache; m = nodecache.load('tiny', sys.argv[1:]); print(m.add(0, 0), m.__nodecache__.role)"
for step in (None, None, after, None):
    if step:
        step()
    subprocess.run([sys.executable, "-c", load, source], check=True)
"""


@pytest.mark.parametrize(
    "change",
    [
        "a link in the system's folder leads to another header",
        "a linked folder leads elsewhere",
        "a header appears in a folder that is searched before",
        "a header is installed below /usr/local",
        "a header appears in a subfolder that is there already",
    ],
)
def test_a_change_of_what_the_compiler_finds_by_itself_is_a_miss(change, tiny, start, tmp_path):
    """Package managers, update-alternatives and `make install` do this; here with modification times set back."""
    source = tiny(expression="VALUE", extra="#include <seen.h>")
    (tmp_path / "upper").mkdir()
    namespace = ("unshare", "--mount", "--propagation", "private")
    ended = start(SYSTEM_CHANGES, source, change, tmp_path / "upper", prefix=namespace).wait(100)
    assert ended.out.splitlines() == ["1 built", "1 hit", "2 built", "2 hit"], ended.err


def test_system_headers_of_another_image_are_told_apart_by_content(tiny, start, tmp_path):
    """Two images over one cache root, made with all modification times set to 1: each gets its own header's module."""
    source = tiny(expression="VALUE", extra="#include <protocols/adv.h>")
    for value in (1, 2):
        header = write(tmp_path / f"image{value}/adv.h", f"#define VALUE {value}\n")
        os.utime(header, (1, 1))
        os.utime(header.parent, (1, 1))
    namespace = ("unshare", "--mount", "--propagation", "private")
    answers = [
        start(OTHER_IMAGE, source, tmp_path / f"image{value}", prefix=namespace).wait(60).out.split()
        for value in (1, 2, 1, 2)
    ]
    assert answers == [["1", "built"], ["2", "built"], ["1", "hit"], ["2", "hit"]]


def test_a_header_that_shadows_another_rebuilds(tiny, compiler, tmp_path):
    """Case 33: earlier among the include paths, and beside the source."""
    source = tiny(expression="a + b + VALUE", extra='#include "value.h"')
    write(tmp_path / "second/value.h", "#define VALUE 2\n")
    (tmp_path / "first").mkdir()

    def load():
        return nodecache.load("tiny", source, extra_include_paths=[tmp_path / "first", tmp_path / "second"])

    assert load().add(0, 0) == 2
    write(tmp_path / "first/value.h", "#define VALUE 1\n")
    assert load().add(0, 0) == 1
    write(tmp_path / "src/value.h", "#define VALUE 0\n")
    assert load().add(0, 0) == 0
    (tmp_path / "src/value.h").unlink()
    assert load().add(0, 0) == 1
    assert compiler.compiles == 3


def test_a_header_that_hides_a_systems_rebuilds(tiny, compiler, tmp_path):
    """Case 33, where what is hidden lies outside the include paths."""
    source = tiny(expression="EX_OK", extra="#include <sysexits.h>")
    (tmp_path / "inc").mkdir()

    def load():
        return nodecache.load("tiny", source, extra_include_paths=[tmp_path / "inc"])

    assert load().add(0, 0) == 0
    write(tmp_path / "inc/other.h", "")
    load()
    assert compiler.compiles == 1
    write(tmp_path / "inc/sysexits.h", "#define EX_OK 5\n")
    assert load().add(0, 0) == 5
    assert compiler.compiles == 2


def test_isystem_is_searched_after_include_paths_whatever_their_order_in_the_call(tiny, tmp_path):
    source = tiny(expression="VALUE", extra="#include <value.h>")
    write(tmp_path / "late/value.h", "#define VALUE 2\n")
    (tmp_path / "early").mkdir()
    flags = ["-isystem", str(tmp_path / "late"), f"-I{tmp_path / 'early'}"]
    assert nodecache.load("tiny", source, flags).add(0, 0) == 2
    write(tmp_path / "early/value.h", "#define VALUE 1\n")
    assert nodecache.load("tiny", source, flags).add(0, 0) == 1


@pytest.mark.parametrize("way", ["-include", "-imacros", "generated", "relative", "outside"])
def test_a_header_counts_however_it_is_named(way, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    header = write(tmp_path / "inc/value.h", "#define VALUE 1\n")
    flags = {"-include": ["-include", "inc/value.h"], "-imacros": ["-imacros", "inc/value.h"]}.get(way, ["-Iinc"])
    extra = {"generated": "#include <value.h>", "relative": '#include "../inc/value.h"'}.get(way, "")
    if way == "outside":
        extra = f'#include "{header}"'
    source = tiny(expression="VALUE", extra=extra)
    assert nodecache.load("tiny", source, flags).add(0, 0) == 1
    header.write_text("#define VALUE 2\n")
    assert nodecache.load("tiny", source, flags).add(0, 0) == 2


@pytest.mark.parametrize("variable", ["CPATH", "CPLUS_INCLUDE_PATH"])
def test_headers_found_through_a_variable_count_and_relative_folders_in_it_are_the_callers(
    variable, tiny, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, "inc")
    header = write(tmp_path / "inc/value.h", "#define VALUE 1\n")
    source = tiny(expression="VALUE", extra="#include <value.h>")
    assert nodecache.load("tiny", source).add(0, 0) == 1
    header.write_text("#define VALUE 2\n")
    assert nodecache.load("tiny", source).add(0, 0) == 2


def library(folder: Path, value: int, kind: str) -> Path:
    """A library with ``int value()``."""
    folder.mkdir(parents=True, exist_ok=True)
    text = write(folder / "v.c", f"int value(void) {{ return {value}; }}\n")
    path = folder / {"object": "v.o", "archive": "libv.a", "shared": "libv.so"}[kind]
    objects = folder / "tmp.o"
    subprocess.run(["cc", "-fPIC", "-c", text, "-o", objects], check=True)
    path.unlink(missing_ok=True)
    if kind == "object":
        shutil.copy(objects, path)
    elif kind == "archive":
        subprocess.run(["ar", "rcs", path, objects], check=True)
    else:
        subprocess.run(["cc", "-shared", objects, "-o", path], check=True)
    return path


@pytest.mark.parametrize("kind", ["object", "archive", "shared"])
@pytest.mark.parametrize("place", ["lib", "a $lib 'of' \"mine\" #1"])
def test_a_linked_file_counts_by_content(kind, place, tiny, compiler, tmp_path, monkeypatch):
    folder = tmp_path / place
    monkeypatch.chdir(tmp_path)
    source = tiny(expression="value()", extra='extern "C" int value(void);')
    flags = [f"{place}/v.o"] if kind == "object" else [f"-L{place}", "-lv", f"-Wl,-rpath,{folder}"]
    library(folder, 1, kind)
    assert nodecache.load("tiny", source, extra_ldflags=flags).add(0, 0) == 1
    nodecache.load("tiny", source, extra_ldflags=flags)
    assert compiler.compiles == 1
    library(folder, 2, kind)
    again = nodecache.load("tiny", source, extra_ldflags=flags)
    assert compiler.compiles == 2
    if kind != "shared":  # this process has the first one mapped
        assert again.add(0, 0) == 2


def test_a_library_that_shadows_another_rebuilds(tiny, tmp_path):
    source = tiny(expression="value()", extra='extern "C" int value(void);')
    (tmp_path / "first").mkdir()
    library(tmp_path / "second", 2, "archive")
    flags = [f"-L{tmp_path}/first", f"-L{tmp_path}/second", "-lv"]
    assert nodecache.load("tiny", source, extra_ldflags=flags).add(0, 0) == 2
    library(tmp_path / "first", 1, "archive")
    assert nodecache.load("tiny", source, extra_ldflags=flags).add(0, 0) == 1


@pytest.mark.parametrize(
    "form", [["-Wl,--version-script=exports.map"], ["-Wl,--version-script,exports.map"], ["-Xlinker", "exports.map"]]
)
def test_a_linker_script_counts_by_content(form, tiny, compiler, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "{{ global: PyInit_tiny; local: {}; }};\n" if form[0] != "-Xlinker" else "VERSION {{ {{ local: {}; }}; }}\n"
    script = write(tmp_path / "exports.map", text.format("x*"))
    source = tiny()
    nodecache.load("tiny", source, extra_ldflags=form)
    nodecache.load("tiny", source, extra_ldflags=form)
    assert compiler.compiles == 1
    script.write_text(text.format("y*"))
    nodecache.load("tiny", source, extra_ldflags=form)
    assert compiler.compiles == 2


def test_a_file_that_the_assembler_includes_counts(tiny, tmp_path):
    data = write(tmp_path / "data.bin", "A")
    source = tiny(
        expression="data[0]",
        extra=f'asm(".section .rodata\\n.globl data\\n.hidden data\\ndata: .incbin \\"{data}\\"\\n.text\\n");\n'
        'extern "C" __attribute__((visibility("hidden"))) const char data[];',
    )
    assert nodecache.load("tiny", source).add(0, 0) == ord("A")
    data.write_text("B")
    assert nodecache.load("tiny", source).add(0, 0) == ord("B")


def test_switching_between_two_branches_hits_from_the_third_time_on(tiny, compiler, tmp_path):
    source = tiny(expression="VALUE", extra='#include "value.h"')
    header = tmp_path / "src/value.h"
    for number in (1, 2, 1, 2, 1, 2):
        header.write_text(f"#define VALUE {number}\n")
        assert nodecache.load("tiny", source).add(0, 0) == number
    assert compiler.compiles == 2


ONCE = "if mkdir {once} 2>/dev/null; then {change}; fi"
"""Shell text for the compiler: make a change in the first compile and not in the next."""


def test_an_edit_during_the_build_is_built_again_and_all_get_what_is_kept(tiny, compiler, tmp_path, caplog):
    source = tiny(expression="VALUE", extra='#include "value.h"')
    header = write(tmp_path / "src/value.h", "#define VALUE 1\n")
    compiler.set(before=ONCE.format(once=tmp_path / "once", change=f"printf '#define VALUE 2\n' > {header}"))
    with caplog.at_level(logging.WARNING, "nodecache"):
        module = nodecache.load("tiny", source)
    assert (module.add(0, 0), role(module)) == (2, "built")
    assert "value.h changed while 'tiny' was being built: building it again" in caplog.text
    assert nodecache.load("tiny", source) is module
    assert compiler.compiles == 2


def test_a_header_that_was_torn_while_it_was_compiled_is_compiled_again(tiny, compiler, tmp_path, start, load_program):
    """It is whole again when the compiler ends: only its change time tells."""
    source = tiny(expression="VALUE", extra='#include "value.h"')
    header = write(tmp_path / "src/value.h", "#define VALUE 1234\n")
    tear = f"printf '#define VALUE 1\n' > {header}"
    mend = f"printf '#define VALUE 1234\n' > {header}"
    compiler.set(
        instead=f'if mkdir {tmp_path}/once 2>/dev/null; then {tear}; c++ "$@"; {mend}; exit; fi; exec c++ "$@"'
    )
    assert nodecache.load("tiny", source).add(0, 0) == 1234
    assert start(load_program, "tiny", source).wait().json["role"] == "hit"


def test_a_header_that_was_torn_when_the_compiler_failed_is_compiled_again(tiny, compiler, tmp_path):
    source = tiny(expression="VALUE", extra='#include "value.h"')
    header = write(tmp_path / "src/value.h", "#define VALUE 1234\n")
    tear, mend = f"printf '#define VAL' > {header}", f"printf '#define VALUE 1234\n' > {header}"
    compiler.set(
        instead=f'if mkdir {tmp_path}/once 2>/dev/null; then {tear}; c++ "$@"; s=$?; {mend}; exit $s; fi; exec c++ "$@"'
    )
    assert nodecache.load("tiny", source).add(0, 0) == 1234
    assert compiler.compiles == 2


def test_a_header_that_changes_in_every_build_is_an_error_that_names_it(tiny, compiler, tmp_path, root):
    source = tiny(expression="VALUE", extra='#include "value.h"')
    header = write(tmp_path / "src/value.h", "#define VALUE 1\n")
    compiler.set(before=f"printf '#define VALUE 2\n' > {header}")
    with pytest.raises(InputsChanged, match=r"src/value\.h changed.*in each of 5 builds\. Stop what writes"):
        nodecache.load("tiny", source)
    assert compiler.compiles == 5
    assert list((root / "staging").iterdir()) == []
    compiler.set()
    assert nodecache.load("tiny", source).add(0, 0) == 2


def test_a_header_whose_server_has_a_clock_ahead_of_ours_is_kept(tiny, compiler, tmp_path, monkeypatch, caplog):
    """It looks newer than every build; that it is the same before and after one proves that it did not change."""
    source = tiny(expression="VALUE", extra='#include "value.h"')
    write(tmp_path / "src/value.h", "#define VALUE 1\n")
    monkeypatch.setattr(compile_module, "_file_time", lambda _staging: Began(-1, 0, 0))
    assert nodecache.load("tiny", source).__nodecache__.key
    assert compiler.compiles == 2


@pytest.mark.parametrize("change", ["link", "shadow", "delete"])
def test_a_swap_during_the_build_is_seen(change, tiny, compiler, tmp_path):
    """What is as old as can be, yet was put in place meanwhile."""
    source = tiny(expression="VALUE", extra='#include "value.h"')
    write(tmp_path / "one/value.h", "#define VALUE 1\n")
    write(tmp_path / "two/value.h", "#define VALUE 2\n")
    (tmp_path / "early").mkdir()
    link = tmp_path / "inc"
    link.symlink_to("one")
    after = {
        "link": f"ln -sfn two {link}",
        "shadow": f"cp {tmp_path}/two/value.h {tmp_path}/early/value.h",
        "delete": f"rm {tmp_path}/one/value.h; ln -sfn two {link}",
    }[change]
    compiler.set(instead=f'c++ "$@"; status=$?; {ONCE.format(once=tmp_path / "once", change=after)}; exit $status')
    module = nodecache.load("tiny", source, extra_include_paths=[tmp_path / "early", link])
    assert (module.add(0, 0), compiler.compiles) == (2, 2)


def test_a_header_written_just_before_the_call_is_kept(tiny, tmp_path):
    source = tiny(expression="VALUE", extra='#include "value.h"')
    for number in range(5):
        write(tmp_path / "src/value.h", f"#define VALUE {number}\n")
        assert nodecache.load("tiny", source).__nodecache__.key != ""


def test_a_source_edited_during_the_build_belongs_to_the_next_call(tiny, compiler):
    """A key belongs to the bytes that were compiled."""
    source = tiny(expression="1")
    compiler.set(before=f"sed -i 's/FromLong(1)/FromLong(2)/' {source}")
    assert nodecache.load("tiny", source).add(0, 0) == 1
    assert nodecache.load("tiny", source).add(0, 0) == 2


def test_dependency_output_that_a_flag_led_elsewhere_is_not_taken_for_no_headers(tiny, compiler, caplog, tmp_path):
    source = tiny(expression="VALUE", extra='#include "value.h"')
    header = write(tmp_path / "src/value.h", "#define VALUE 1\n")
    compiler.set(before='set -- "$@" -MF /dev/null')
    assert nodecache.load("tiny", source).add(0, 0) == 1
    assert "did not write down what it read" in caplog.text
    header.write_text("#define VALUE 2\n")
    assert nodecache.load("tiny", source).add(0, 0) == 2


def test_a_path_is_not_given_out_for_a_library_that_is_not_kept(tiny, compiler):
    """The file goes with the staging folder, before anybody can open it."""
    compiler.set(before='set -- "$@" -MF /dev/null')
    spec = Spec("tiny", read_sources(tiny()), kind="library")
    with pytest.raises(nodecache.BuildInterrupted, match=r"not known which files it read.*Remove the flag"):
        obtain(spec)
    compiler.set()
    assert Path(obtain(spec)).exists()


def test_a_header_with_an_odd_name_counts(tiny, compiler, tmp_path):
    name = "a $value 'of' #1, ünï.h"
    source = tiny(expression="VALUE", extra=f'#include "{name}"')
    header = write(tmp_path / "src" / name, "#define VALUE 1\n")
    assert nodecache.load("tiny", source).add(0, 0) == 1
    nodecache.load("tiny", source)
    assert compiler.compiles == 1
    header.write_text("#define VALUE 2\n")
    assert nodecache.load("tiny", source).add(0, 0) == 2


def test_a_directorys_header_below_usr_local_is_the_users(tmp_path):
    """People install their own there, in place; a change of its content must show."""

    compiler = SimpleNamespace(
        own=(), system=("/usr/local/include", "/usr/include"), header_folders=(), library_folders=()
    )
    known = SimpleNamespace(roots=[], ranks=[], compiler=compiler)
    here = next((str(p) for p in Path("/usr/local").rglob("*") if p.is_file() and not p.is_symlink()), None)
    if here is None:
        pytest.skip("nothing is installed below /usr/local")
    found, _ = learn(known, [here, "/usr/include/stdio.h"], [], [], Began(-1, 2**62, 2**62))
    assert [place for place, _ in found.files] == [here] or found.packages
    assert [path for path, _ in found.system] == ["/usr/include/stdio.h"]


def as_make(name: str) -> str:
    """A name as GCC writes it into a dependency file."""
    out = ""
    for at, character in enumerate(name):
        if character in " \t":
            slashes = len(name[:at]) - len(name[:at].rstrip("\\"))
            out += "\\" * slashes + "\\"
        elif character == "#":
            out += "\\"
        elif character == "$":
            out += "$"
        out += character
    return out


@given(st.lists(st.text(st.sampled_from("ab/. $#:é'\"\\\t"), min_size=1).filter(lambda n: n.strip() == n), max_size=5))
@example(["a b", "c\\ d", "$x", "#y"])
def test_names_in_a_compilers_dependency_file_are_read_back(names):
    names = [name for name in names if not name.endswith("\\") and "\\#" not in name]
    text = "obj/0.o: " + " \\\n ".join(as_make(name) for name in names) + "\n"
    assert parse_dependencies(text) == names


@given(st.text())
def test_noise_for_a_dependency_file_ends_in_names(text):
    assert all(isinstance(name, str) for name in parse_dependencies(text))
    assert all(name.startswith("/") for name in parse_link_dependencies(text, "/x"))


@given(st.text())
@settings(max_examples=200)
def test_noise_for_inputs_is_refused_or_is_not_as_things_are(text):
    try:
        inputs = Inputs.parse(text.split("\n"))
    except ValueError:
        return
    Eyes(["/nowhere"]).same(inputs)


@given(
    st.lists(st.tuples(st.text(), st.just("d" * 40)), max_size=3),
    st.lists(st.text(), max_size=3),
    st.lists(
        st.tuples(
            st.integers(0, 9),
            st.from_regex(r"(\d+\.\d+\.\d+)?", fullmatch=True),
            st.lists(st.text(st.characters(exclude_characters="/"), min_size=1), min_size=1),
        ),
        max_size=3,
    ),
    st.lists(st.tuples(st.text(), st.just("e" * 40)), max_size=3),
)
def test_inputs_are_read_back_as_they_were_written(files, shadows, veils, system):
    inputs = Inputs()
    inputs.files, inputs.shadows, inputs.veils, inputs.system = files, shadows, veils, system
    inputs.packages, inputs.folders = [("torch", "x")], [("/usr/include", "7.8.9")]
    back = Inputs.parse("\n".join(inputs.lines()).split("\n"))
    assert back.lines() == inputs.lines()
    assert (back.files, back.shadows, back.veils, back.system) == (files, shadows, veils, system)


LOOKS = """\
import sys
from nodecache.inputs import Eyes
print(repr(Eyes([]).digest(sys.argv[1])))
"""


@pytest.mark.parametrize("what", ["a device", "a link to a device", "a pipe", "a file without end", "a folder"])
def test_an_input_whose_reading_may_never_end_is_not_read(what, start, tmp_path):
    path = tmp_path / "input"
    if what == "a device":
        path = Path("/dev/zero")
    elif what == "a link to a device":
        path.symlink_to("/dev/zero")
    elif what == "a pipe":
        os.mkfifo(path)
    elif what == "a file without end":
        with path.open("wb") as file:
            file.truncate(1 << 42)
    else:
        path.mkdir()
    assert start(LOOKS, path).wait(20).out == "''\n"


def test_the_null_device_is_an_empty_file():
    assert digest_file("/dev/null") == digest_bytes(read_bytes("/dev/null")) == digest_bytes(b"")


def test_a_file_that_grows_past_the_limit_while_it_is_read_is_refused():
    with pytest.raises(OSError, match="more than 5 bytes"):
        read_bytes("/proc/self/status", 5)  # its status says that it is empty
    with pytest.raises(OSError, match="more than 5 bytes"):
        digest_file("/proc/self/status", 5)


def test_more_inputs_than_any_build_has_are_refused():
    with pytest.raises(ValueError, match="more than any build has"):
        Inputs.parse(["file\tx\t/h"] * (MOST + 1))
