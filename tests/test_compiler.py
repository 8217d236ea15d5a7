"""The compiler: found as a shell would, known by what it says of itself, and asked again only when it changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

import nodecache
from nodecache import compiler as module
from nodecache import lock, packages
from nodecache.compiler import find_compiler, which
from nodecache.errors import ToolchainError
from nodecache.recipe import Recipe
from nodecache.root import ensure_folders, open_root
from nodecache.spec import Spec, read_sources


@pytest.fixture
def place():
    found = open_root()
    ensure_folders(found)
    return found


def wrapper(path: Path, version: str = "", real: str = "c++") -> Path:
    """A wrapper that reports a version of its own."""
    says = f"case $1 in --version) echo '{version}'; exit;; esac\n" if version else ""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\n{says}exec {real} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def asked(monkeypatch) -> list[list[str]]:
    """All commands that are run to ask a tool what it is."""
    commands: list[list[str]] = []
    real = module.run_tool

    def run(command):
        commands.append(command)
        return real(command)

    monkeypatch.setattr(module, "run_tool", run)
    return commands


def test_two_versions_at_one_path_are_two_keys_and_one_version_at_two_is_no_stale_hit(tiny, tmp_path, monkeypatch):
    """Case 37."""
    path = wrapper(tmp_path / "c++", "g++ 12.1")
    monkeypatch.setenv("CXX", str(path))
    source = tiny()
    first = nodecache.load("tiny", source).__nodecache__
    wrapper(path, "g++ 12.2")
    second = nodecache.load("tiny", source).__nodecache__
    assert first.key != second.key
    monkeypatch.setenv("CXX", str(wrapper(tmp_path / "other/c++", "g++ 12.2")))
    assert nodecache.load("tiny", source).add(2, 3) == 5
    wrapper(path, "g++ 12.1")
    monkeypatch.setenv("CXX", str(path))
    assert nodecache.load("tiny", source).__nodecache__.key == first.key


def test_what_it_said_is_remembered_until_it_changes(place, tmp_path, monkeypatch, asked):
    path = wrapper(tmp_path / "c++")
    monkeypatch.setenv("CXX", str(path))
    find_compiler(place)
    assert asked
    asked.clear()
    find_compiler(place)
    assert asked == []
    path.touch()
    find_compiler(place)
    assert asked


def test_an_upgrade_behind_a_wrapper_is_noticed(place, tmp_path, monkeypatch, asked):
    """ccache stays as it is when the compiler behind it is replaced."""
    real = wrapper(tmp_path / "real/cc1plus")
    front = tmp_path / "bin/g++"
    front.parent.mkdir()
    front.write_text(f'#!/bin/sh\ncase $1 in -print-prog-name=cc1plus) echo {real}; exit;; esac\nexec c++ "$@"\n')
    front.chmod(0o755)
    monkeypatch.setenv("CXX", str(front))
    find_compiler(place)
    asked.clear()
    find_compiler(place)
    assert asked == []
    real.write_text(real.read_text() + "# upgraded\n")
    find_compiler(place)
    assert asked


def test_a_wrapper_is_asked_again_behind_another_path(place, tmp_path, monkeypatch, asked):
    """A module system changes PATH, and the wrapper calls another compiler."""
    monkeypatch.setenv("CXX", str(wrapper(tmp_path / "bin/cxx", real="g++")))
    first = find_compiler(place).version
    wrapper(tmp_path / "module/g++", "g++ 99", real=str(which("g++")))
    monkeypatch.setenv("PATH", f"{tmp_path}/module:{os.environ['PATH']}")
    assert find_compiler(place).version == "g++ 99"
    monkeypatch.setenv("PATH", os.environ["PATH"].partition(":")[2])
    assert find_compiler(place).version == first


def test_a_wrapper_and_its_compiler_both_take_part(place, tmp_path, monkeypatch):
    front = tmp_path / "ccache"
    front.write_text('#!/bin/sh\nexec "$@"\n')
    front.chmod(0o755)
    inner = wrapper(tmp_path / "g++")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CXX", f"{front} ./g++ -m64")
    found = find_compiler(place)
    assert found.command == [str(front), str(inner)]
    assert found.programs == [str(front), str(inner)]
    assert found.words == ["-m64"]


def test_flags_in_cxx_count_and_are_used(tiny, monkeypatch):
    source = tiny(expression="VALUE")
    for value in (1, 2):
        monkeypatch.setenv("CXX", f"c++ -DVALUE={value}")
        assert nodecache.load("tiny", source).add(0, 0) == value


def test_a_chosen_linker_counts(place, monkeypatch):
    if shutil.which("ld.gold") is None:
        pytest.skip("there is no second linker here")
    assert find_compiler(place, "gold").linker != find_compiler(place, "bfd").linker
    monkeypatch.setenv("CXX", "c++ -fuse-ld=gold")
    assert "gold" in find_compiler(place).linker.lower()


def test_a_link_that_points_to_another_compiler_is_noticed(place, tmp_path, monkeypatch):
    """As update-alternatives does it."""
    for name in ("one", "two"):
        wrapper(tmp_path / name, f"g++ {name}")
    link = tmp_path / "c++"
    monkeypatch.setenv("CXX", str(link))
    found = []
    for name in ("one", "two"):
        link.unlink(missing_ok=True)
        link.symlink_to(name)
        found.append(find_compiler(place))
    assert [each.version for each in found] == ["g++ one", "g++ two"]
    assert [each.programs for each in found] == [[str(tmp_path / "one")], [str(tmp_path / "two")]]


def test_programs_are_found_as_a_shell_finds_them(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/tool").write_text("no program")
    (tmp_path / "b/tool").mkdir(parents=True)
    found = wrapper(tmp_path / "c/tool")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "a:b:c::/nowhere")
    assert which("tool") == str(found)
    assert which("c/tool") == str(found)
    assert which("absent") is None
    assert which("a/tool") is None


@pytest.mark.parametrize("chosen", ["/nowhere/c++", "no-such-compiler", ""])
def test_no_compiler_is_a_cause_and_a_remedy(chosen, place, monkeypatch, tmp_path):
    """Case 69."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", chosen)
    with pytest.raises(ToolchainError, match=r"CXX") as caught:
        find_compiler(place)
    assert "\n" not in str(caught.value)


def test_unbalanced_quotes_in_a_variable_are_a_sentence(place, monkeypatch):
    monkeypatch.setenv("CXX", "c++ 'x")
    with pytest.raises(nodecache.SpecError, match="quotes"):
        find_compiler(place)


def test_a_package_is_found_without_the_import_system_and_identified_by_its_files(tmp_path, monkeypatch):
    folder = tmp_path / "pybind11/include/pybind11/detail"
    folder.mkdir(parents=True)
    (tmp_path / "pybind11/__init__.py").write_text("raise RuntimeError('imported')\n")
    (folder / "common.h").write_text("#define PYBIND11_VERSION_MAJOR 2\n")
    monkeypatch.setattr(packages.sys, "path", [str(tmp_path)])
    monkeypatch.delitem(packages.sys.modules, "pybind11", raising=False)
    assert packages.package_folder("pybind11") == str(tmp_path / "pybind11")
    first = packages.identity("pybind11")
    (folder / "common.h").write_text("#define PYBIND11_VERSION_MAJOR 3\n")
    assert packages.identity("pybind11") not in {first, "absent"}
    assert packages.identity("no_such_package_at_all") == "absent"


def test_the_cuda_toolkit_is_found_by_its_variables_first(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "path"))
    assert packages.cuda_home() == str(tmp_path / "path")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert packages.cuda_home() == str(tmp_path / "home")
    monkeypatch.setenv("CUDA_HOME", "")
    monkeypatch.delenv("CUDA_PATH")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert packages.cuda_home() in {None, "/usr/local/cuda"}


ASKING = """\
import sys, time
from nodecache.compiler import find_compiler
from nodecache.root import open_root
time.sleep(max(0.0, float(sys.argv[1]) - time.time()))
print(find_compiler(open_root()).version.splitlines()[0])
"""


def _questions(folder, monkeypatch):
    """A compiler that notes each ``--version``, slowly."""
    wrapper, noted = folder / "asked-c++", folder / "asked"
    wrapper.write_text(
        f'#!/bin/sh\nfor word; do [ "$word" = --version ] && echo . >> {noted} && sleep 0.3; done\nexec c++ "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    return noted


def test_of_many_processes_that_begin_at_once_one_asks_the_compiler(tmp_path, monkeypatch, start):
    noted = _questions(tmp_path, monkeypatch)
    at = time.time() + 1.5
    runs = [start(ASKING, at) for _ in range(6)]
    said = {run.wait().out for run in runs}
    assert len(said) == 1
    assert noted.read_text() == ".\n"


def test_who_waits_in_vain_for_the_answer_asks_too(tmp_path, monkeypatch, root, start):
    """The process that asks is stopped, or its file system is slow."""
    noted = _questions(tmp_path, monkeypatch)
    start(ASKING, 0).wait()
    (memory,) = (path for path in (root / "tools").iterdir() if path.suffix != ".lock")
    memory.unlink()
    fd = lock.open_lock(f"{memory}.lock")
    assert lock.try_exclusive(fd, f"{memory}.lock")
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    assert find_compiler(open_root()).target
    assert noted.read_text() == ".\n.\n"
    lock.close(fd)


def test_without_locks_everybody_asks(tmp_path, monkeypatch):
    noted = _questions(tmp_path, monkeypatch)

    def refuse(*_):
        raise lock.LocksUnsupported

    monkeypatch.setattr(lock, "try_exclusive", refuse)
    assert find_compiler(open_root()).target
    assert noted.read_text() == ".\n"


@pytest.mark.parametrize("tool", ["as", "ld"])
def test_a_tool_that_was_missing_is_asked_once_it_is_there(place, tool, start):
    """The answer of a moment in which binutils were not installed must not be taken for what the compiler can do."""
    ask = "from nodecache.root import open_root; from nodecache.compiler import find_compiler\n"
    ask += "found = find_compiler(open_root()); print(found.as_deps, found.link_deps)"
    path = subprocess.run(
        ["c++", f"-print-prog-name={tool}"], check=True, capture_output=True, text=True
    ).stdout.strip()
    masked = Path(place.path, "masked")
    masked.write_text("")
    hide = f'mount --bind {masked} "$(realpath {which(path)})" && exec "$@"'
    namespace = ("unshare", "--mount", "--propagation", "private", "sh", "-c", hide, "sh")
    assert "False" in start(ask, prefix=namespace).wait(30).out
    assert start(ask).wait(30).out.split() == ["True", "True"]


def test_a_tool_that_could_not_be_run_is_asked_again(place, tmp_path, monkeypatch):
    """A tool that is killed, or cannot fork under a tight process limit, has not answered."""
    assembler = tmp_path / "bin/as"
    assembler.parent.mkdir()
    shutil.copy("/bin/false", assembler)
    fake = tmp_path / "g++"
    fake.write_text(f'#!/bin/sh\n[ "$1" = -print-prog-name=as ] && echo {assembler} || exec c++ "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    assert not find_compiler(place).as_deps
    assembler.write_text('#!/bin/sh\nexec as "$@"\n')
    assert find_compiler(place).as_deps


def test_what_the_tools_can_write_down_is_in_the_key(tiny, place, monkeypatch):
    """An entry whose linked files are not known must not answer where they are."""
    spec = Spec("tiny", read_sources([tiny()]))
    complete = Recipe(place, spec)
    monkeypatch.setattr(module.Compiler, "dependency_output", "assembler")
    assert Recipe(place, spec).key != complete.key
