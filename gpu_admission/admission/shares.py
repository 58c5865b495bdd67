"""What a lease has to hold while blocks of code inside its request ask for bytes too.

Owns the arithmetic, as a tree: the request's own size at the root, a share for each block inside
it. Pure: when a size takes effect, and whether it fits, is ``ending``'s business.
"""

from __future__ import annotations


class Share:
    """One claim of ``size`` bytes on a lease, and the claims ``inside`` it."""

    __slots__ = ("_around", "inside", "is_asked", "is_open", "size")

    def __init__(self, size: int, around: Share | None = None) -> None:
        self.size = size
        self.inside: list[Share] = []
        self.is_open = True
        self.is_asked = False
        """The budget was asked for it, and has not answered yet."""
        self._around = around

    @property
    def bytes(self) -> int:
        """Its own size, or the largest claim inside it if that is more.

        Claims still inside a closed one have outlived it: they share nothing any more.
        """
        inside = [share.bytes for share in self.inside]
        return max(self.size, *inside, 0) if self.is_open else sum(inside)

    @property
    def is_in_doubt(self) -> bool:
        """Whether it, or a claim inside it, is counted though the budget may still say no."""
        if self.is_asked:
            return True
        for share in self.inside:  # noqa: SIM110 - a generator costs more than the claims do
            if share.is_in_doubt:
                return True
        return False

    def open(self, size: int) -> Share:
        """A claim inside this one."""
        share = Share(size, self)
        self.inside.append(share)
        return share

    def close(self) -> None:
        """End it; it is forgotten once nothing inside it is left."""
        self.is_open = self.is_asked = False
        share = self
        while share._around is not None and not (share.is_open or share.inside):
            share._around.inside.remove(share)
            share = share._around

    def cut(self, size: int) -> None:
        """Let no claim be above ``size``."""
        self.size = min(self.size, size)
        for share in self.inside:
            share.cut(size)
