"""The names under which a plan knows its tables: each once, however many queries a name is used in."""

from __future__ import annotations


class Aliases:
    """Gives aliases out, the caller's own where no other table has it yet; shared by a query and all in it.

    >>> aliases = Aliases()
    >>> aliases.claim("o", ""), aliases.claim("o", "x"), aliases.claim("O", "x"), aliases.claim("u", "x")
    ('o', 'x/o', 'x/O_2', 'u')
    >>> aliases.claim("a.b", "")
    'a_b'
    """

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def claim(self, wanted: str, within: str) -> str:
        """A name for the table that its query calls `wanted`; `within` is that of the derived table around it.

        Names that differ in case alone are the same. None has a dot: columns are `alias.column`, and `a.b` with `c`
        would be `a` with `b.c`.
        """
        wanted = wanted.replace(".", "_")
        stem = wanted if wanted.casefold() not in self._taken or not within else f"{within}/{wanted}"
        name, number = stem, 1
        while name.casefold() in self._taken:
            number += 1
            name = f"{stem}_{number}"
        self._taken.add(name.casefold())
        return name
