"""Numbers for people."""

from __future__ import annotations


def amount(number: int, one: str, many: str = "") -> str:
    """`1 job`, `1,200 jobs`; `many` where that is not `one` with an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def size(number: int) -> str:
    """Bytes to three digits: `999 B`, `1.2 GB` (powers of 1000)."""
    value = float(number)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"
