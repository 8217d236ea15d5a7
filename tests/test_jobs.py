"""How many compilers run at once: what this process was given of the machine, or what was set."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import nodecache
from nodecache import jobs
from nodecache.errors import BuildError
from nodecache.jobs import job_count

GIB = 1 << 30


@pytest.fixture
def machine(monkeypatch):
    """Say what the machine looks like: ``machine(files, cpus=...)``; a file that is not given is not there."""

    def make(files: dict[str, str], cpus: int = 64) -> None:
        files = {"/proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {1 << 30} kB\n", **files}
        monkeypatch.setattr(jobs, "_read", files.get)
        monkeypatch.setattr(jobs.os, "sched_getaffinity", lambda _: set(range(cpus)))

    return make


def test_affinity_is_the_limit(machine):
    machine({}, cpus=3)
    assert job_count() == 3


@pytest.mark.parametrize(("quota", "count"), [("200000 100000", 2), ("50000 100000", 1), ("max 100000", 64), ("x", 64)])
def test_the_quota_of_a_unified_cgroup_counts(quota, count, machine):
    machine({"/proc/self/cgroup": "0::/a/b", "/sys/fs/cgroup/a/b/cpu.max": quota})
    assert job_count() == count


def test_the_quota_of_a_group_above_counts(machine):
    machine({"/proc/self/cgroup": "0::/a/b", "/sys/fs/cgroup/a/cpu.max": "400000 100000"})
    assert job_count() == 4


def test_the_quota_of_an_old_cgroup_counts(machine):
    place = "/sys/fs/cgroup/cpu/slurm/job"
    machine(
        {
            "/proc/self/cgroup": "4:cpu,cpuacct:/slurm/job\n0::/",
            f"{place}/cpu.cfs_quota_us": "300000",
            f"{place}/cpu.cfs_period_us": "100000",
        }
    )
    assert job_count() == 3


def test_a_quota_of_a_container_that_does_not_see_its_own_path_counts(machine):
    machine({"/proc/self/cgroup": "0::/docker/abc", "/sys/fs/cgroup/cpu.max": "200000 100000"})
    assert job_count() == 2


@pytest.mark.parametrize(
    "files",
    [
        {"/proc/meminfo": f"MemAvailable: {5 * GIB // 1024} kB\n"},
        {
            "/proc/self/cgroup": "0::/a",
            "/sys/fs/cgroup/a/memory.max": str(8 * GIB),
            "/sys/fs/cgroup/a/memory.current": str(6 * GIB),
            "/sys/fs/cgroup/a/memory.stat": f"anon {3 * GIB}\ninactive_file {3 * GIB}\n",
        },
        {
            "/proc/self/cgroup": "9:memory:/a",
            "/sys/fs/cgroup/memory/a/memory.limit_in_bytes": str(5 * GIB),
            "/sys/fs/cgroup/memory/a/memory.usage_in_bytes": "0",
        },
    ],
)
def test_memory_is_shared_out_at_one_gib_a_compiler(files, machine):
    machine(files)
    assert job_count() == 5


def test_at_least_one_runs(machine):
    machine({"/proc/meminfo": "MemAvailable: 1 kB\n"}, cpus=1)
    assert job_count() == 1


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        *(({"NODECACHE_JOBS": "7", "MAX_JOBS": "5"}, 7), ({"MAX_JOBS": "5"}, 5), ({"NODECACHE_JOBS": "0"}, 2)),
        *(({"MAX_JOBS": "many"}, 2), ({"MAX_JOBS": ""}, 2), ({"NODECACHE_JOBS": "-1", "MAX_JOBS": "3"}, 3)),
    ],
)
def test_what_is_set_wins_and_nonsense_is_ignored(variables, expected, machine, monkeypatch):
    machine({}, cpus=2)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert job_count() == expected


def test_noise_in_the_kernels_files_is_no_limit(machine):
    machine({"/proc/self/cgroup": "junk", "/proc/meminfo": "MemAvailable:\n"}, cpus=2)
    assert job_count() == 2


@pytest.mark.parametrize(("setting", "most"), [({}, 1), ({"NODECACHE_JOBS": "3"}, 3)])
def test_no_more_compilers_run_than_cpus_were_given_or_set(
    setting, most, tiny, compiler, start, tmp_path, load_program
):
    """Case 81: six sources, pinned to one CPU. A compile waits for two more to begin, or for its time to pass."""
    running = tmp_path / "running"
    running.mkdir()
    note = f"mkdir {running}/$$; ls {running} | wc -l >> {tmp_path}/seen"
    wait = f'n=0; while [ $n -lt 20 ] && [ "$(ls {running} | wc -l)" -lt 3 ]; do n=$((n+1)); sleep 0.01; done'
    compiler.set(before=f"{note}; {wait}", instead=f'c++ "$@"; s=$?; rmdir {running}/$$; exit $s')
    sources = [tiny()]
    for number in range(5):
        sources.append(tmp_path / f"src/s{number}.cpp")
        sources[-1].write_text(f"int s{number};\n")
    cpu = str(min(os.sched_getaffinity(0)))
    child = start(load_program, "tiny", *sources, prefix=("taskset", "-c", cpu), env=setting).wait()
    assert child.status == 0, child.err
    seen = [int(line) for line in (tmp_path / "seen").read_text().split()]
    assert len(seen) == 6
    assert max(seen) <= most


@pytest.mark.parametrize("how", ["exit 137", "kill -KILL $$"])
def test_a_compiler_killed_for_memory_says_so_and_what_to_set(how, tiny, compiler):
    """Case 81."""
    compiler.set(instead=how)
    with pytest.raises(BuildError, match=r"killed, most often for memory") as caught:
        nodecache.load("tiny", tiny())
    assert "NODECACHE_JOBS=1" in str(caught.value)


def test_a_real_lack_of_memory_is_told(tiny, compiler, tmp_path, start, load_program):
    """A cgroup of 24 MB, where one can be made."""
    line = next((each for each in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in each), None)
    if line is None or os.geteuid() != 0:
        pytest.skip("needs root and a memory controller of cgroup v1")
    group = Path(f"/sys/fs/cgroup/memory{line.split(':', 2)[2].rstrip('/')}/nodecache-test-{os.getpid()}")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        (group / "memory.limit_in_bytes").write_text(str(24 << 20))
        compiler.set(before=f"echo $$ > {group}/cgroup.procs")
        source = tiny(extra="#include <map>\n#include <string>\n#include <regex>\nstd::regex used;")
        with pytest.raises(BuildError, match="killed, most often for memory"):
            nodecache.load("tiny", source)
    finally:
        group.rmdir()
