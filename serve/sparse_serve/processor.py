"""What this processor computes right."""

import platform
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_VNNI = {"avx512_vnni", "avx_vnni", "amx_int8"}


def has_vnni() -> bool:
    """Tell whether this processor adds products of 8-bit integers in 32 bits.

    Those of x86 without VNNI add two in 16 bits, which weights of 8 bits overflow; others never do.
    """
    if platform.machine() != "x86_64":
        return True
    return not _VNNI.isdisjoint(_CPUINFO.read_text(encoding="utf-8").split())


def vnni_warning(name: str, target_cpu: object) -> str | None:
    """Return what is wrong with an entry's int8 weights on this processor; None where nothing is."""
    if target_cpu != "vnni" or has_vnni():
        return None
    return (
        f"the int8 weights of '{name}' are for processors with VNNI, which this one has not: sums overflow "
        "and answers are wrong; to serve it here, export it with --target-cpu any"
    )
