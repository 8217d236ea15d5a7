"""Disks: full, read-only, noexec, over a limit: errors that say what, where, how much and which variable."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

import nodecache
from nodecache import root as module
from nodecache.errors import BuildError, LoadError, RootError
from tests.lease_checks import SAY_WHEN_WAITING, waiting

if TYPE_CHECKING:
    from pathlib import Path

as_root = pytest.mark.skipif(os.geteuid() != 0 and os.environ.get("CI") != "true", reason="needs root to mount")

TELL = """\
import json, sys, time
import nodecache
try:
    module = nodecache.load(sys.argv[1], sys.argv[2])
except nodecache.NodecacheError as error:
    print(json.dumps({"error": type(error).__name__, "text": str(error)}))
else:
    print(json.dumps({"role": module.__nodecache__.role, "sum": module.add(2, 3)}))
"""

BIG = "char big[150 << 10] = {1};"
"""Makes 150 KiB of object."""


@pytest.fixture
def mounted(tmp_path, monkeypatch):
    """Mount a small file system and put the root there: ``mounted("size=1m,noexec") -> folder``."""
    places = []

    def mount(options: str) -> Path:
        place = tmp_path / f"mount{len(places)}"
        place.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"{options},mode=700", "test", place], capture_output=True, check=False
        )
        if done.returncode:
            if os.environ.get("CI") == "true":
                pytest.fail(f"nothing can be mounted: {done.stderr}")
            pytest.skip(f"nothing can be mounted here: {done.stderr}")
        places.append(place)
        monkeypatch.setenv("NODECACHE_ROOT", str(place / "root"))
        return place

    yield mount
    for place in places:
        subprocess.run(["umount", "--lazy", place], check=True)


def fill(place: Path, keep: int) -> Path:
    """Fill a file system but for some bytes."""
    disk = os.statvfs(place)
    ballast = place / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_frsize - keep)
    return ballast


def published(place: Path) -> list[Path]:
    return [path for folder in ("entries", "staging", "recipes") for path in (place / "root" / folder).glob("*")]


@as_root
def test_a_noexec_root_is_refused_before_a_compile_with_path_and_variable(tiny, compiler, mounted, start):
    """Case 49."""
    place = mounted("size=9m,noexec")
    said = start(TELL, "tiny", tiny()).wait().json
    assert said["error"] == "RootError"
    for part in ("noexec", str(place), "NODECACHE_ROOT"):
        assert part in said["text"]
    assert compiler.compiles == 0
    assert published(place) == []


@as_root
def test_a_root_that_became_noexec_says_so_on_a_hit(tiny, compiler, mounted, start):
    place = mounted("size=9m")
    source = tiny()
    assert start(TELL, "tiny", source).wait().json["role"] == "built"
    subprocess.run(["mount", "-o", "remount,noexec", place], check=True)
    said = start(TELL, "tiny", source).wait().json
    assert said["error"] == "LoadError"
    assert "noexec" in said["text"]
    assert "NODECACHE_ROOT" in said["text"]
    assert compiler.compiles == 1


@as_root
@pytest.mark.parametrize("keep", [8 << 10, 120 << 10])
def test_a_full_root_says_what_where_how_much_and_the_next_load_works(keep, tiny, compiler, mounted, start):
    """Case 82: known before the compile, or met in the middle of it."""
    place = mounted("size=1m")
    source = tiny(extra=BIG)
    ballast = fill(place, keep)
    said = start(TELL, "tiny", source).wait().json
    assert said["error"] == "RootError"
    for part in ("No space", str(place), "ENOSPC", "bytes", "NODECACHE_ROOT"):
        assert part in said["text"], said["text"]
    assert compiler.compiles == (0 if keep < module.LEAST_BYTES else 1)
    assert published(place) == []
    ballast.unlink()
    assert start(TELL, "tiny", source).wait().json == {"role": "built", "sum": 5}


@as_root
def test_a_disk_that_fills_up_is_met_by_one_build_and_told_to_all_who_wait(
    tiny, compiler, mounted, start, tmp_path, wait_until
):
    """Nobody compiles only to meet the same full disk; once space was freed, a later call builds."""
    place = mounted("size=1m")
    source = tiny(extra=BIG)
    signs = tmp_path / "signs"
    signs.mkdir()
    compiler.set(before=f"while [ ! -e {signs}/go ]; do sleep 0.05; done")
    ranks = [start(SAY_WHEN_WAITING + TELL, "tiny", source, env={"SIGNS": str(signs)}) for _ in range(10)]
    wait_until(lambda: waiting(signs) == len(ranks) - 1, 60, "waiters")
    ballast = fill(place, 110 << 10)
    (signs / "go").touch()
    told = [rank.wait(60).json for rank in ranks]
    assert [each["error"] for each in told] == ["RootError"] * len(ranks)
    for each in told:
        assert each["text"].startswith("No space for compiling"), each["text"]
        assert each["text"].endswith("Free some, or set NODECACHE_ROOT to a folder of your own on a local disk.")
        assert str(place) in each["text"]
    assert sum("was not tried again here" in each["text"] for each in told) >= len(ranks) - 2
    assert compiler.compiles <= 2
    assert published(place) == []
    ballast.unlink()
    assert start(TELL, "tiny", source).wait().json == {"role": "built", "sum": 5}


def test_a_limit_of_another_kind_is_tried_once_more_and_then_told_to_all_who_wait(
    tiny, compiler, start, tmp_path, wait_until
):
    """The next process may have more descriptors left; when it has not, the others need not try."""
    source = tiny()
    signs = tmp_path / "signs"
    signs.mkdir()
    gate = f"while [ ! -e {signs}/go ]; do sleep 0.05; done"
    compiler.set(before=gate, instead='echo "as: x.o: Too many open files" >&2; exit 1')
    ranks = [start(SAY_WHEN_WAITING + TELL, "tiny", source, env={"SIGNS": str(signs)}) for _ in range(6)]
    wait_until(lambda: waiting(signs) == len(ranks) - 1, 60, "waiters")
    (signs / "go").touch()
    for rank in ranks:
        said = rank.wait(60).json
        assert said["error"] == "RootError"
        assert said["text"].startswith("Too many files are open for compiling")
        assert said["text"].endswith("Allow more: ulimit -n 4096.")
    assert compiler.compiles == 2
    compiler.set()
    assert start(TELL, "tiny", source).wait().json == {"role": "built", "sum": 5}


def test_a_file_system_that_does_not_tell_its_size_is_not_full(monkeypatch):
    """Some FUSE file systems say 0 of 0."""
    monkeypatch.setattr(module.os, "statvfs", lambda _: os.statvfs_result([4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255]))
    module.check_space(module.open_root(), runs_code=True)


@as_root
def test_a_root_without_inodes_says_so(tiny, compiler, mounted, start):
    mounted("size=9m,nr_inodes=8")
    said = start(TELL, "tiny", tiny()).wait().json
    assert "inodes are left" in said["text"]
    assert compiler.compiles == 0


@as_root
def test_a_read_only_root_still_serves_hits_and_refuses_builds_before_a_compile(tiny, compiler, mounted, start):
    place = mounted("size=9m")
    source = tiny()
    assert start(TELL, "tiny", source).wait().json["role"] == "built"
    subprocess.run(["mount", "-o", "remount,ro", place], check=True)
    assert start(TELL, "tiny", source).wait().json["role"] == "hit"
    said = start(TELL, "tiny", tiny(expression="a * b")).wait().json
    assert said["error"] == "RootError"
    for part in ("EROFS", str(place), "NODECACHE_ROOT"):
        assert part in said["text"]
    assert compiler.compiles == 1
    subprocess.run(["mount", "-o", "remount,rw", place], check=True)
    assert start(TELL, "tiny", source).wait().json["sum"] == 6


@as_root
def test_a_full_tmpdir_is_named_and_not_the_root(tiny, mounted, start, monkeypatch, tmp_path):
    """Case 82: the compilers' temporary files go to TMPDIR."""
    place = mounted("size=64k")
    monkeypatch.setenv("NODECACHE_ROOT", str(tmp_path / "root"))
    (place / "small").mkdir()
    source = tiny(extra=f"extern const char big[] = {{{'1,' * (50 << 10)}0}};")
    said = start(TELL, "tiny", source, env={"TMPDIR": str(place / "small")}).wait().json
    assert said["error"] == "RootError"
    for part in ("temporary files", str(place), "TMPDIR", "ENOSPC"):
        assert part in said["text"]
    assert list((place / "small").iterdir()) == []
    assert start(TELL, "tiny", source).wait().json["role"] == "built"


def test_temporary_files_go_below_tmpdir_and_go_away(tiny, compiler, tmp_path, monkeypatch, start):
    """Case 82."""
    (tmp_path / "scratch").mkdir()
    compiler.set(before=f'echo "$(realpath "$TMPDIR")" > {tmp_path}/told')
    start(TELL, "tiny", tiny(), env={"TMPDIR": str(tmp_path / "scratch")}).wait()
    assert (tmp_path / "told").read_text().startswith(f"{tmp_path}/scratch/")
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize("limit", [512, 12_000])
def test_a_file_size_limit_is_told_and_the_next_load_works(limit, tiny, compiler, start, root):
    source = tiny()
    code = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n{TELL}"
    child = start(code, "tiny", source).wait()
    assert child.status == 0, child.err
    assert child.json["error"] == "RootError"
    for part in ("file size limit", "EFBIG", "ulimit"):
        assert part in child.json["text"], child.json["text"]
    assert list((root / "entries").glob("*")) == []
    assert start(TELL, "tiny", source).wait().json == {"role": "built", "sum": 5}


@pytest.mark.parametrize(
    ("sentence", "name"),
    [
        ("fatal error: error writing to /x: Disk quota exceeded", "EDQUOT"),
        ("final link failed: File too large", "EFBIG"),
        ("cannot open output: Read-only file system", "EROFS"),
    ],
)
def test_a_tool_that_was_refused_something_did_not_fail(sentence, name, tiny, compiler, root):
    """It is no verdict on the source: the next call tries again."""
    compiler.set(instead=f'echo "{sentence}" >&2; exit 1')
    source = tiny()
    with pytest.raises(RootError, match=name):
        nodecache.load("tiny", source)
    compiler.set()
    assert nodecache.load("tiny", source).add(2, 3) == 5


def test_a_sentence_of_the_programmers_about_space_is_no_full_disk(tiny, compiler):
    source = tiny(extra='#error "No space left on device"')
    with pytest.raises(BuildError):
        nodecache.load("tiny", source)


def test_a_missing_library_at_load_time_is_an_error_with_its_name_and_no_rebuild(tiny, compiler, tmp_path):
    """A driver's library is not on a login node."""
    (tmp_path / "lib").mkdir()
    text = tmp_path / "lib/driver.c"
    text.write_text("int value(void) { return 1; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", text, "-o", tmp_path / "lib/libdriver.so"], check=True)
    source = tiny(expression="value()", extra='extern "C" int value(void);')
    for _ in range(2):
        with pytest.raises(LoadError, match=r"libdriver.so is not found by the loader.*LD_LIBRARY_PATH"):
            nodecache.load("tiny", source, extra_ldflags=[f"-L{tmp_path}/lib", "-ldriver"])
    assert compiler.compiles == 1


@pytest.mark.parametrize(("command", "what"), [("exit 0", "it is not there"), (': > "$out"; exit 0', "it is empty")])
def test_a_compiler_that_leaves_nothing_is_a_build_error(command, what, tiny, compiler, root):
    """Case 25: nothing is published, and the lease is free again."""
    link = f'for out; do :; done; case "$*" in *-shared*) {command};; esac'
    compiler.path.write_text(compiler.path.read_text().replace("done\nexec c++", f"done\n{link}\nexec c++"))
    source = tiny()
    with pytest.raises(BuildError, match=what):
        nodecache.load("tiny", source)
    assert list((root / "entries").glob("*")) == []
    compiler.set()
    assert nodecache.load("tiny", source).add(2, 3) == 5


STALE = """\
if mkdir {once} 2> /dev/null; then
    exec strace -f -qq -o /dev/null -P {header} -e trace=read -e inject=read:error=ESTALE:when=1 c++ "$@"
fi
exec c++ "$@"
"""


@pytest.fixture
def stale(tiny, compiler, tmp_path):
    """A source with a header that the first compile finds replaced on its server while it reads it."""
    if shutil.which("strace") is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("strace is not installed")
    source = tiny(expression="a + b + ZERO", extra='#include "zero.h"')
    header = source.with_name("zero.h")
    header.write_text("#define ZERO 0\n")
    compiler.set(instead=STALE.format(once=tmp_path / "once", header=header))
    return source


def test_a_header_that_another_host_replaces_while_it_is_read_is_no_failure_of_the_source(stale, compiler, start, root):
    told = start(TELL, "tiny", stale).wait().json
    assert told["error"] == "RootError"
    assert re.search(r"error: (\S*/)?zero\.h: Stale file handle", told["text"])
    assert told["text"].endswith("Nothing was published. Call again.")
    assert not list(root.glob("attempts/*/failure*"))
    assert start(TELL, "tiny", stale).wait().json == {"role": "built", "sum": 5}
    assert compiler.compiles == 2


def test_who_waited_for_the_build_with_the_stale_header_builds_with_the_new_one(stale, compiler, start):
    results = [child.wait(100).json for child in [start(TELL, "tiny", stale) for _ in range(4)]]
    assert [each.get("sum") for each in results].count(5) >= 3
    assert [each["error"] for each in results if "error" in each] in (["RootError"], [])
    assert compiler.compiles == 2


@pytest.mark.parametrize(
    "line", ['#error "zero.h: Stale file handle"', 'static_assert(false, "zero.h: Stale file handle");']
)
def test_a_source_that_says_stale_file_handle_itself_fails_as_any_other(tiny, line):
    with pytest.raises(BuildError, match="Stale file handle"):
        nodecache.load("tiny", [tiny(extra=line)])
