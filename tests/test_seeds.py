"""Seeds: hits from read-only roots, with and without a compiler; and NODECACHE_NO_BUILD."""

from __future__ import annotations

import os
import sysconfig

import pytest

import nodecache
from tests.users import PYTHON, as_root, as_user

QUIET = "import logging; logging.basicConfig()\n"


@pytest.fixture
def seed(tmp_path, tiny, monkeypatch, root):
    """A root with the entry of ``tiny``, as an image would bring it; the root in use is another, and empty."""
    place = tmp_path / "seed"
    monkeypatch.setenv("NODECACHE_ROOT", str(place))
    nodecache.load("tiny", [tiny()])
    monkeypatch.setenv("NODECACHE_ROOT", str(root))
    monkeypatch.setenv("NODECACHE_SEEDS", f"{tmp_path / 'missing'}:{place}")
    return place


def tree(place):
    """All that is in a folder, with the times at which it was written."""
    found = {}
    for folder, below, names in os.walk(place):
        for name in [*below, *names, "."]:
            path = os.path.join(folder, name)
            found[path] = (os.lstat(path).st_mtime_ns, os.lstat(path).st_ino, os.lstat(path).st_ctime_ns)
    return found


def test_a_seed_is_hit_and_nothing_is_written_there(seed, tiny, start, load_program):
    os.utime(next(seed.glob("entries/*/tiny.so")), (1, 1))  # the index would be refreshed, and its use noted
    for name in seed.glob("recipes/*/*"):
        os.utime(name, (1, 1))
    before = tree(seed)
    result = start(load_program, "tiny", tiny()).wait()
    assert result.json["role"] == "hit"
    assert result.json["path"].startswith(str(seed))
    assert tree(seed) == before


def test_a_seed_is_hit_without_a_compiler(seed, tiny, start, load_program):
    result = start(load_program, "tiny", tiny(), env={"PATH": "/nowhere"}).wait()
    assert result.status == 0, result.err
    assert result.json["role"] == "hit"


def test_the_image_need_not_have_the_headers_that_only_a_compiler_reads(seed, tiny, start, load_program):
    # As if /usr/include were not there: the folder has another stamp, and the headers below it cannot be read.
    absent = f"""\
import nodecache.inputs as inputs, os
inputs.folder_stamp = lambda folder: "-"
real = inputs.digest_file
def digest_file(path, limit):
    if path.startswith("/usr/"):
        raise FileNotFoundError(path)
    return real(path, limit)
inputs.digest_file = digest_file
lexists = os.path.lexists
os.path.lexists = lambda path: not path.startswith("/usr/") and lexists(path)
{load_program}"""
    result = start(absent, "tiny", tiny(), env={"PATH": "/nowhere"}).wait()
    assert result.status == 0, result.err
    # With a compiler they must be there: what would be built now is another thing.
    assert start(absent, "tiny", tiny()).wait().json["role"] == "built"


def test_without_a_compiler_a_miss_says_that_there_is_none(seed, tiny, start, load_program):
    result = start(load_program, "tiny", tiny(expression="a - b"), env={"PATH": "/nowhere"}).wait()
    assert "ToolchainError: No C++ compiler is on PATH" in result.err


def test_a_changed_source_is_no_hit_in_a_seed(seed, tiny, start, load_program):
    result = start(load_program, "tiny", tiny(expression="a - b")).wait()
    assert (result.json["role"], result.json["sum"]) == ("built", -1)


def test_a_damaged_seed_is_a_miss(seed, tiny, start, load_program):
    library = next(seed.glob("entries/*/tiny.so"))
    library.unlink()  # it is loaded here
    library.write_bytes(b"")
    assert start(load_program, "tiny", tiny()).wait().json["role"] == "built"


@pytest.mark.parametrize("below", ["", "entries", "recipes"])
def test_a_seed_that_others_may_write_to_is_not_used_and_the_log_says_so(seed, tiny, start, load_program, below):
    (seed / below).chmod(0o777)
    result = start(QUIET + load_program, "tiny", tiny()).wait()
    assert result.json["role"] == "built"
    assert result.err.count("is not used") == 2  # the one that is missing, too
    assert "nobody else may write to" in result.err


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_a_seed_of_another_user_is_not_used(seed, tiny, start, load_program):
    for path in [seed, *seed.rglob("*")]:
        os.chown(path, 12345, 12345)
    result = start(QUIET + load_program, "tiny", tiny()).wait()
    assert result.json["role"] == "built"
    assert "is not used" in result.err


@as_root
def test_another_user_hits_the_seed_that_root_made_readable(tiny, start, load_program, open_folder, uid):
    source = tiny(folder=open_folder)
    seed, mine = open_folder / "seed", open_folder / "mine"
    built = start(load_program, "tiny", source, python=PYTHON, prefix=(*as_user(0), f"NODECACHE_ROOT={seed}")).wait()
    assert built.json["role"] == "built", built.err
    for path in [seed, *seed.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o444)
    mine.mkdir()
    os.chown(mine, uid, uid)
    settings = (f"NODECACHE_ROOT={mine}/root", f"NODECACHE_SEEDS={seed}", "PATH=/nowhere")
    result = start(load_program, "tiny", source, python=PYTHON, prefix=(*as_user(uid), *settings)).wait()
    assert result.status == 0, result.err
    assert result.json["role"] == "hit"


def test_where_nothing_may_be_built_a_miss_names_what_differs(seed, tiny, start, load_program):
    env = {"NODECACHE_NO_BUILD": "1", "CXXFLAGS": "-O1"}
    result = start(load_program, "tiny", tiny(), env=env).wait()
    assert "NotBuilt: 'tiny' is not built, and NODECACHE_NO_BUILD is set" in result.err
    assert "cflags: with -O1" in result.err
    bare = start(load_program, "tiny", tiny(), env={**env, "PATH": "/nowhere"}).wait()
    assert "cflags: with -O1" in bare.err


def test_where_nothing_may_be_built_and_nothing_is_like_it_the_error_says_so(tiny, start, load_program):
    result = start(load_program, "tiny", tiny(), env={"NODECACHE_NO_BUILD": "1"}).wait()
    assert "No entry of that name is in" in result.err
    bare = start(load_program, "tiny", tiny(), env={"NODECACHE_NO_BUILD": "1", "PATH": "/nowhere"}).wait()
    assert "no entry of that name tells of a compiler" in bare.err


def test_where_nothing_may_be_built_a_changed_header_is_named(seed, tiny, tmp_path, start, load_program, root):
    (tmp_path / "src" / "x.h").write_text("#define X 1\n")
    source = tiny(extra='#include "x.h"')
    assert start(load_program, "tiny", source).wait().json["role"] == "built"
    (tmp_path / "src" / "x.h").write_text("#define X 2\n")
    result = start(load_program, "tiny", source, env={"NODECACHE_NO_BUILD": "1"}).wait()
    assert "file 0:x.h" in result.err


def test_a_hit_is_a_hit_where_nothing_may_be_built_and_zero_means_that_it_may(seed, tiny, start, load_program):
    assert start(load_program, "tiny", tiny(), env={"NODECACHE_NO_BUILD": "1"}).wait().json["role"] == "hit"
    env = {"NODECACHE_NO_BUILD": "0", "NODECACHE_SEEDS": ""}
    assert start(load_program, "tiny", tiny(), env=env).wait().json["role"] == "built"


NVCC = """\
#!/bin/sh
[ "$1" = --version ] && echo 'Cuda compilation tools, release 13.0' && exit
while [ $# -gt 0 ]; do
    case "$1" in
        --dependency-output) dependencies=$2; shift ;;
        -c) source=$2; shift ;;
        -o) target=$2; shift ;;
        -I*) includes="$includes $1" ;;
    esac
    shift
done
exec g++ -fPIC -x c++ $includes -I@python@ -MD -MF "$dependencies" -c "$source" -o "$target"
"""


@pytest.fixture
def toolkit(tmp_path, monkeypatch):
    """A CUDA toolkit whose nvcc hands plain C++ to g++, in use through CUDA_HOME; no GPU."""
    home = tmp_path / "cuda"
    for name in ("bin", "include", "lib64"):
        (home / name).mkdir(parents=True)
    (home / "bin/nvcc").write_text(NVCC.replace("@python@", sysconfig.get_path("include")))
    (home / "bin/nvcc").chmod(0o755)
    (home / "include/cuda.h").write_text("#define CUDA 13\n")
    (home / "include/cuda_runtime_api.h").write_text("#define CUDART 13\n")
    (home / "lib64/libcudart.a").write_bytes(b"!<arch>\n")
    monkeypatch.setenv("CUDA_HOME", str(home))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    return home


@pytest.fixture
def kernel(tiny):
    """A CUDA source that reads a header of the toolkit."""
    source = tiny("kernel", extra="#include <cuda.h>")
    return source.rename(source.with_suffix(".cu"))


NO_GPU = "import nodecache.cuda; nodecache.cuda._devices = lambda root: []\n"
NO_NVCC = {"PATH": "/usr/bin:/bin", "CUDA_HOME": "/nowhere"}
NO_TOOLS = {"PATH": "/nowhere", "CUDA_HOME": "/nowhere"}


@pytest.fixture
def built(toolkit, kernel, start, load_program):
    """A CUDA entry in the root."""
    result = start(load_program, "kernel", kernel, env={"CPATH": str(toolkit / "include")}).wait()
    assert result.status == 0, result.err
    return result.json


def test_a_cuda_entry_of_the_root_is_a_hit_where_no_compiler_is(built, toolkit, kernel, start, load_program):
    for missing in (NO_NVCC, NO_TOOLS, {**NO_TOOLS, "NODECACHE_NO_BUILD": "1"}):
        env = {"CPATH": str(toolkit / "include"), "TORCH_CUDA_ARCH_LIST": "", **missing}
        result = start(NO_GPU + load_program, "kernel", kernel, env=env).wait()
        assert result.status == 0, result.err
        assert (result.json["role"], result.json["key"]) == ("hit", built["key"])
    result = start(load_program, "kernel", kernel, env={**env, "TORCH_CUDA_ARCH_LIST": "8.0"}).wait()
    assert "NotBuilt: 'kernel' is not built" in result.err


def test_a_cuda_entry_of_a_seed_is_a_hit_where_the_image_has_no_toolkit(
    built, toolkit, kernel, root, tmp_path, start, load_program
):
    root.rename(tmp_path / "seed")
    env = {"CPATH": str(toolkit / "include"), **NO_TOOLS, "NODECACHE_SEEDS": str(tmp_path / "seed")}
    result = start(load_program, "kernel", kernel, env=env).wait()
    assert result.status == 0, result.err
    assert result.json["path"].startswith(f"{tmp_path}/seed/")
    kernel.write_text(kernel.read_text().replace("a + b", "a - b"))
    assert "ToolchainError: No C++ compiler is on PATH" in start(load_program, "kernel", kernel, env=env).wait().err


def test_another_nvcc_than_the_entrys_is_no_hit_even_where_nothing_names_an_architecture(
    built, toolkit, kernel, start, load_program
):
    nvcc = toolkit / "bin/nvcc"
    nvcc.write_text(nvcc.read_text().replace("release 13.0", "release 14.0"))
    env = {"CPATH": str(toolkit / "include"), "TORCH_CUDA_ARCH_LIST": ""}
    assert "Set TORCH_CUDA_ARCH_LIST" in start(NO_GPU + load_program, "kernel", kernel, env=env).wait().err


def test_an_entry_of_the_root_is_a_hit_without_a_compiler_and_without_any_variable(tiny, start, load_program):
    built = start(load_program, "tiny", tiny()).wait().json
    result = start(load_program, "tiny", tiny(), env={"PATH": "/nowhere"}).wait()
    assert result.status == 0, result.err
    assert (result.json["role"], result.json["key"]) == ("hit", built["key"])
