"""How many compilers may run at once on what this process was given of the machine."""

from __future__ import annotations

import os

MEMORY_PER_COMPILER = 1 << 30
"""Bytes; what a C++ compiler takes with torch's headers."""


def job_count() -> int:
    """Number of compilers to run at once.

    NODECACHE_JOBS wins, then MAX_JOBS (torch's variable); a value that is no positive number is ignored. Otherwise the
    least of: CPUs in this process's affinity mask, the cgroup's CPU quota, available memory over 1 GiB; at least 1.
    """
    for variable in ("NODECACHE_JOBS", "MAX_JOBS"):
        value = os.environ.get(variable, "")
        if value.isdecimal() and int(value) > 0:
            return int(value)
    limits = [_cpus()]
    quota = _cpu_quota()
    if quota is not None:
        limits.append(int(quota))
    memory = _available_memory()
    if memory is not None:
        limits.append(memory // MEMORY_PER_COMPILER)
    return max(1, min(limits))


def _cpus() -> int:
    """CPUs in the affinity mask; all of the machine where a sandbox does not let it be asked for."""
    try:
        return len(os.sched_getaffinity(0))
    except OSError:
        return os.cpu_count() or 1


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _groups() -> dict[str, str]:
    """Cgroup path of this process by controller; the unified hierarchy's is under ``""``."""
    groups = {}
    for line in (_read("/proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            groups[controller] = path.rstrip("/")
    return groups


def _up(base: str, path: str, *names: str) -> list[tuple[str | None, ...]]:
    """The files ``names`` in a cgroup's folder and in all above it: the tightest limit holds."""
    found = []
    while True:
        found.append(tuple(_read(f"{base}{path}/{name}") for name in names))
        if not path:
            return found
        path = path.rpartition("/")[0]


def _cpu_quota() -> float | None:
    """CPUs that the cgroup may use, or None. Source: the kernel's cgroup-v2.rst and cgroup-v1 sched-bwc.rst."""
    groups = _groups()
    found = []
    for (both,) in _up("/sys/fs/cgroup", groups.get("", ""), "cpu.max"):
        quota, _, length = (both or "max").partition(" ")
        if quota.isdecimal() and length.isdecimal() and int(length):
            found.append(int(quota) / int(length))
    for text, period in _up("/sys/fs/cgroup/cpu", groups.get("cpu", ""), "cpu.cfs_quota_us", "cpu.cfs_period_us"):
        if text and period and text.isdecimal() and period.isdecimal() and int(period):
            found.append(int(text) / int(period))
    return min(found, default=None)


def _available_memory() -> int | None:
    """Bytes available to this process: the machine's, or the cgroup's limit less what it uses."""
    lines = (_read("/proc/meminfo") or "").splitlines()
    words = next((line.split() for line in lines if line.startswith("MemAvailable:")), [])
    found = [int(word) * 1024 for word in words[1:2] if word.isdecimal()]
    groups = _groups()
    files = ("memory.max", "memory.current", "memory.stat")
    old_files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat")
    for limit, used, detail in [  # bytes, bytes, "name number" lines
        *_up("/sys/fs/cgroup", groups.get("", ""), *files),
        *_up("/sys/fs/cgroup/memory", groups.get("memory", ""), *old_files),
    ]:
        if limit and used and limit.isdecimal() and used.isdecimal():
            found.append(max(0, int(limit) - int(used) + _reclaimable(detail or "")))
    return min(found, default=None)


def _reclaimable(detail: str) -> int:
    """Bytes of file cache that the kernel drops when memory is asked for."""
    numbers = dict(line.split(" ", 1) for line in detail.splitlines() if " " in line)
    said = numbers.get("total_inactive_file", numbers.get("inactive_file", "0"))
    return int(said) if said.isdecimal() else 0
