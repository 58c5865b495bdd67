"""When to retry a size that never fits: at once at first, then less and less often."""

from __future__ import annotations

from gpu_admission.estimators.history import size_class

_LONGEST = 64


class Turns:
    """Turns for the sizes of each route; beyond ``most`` the oldest are forgotten. Not thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: dict[tuple[str, int], _Turn] = {}

    def __len__(self) -> int:
        return len(self._of)

    def comes(self, route: str, size: int) -> bool:
        """Whether a request of ``size`` bytes is to be tried now."""
        turn = self._of.setdefault((route, size_class(size)), _Turn())
        while len(self._of) > self._most:
            del self._of[next(iter(self._of))]
        return turn.comes()

    def forget(self, route: str, size: int) -> None:
        """It ran: the next one that does not fit is tried at once."""
        self._of.pop((route, size_class(size)), None)

    def clear(self) -> None:
        self._of.clear()


class _Turn:
    """Counts the refusals of one size."""

    __slots__ = ("left", "length")

    def __init__(self) -> None:
        self.left = 0
        self.length = 2

    def comes(self) -> bool:
        if self.left:
            self.left -= 1
            return False
        self.length = min(_LONGEST, 2 * self.length)
        self.left = self.length
        return True
