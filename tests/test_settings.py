"""Variables that are set and empty or blank, as a template or a secret leaves them that had nothing to put in."""

from __future__ import annotations

import logging

import pytest

import nodecache
from nodecache import jobs, seeds
from nodecache import root as root_module

BLANK = pytest.mark.parametrize("blank", ["", "  "], ids=["empty", "blank"])


@BLANK
def test_a_blank_root_is_the_default_one(blank, tmp_path, monkeypatch):
    monkeypatch.setattr(root_module, "default_root", lambda: str(tmp_path / "default"))
    monkeypatch.setenv("NODECACHE_ROOT", blank)
    assert root_module.open_root().path == str(tmp_path / "default")


@BLANK
@pytest.mark.parametrize("variable", ["NODECACHE_JOBS", "MAX_JOBS"])
def test_a_blank_number_of_jobs_is_none(blank, variable, monkeypatch):
    monkeypatch.delenv("NODECACHE_JOBS", raising=False)
    monkeypatch.delenv("MAX_JOBS", raising=False)
    usual = jobs.job_count()
    monkeypatch.setenv(variable, blank)
    assert jobs.job_count() == usual


@BLANK
def test_blank_seeds_and_a_blank_no_build_change_nothing(blank, tiny, monkeypatch, caplog):
    monkeypatch.setenv("NODECACHE_SEEDS", blank)
    monkeypatch.setenv("NODECACHE_NO_BUILD", blank)
    assert seeds.seeds() == []
    with caplog.at_level(logging.WARNING, "nodecache"):
        assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "built"
    assert caplog.text == ""


@BLANK
def test_blank_limits_and_a_blank_remote_cache_are_none(blank, tiny, monkeypatch, caplog):
    monkeypatch.setenv("NODECACHE_MAX_SIZE", blank)
    monkeypatch.setenv("NODECACHE_REMOTE", blank)
    with caplog.at_level(logging.WARNING, "nodecache"):
        assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "built"
    assert caplog.text == ""


@BLANK
def test_blank_statistics_write_nothing_on_a_hit(blank, tiny, root, start, load_program):
    source = tiny()
    start(load_program, "tiny", source).wait()
    before = (root / "attempts/history").read_text()
    assert start(load_program, "tiny", source, env={"NODECACHE_STATS": blank}).wait().json["role"] == "hit"
    assert (root / "attempts/history").read_text() == before


@BLANK
@pytest.mark.parametrize("variable", ["NODECACHE_REMOTE_GROUP", "NODECACHE_REMOTE_WAIT", "NODECACHE_REMOTE_TIMEOUT"])
def test_a_blank_setting_of_the_remote_cache_is_its_default(
    blank, variable, tiny, tmp_path, start, load_program, monkeypatch
):
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o700)
    monkeypatch.setenv("NODECACHE_REMOTE", str(shared))
    monkeypatch.setenv(variable, blank)
    source = tiny()
    roles = []
    for node in ("a", "b"):
        ended = start(load_program, "tiny", source, env={"NODECACHE_ROOT": str(tmp_path / node)}).wait()
        assert ended.err == ""
        roles.append(ended.json["role"])
    assert roles == ["built", "fetched"]


@BLANK
def test_a_blank_key_of_the_remote_cache_is_an_error(blank, tiny, tmp_path, monkeypatch):
    """A secret that was not passed on must not switch the signatures off."""
    monkeypatch.setenv("NODECACHE_REMOTE", str(tmp_path))
    monkeypatch.setenv("NODECACHE_REMOTE_KEY", blank)
    with pytest.raises(nodecache.SpecError, match="NODECACHE_REMOTE_KEY is set and empty"):
        nodecache.load("tiny", [tiny()])
