"""Which requests are metered, and what each is charged.

Owns the way from a scope to a ``Rule`` and from a rule and a body to an ``Estimate``: path
patterns, the choice of estimator, and what happens when one fails. Who may start is not
decided here.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import math
import numbers
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from gpu_admission.bodies.large import is_large, read_aside
from gpu_admission.errors import Rejected
from gpu_admission.request import Dialect, Estimator, RequestInfo
from gpu_admission.rules.patterns import Patterns, route_path
from gpu_admission.sizes import MAX_BYTES, format_bytes, parse_bytes
from gpu_admission.types import Estimate, Scope
from gpu_admission.workloads.choice import dialect as dialect_named

logger = logging.getLogger("gpu_admission")
_CACHED_LENGTH = 512


class Rule:
    """How one route is metered. ``estimator`` is ``None`` where no pattern of a mapping names it."""

    __slots__ = ("dialect", "estimator", "learns", "needs_body", "path", "route")

    def __init__(self, path: str, route: str, estimator: Estimator | None, dialect: Dialect | None) -> None:
        self.path = path
        self.route = route
        self.estimator = estimator
        self.dialect = dialect
        self.needs_body = bool(getattr(estimator, "needs_body", estimator is not None))
        self.learns = all(hasattr(estimator, name) for name in ("observe", "route_of", "meter"))
        """Whether the estimator wants to know what requests really took."""


class Fixed:
    """A size given in place of an estimator."""

    needs_body = False

    def __init__(self, size: int | str, *, name: str) -> None:
        self.bytes = parse_bytes(size, name=name)
        self._estimate = Estimate(self.bytes)
        if not self._estimate.bytes:
            raise ValueError(f"{name} must be above 0: a request that takes nothing needs no admission")

    def __call__(self, info: RequestInfo) -> Estimate:
        return self._estimate


def as_estimator(value: object, *, name: str = "estimator") -> Estimator:
    """``value`` as a callable: a size becomes one that always answers it."""
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        return Fixed(value, name=name)
    if not callable(value):
        raise TypeError(
            f"{name} must be a size, a callable, or a dict of path patterns to those, "
            f"not {type(value).__name__}"
        )
    if inspect.isclass(value):
        raise TypeError(
            f"{name} must be an estimator, not the class {value.__name__}: write {value.__name__}(...)"
        )
    return value


class Metering:
    """The rules of an admission: ``routes``, ``exclude``, ``methods``, ``estimator``, ``dialect``."""

    def __init__(
        self,
        estimator: object,
        *,
        routes: Iterable[str] | None = None,
        exclude: Iterable[str] = (),
        methods: Iterable[str] = ("POST", "PUT", "PATCH"),
        dialect: str | Dialect | Mapping[str, str | Dialect] | None = None,
    ) -> None:
        self._by_path: dict[str, Estimator] | None = None
        self._estimator: Estimator | None = None
        if isinstance(estimator, Mapping):
            self._by_path = {k: as_estimator(v, name=f"estimator[{k!r}]") for k, v in estimator.items()}
            if not self._by_path:
                raise ValueError("estimator is an empty dict: name at least one path pattern")
            self._paths = Patterns(self._by_path, name="estimator")
        else:
            self._estimator = as_estimator(estimator)
        self._routes = None if routes is None else Patterns(routes, name="routes")
        self._exclude = Patterns(exclude, name="exclude")
        self._methods = frozenset(method_names(methods))
        self._dialects = _dialects(dialect)
        self._dialect_paths = Patterns(self._dialects, name="dialect")
        self._cached = functools.lru_cache(maxsize=1024)(self._rule)

    def named_estimators(self) -> Sequence[tuple[str, Estimator]]:
        """All that the setting ``estimator`` names, and what they are called there."""
        if self._by_path is not None:
            return [(f"estimator[{pattern!r}]", each) for pattern, each in self._by_path.items()]
        return [] if self._estimator is None else [("estimator", self._estimator)]

    def estimators(self) -> Sequence[Estimator]:
        """All that the setting ``estimator`` names."""
        return [estimator for _, estimator in self.named_estimators()]

    def rule(self, scope: Scope) -> Rule | None:
        """The rule for an ``http`` scope; ``None``: it is not metered."""
        if scope["method"] not in self._methods:
            return None
        return self._find(scope["path"], scope.get("root_path", ""))

    def default(self, scope: Scope, route: str, estimator: Estimator | None) -> Rule:
        """The rule of a ``route`` metered by name: by ``estimator``, or else the admission's own."""
        path = route_path(scope["path"], scope.get("root_path", ""))
        if estimator is None:
            known = self._find(scope["path"], scope.get("root_path", ""))
            estimator = self._estimator if known is None else known.estimator
        return Rule(path, route, estimator, self._dialect(path))

    def _find(self, path: str, root_path: str) -> Rule | None:
        # Only paths of a usual length are kept: others would fill memory with what a client sends.
        find = self._cached if len(path) <= _CACHED_LENGTH else self._rule
        return find(path, root_path)

    def _rule(self, path: str, root_path: str) -> Rule | None:
        path = route_path(path, root_path)
        if self._exclude.match(path) is not None:
            return None
        route = "*" if self._routes is None else self._routes.match(path)
        if route is None:
            return None
        if self._by_path is None:
            return Rule(path, route, self._estimator, self._dialect(path))
        pattern = self._paths.match(path)
        if pattern is not None:
            return Rule(path, pattern, self._by_path[pattern], self._dialect(path))
        return None if self._routes is None else Rule(path, route, None, self._dialect(path))

    def _dialect(self, path: str) -> Dialect | None:
        pattern = self._dialect_paths.match(path)
        return None if pattern is None else self._dialects[pattern]


def method_names(methods: Any) -> tuple[str, ...]:
    """The setting ``methods``, checked. ``OPTIONS`` is never metered: browsers ask by it."""
    if isinstance(methods, str):
        raise TypeError(f"methods must be a list of method names, not one string: [{methods!r}]")
    if not isinstance(methods, Iterable):
        raise TypeError(f"methods must be a list of method names, not {type(methods).__name__}")
    names = sorted(methods, key=str) if isinstance(methods, (set, frozenset)) else tuple(methods)
    if not all(isinstance(name, str) and name for name in names):
        raise TypeError("methods must hold names such as 'POST'")
    return tuple(name.upper() for name in names if name.upper() != "OPTIONS")


def _dialects(setting: str | Dialect | Mapping[str, str | Dialect] | None) -> dict[str, Dialect]:
    """A dialect for each path pattern, those that are named made."""
    if setting is None:
        return {}
    by_path = setting if isinstance(setting, Mapping) else {"**": setting}
    return {pattern: dialect_named(each) for pattern, each in by_path.items()}


async def estimate(rule: Rule, info: RequestInfo, otherwise: Callable[[], int]) -> Estimate:
    """What ``info`` is charged, between 1 byte and ``MAX_BYTES``.

    A failed estimator is logged, and charged ``otherwise()``. Raises ``UnreadableBody``, and
    ``TooLarge`` or ``QueueFull`` where unpacking the body for the estimator does.
    """
    estimator = rule.estimator
    try:
        if estimator is None:
            raise LookupError(f"no pattern of the estimator mapping matches {rule.route}")
        if rule.needs_body and is_large(info):
            result: object = await _off_the_loop(estimator, info)
        else:
            result = estimator(info)
        if type(result) is int and 0 < result <= MAX_BYTES:
            return Estimate(result)
        if isinstance(result, Estimate) and type(result.bytes) is int and 0 < result.bytes <= MAX_BYTES:
            return result
        return _checked(await result if isinstance(result, Awaitable) else result)
    except Rejected:
        raise
    except Exception as error:
        name = type(error).__name__
        charged = max(1, otherwise())
        logger.exception("the estimator of %s failed: charged %s", rule.route, format_bytes(charged))
        return Estimate(charged, notes=(f"the estimator failed with {name}",))


async def _off_the_loop(estimator: Estimator, info: RequestInfo) -> object:
    """A large body is read in a worker thread, and by a plain estimator also estimated there."""
    if not _is_async(estimator):
        (result,) = await read_aside(_boxed, estimator, info)
        return result
    await read_aside(_read_ahead, info)
    return estimator(info)


def _boxed(estimator: Estimator, info: RequestInfo) -> tuple[object]:
    """What ``estimator`` returns, in a tuple: trio takes no awaitable out of a thread."""
    return (estimator(info),)


def _is_async(estimator: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(estimator) or inspect.iscoroutinefunction(type(estimator).__call__)


def _read_ahead(info: RequestInfo) -> None:
    """Read the workload here; an estimator that asks for it meets its errors again."""
    with contextlib.suppress(Exception):
        _ = info.workload


def _checked(result: object) -> Estimate:
    if isinstance(result, Estimate):
        return Estimate(_whole(result.bytes), result.low, result.basis, result.parts, result.notes)
    return Estimate(_whole(result))


def _whole(size: Any) -> int:
    """``size``, which may be of numpy's types too, as a number of bytes."""
    if isinstance(size, bool) or not isinstance(size, numbers.Real):
        raise TypeError(f"an estimator must return bytes as an int or an Estimate, not {type(size).__name__}")
    if not 0 <= size < math.inf:  # type: ignore[operator]
        raise ValueError("an estimator returned a negative number, infinity or NaN, which is no size")
    whole = int(size) if isinstance(size, numbers.Integral) else math.ceil(float(size))
    return max(1, min(whole, MAX_BYTES))
