"""Seeds: hits from read-only roots, with and without a compiler; and NODECACHE_NO_BUILD."""

from __future__ import annotations

import os

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
def digest_file(path):
    if path.startswith("/usr/"):
        raise FileNotFoundError(path)
    return real(path)
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
