"""The machine, the versions and the commit that a process runs on."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

PACKAGES = ("floatscope", "torch", "numpy", "tokenizers", "safetensors", "duckdb")


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Where a run computed. Never part of a run's identity; always part of its record."""

    backend: str
    """Who multiplied: "native" or "emulated"."""
    processor: str
    cores: int
    system: str
    python: str
    packages: dict[str, str]
    commit: str | None
    """Of floatscope's own repository, with "+" behind it if files differ from it; None outside."""


def environment(backend: str) -> Environment:
    """The environment of this process."""
    return Environment(
        backend=backend,
        processor=processor(),
        cores=os.cpu_count() or 1,
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        packages={name: _version(name) for name in PACKAGES},
        commit=_commit(),
    )


@functools.cache
def processor() -> str:
    """The processor's name and the 16-bit units that matter here."""
    name, flags = platform.processor() or platform.machine(), ""
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            elif key.strip() in ("flags", "Features"):
                flags = value
                break
    elif sys.platform == "darwin":
        name = _output("sysctl", "-n", "machdep.cpu.brand_string") or name
    units = [
        u for u in ("avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16") if u in flags.split()
    ]
    return f"{name} ({', '.join(units)})" if units else name


def peak_rss_bytes() -> int:
    """Largest resident set of this process so far, the interpreter and libraries included."""
    if sys.platform == "linux":
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def load_average() -> float:
    """The system's one-minute load; NaN where it has none."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return float("nan")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


@functools.cache
def _commit() -> str | None:
    here = Path(__file__).parent
    commit = _output("git", "-C", str(here), "rev-parse", "HEAD")
    if not commit or not _output("git", "-C", str(here), "ls-files", Path(__file__).name):
        return None  # installed somewhere inside another repository
    return commit + (
        "+" if _output("git", "-C", str(here), "status", "--porcelain", "-uno") else ""
    )


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
