"""Which requests are metered, and what each is charged.

Owns the way from a scope to a ``Rule``: methods, path patterns, the choice of estimator and
dialect. How an estimator is asked is the edge's business, who may start the ledger's.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol
from weakref import WeakSet, WeakValueDictionary

from gpu_admission.request import Dialect, Estimator, RequestInfo
from gpu_admission.rules.patterns import Patterns, plain_path, route_path
from gpu_admission.sizes import parse_bytes
from gpu_admission.types import Estimate, Scope
from gpu_admission.workloads.choice import dialect as dialect_named
from gpu_admission.workloads.choice import reads_path
from gpu_admission.workloads.control import CONTROL_PATHS, is_control

_CACHED_LENGTH = 512
DEFAULT_METHODS = ("POST", "PUT", "PATCH")
"""Methods that carry work. If the setting is just this, every method that is not safe counts too."""
_SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""Methods that ask for no work (RFC 9110 9.2.1)."""


class Rule:
    """How one route is metered. ``estimator`` is ``None`` if no pattern of the mapping names the route."""

    __slots__ = (
        *("dialect", "estimator", "fixed", "learns"),
        *("hears", "may_be_empty", "needs_body", "path", "reader", "route"),
    )

    def __init__(
        self,
        path: str,
        route: str,
        estimator: Estimator | None,
        dialect: Dialect | None,
        *,
        may_be_empty: bool = False,
    ) -> None:
        self.path = path
        self.route = route
        self.estimator = estimator
        self.dialect = dialect
        """What was given for the path."""
        self.reader = RequestInfo.choose_dialect(path, None) if dialect is None else dialect
        """The dialect that reads its bodies: the one given, or else the one that the path names."""
        self.may_be_empty = may_be_empty
        """Whether a request without a body, which its estimator can't read, asks for nothing."""
        self.needs_body = bool(getattr(estimator, "needs_body", estimator is not None))
        self.learns = all(hasattr(estimator, name) for name in ("follow", "ended", "meter"))
        """Whether the estimator wants to know what requests really took."""
        self.hears = (
            self.learns
            and bool(getattr(estimator, "usage", False))
            and (dialect is not None or reads_path(path))
        )
        """Whether it wants to know what answers report, and they belong to a known API."""
        fixed = getattr(estimator, "fixed", None)
        self.fixed: Estimate | None = fixed if isinstance(fixed, Estimate) else None
        """What every request is charged, where that is always the same: then no estimator is asked."""


class Fixed:
    """A size given in place of an estimator."""

    needs_body = False

    def __init__(self, size: int | str, *, name: str) -> None:
        self.bytes = parse_bytes(size, name=name)
        self.fixed = Estimate(self.bytes)
        if not self.bytes:
            raise ValueError(f"{name} must be above 0: a request that takes nothing needs no admission")

    def __call__(self, info: RequestInfo) -> Estimate:
        return self.fixed


def as_estimator(value: object, *, name: str = "estimator") -> Estimator:
    """``value`` as a callable: a size becomes one that always returns it."""
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


class Priced(Protocol):
    """The way into one route, as far as its price goes."""

    title: str
    """For people, such as ``admit on draw``."""
    estimator: Estimator | None


class Metering:
    """The rules of an admission: ``routes``, ``exclude``, ``methods``, ``estimator``, ``dialect``."""

    def __init__(
        self,
        estimator: object,
        *,
        routes: Iterable[str] | None = None,
        exclude: Iterable[str] = (),
        methods: Iterable[str] = DEFAULT_METHODS,
        dialect: str | Dialect | Mapping[str, str | Dialect] | None = None,
        control: Iterable[str] = (),
        websockets: Iterable[str] = (),
    ) -> None:
        self._by_path: dict[str, Estimator] | None = None
        self._estimator: Estimator | None = None
        self.batchers: WeakSet[Any] = WeakSet()
        """Those that meter their batches; each has a ``name``."""
        self._doors: WeakValueDictionary[int, Priced] = WeakValueDictionary()
        if isinstance(estimator, Mapping):
            self._by_path = {k: as_estimator(v, name=f"estimator[{k!r}]") for k, v in estimator.items()}
            if not self._by_path:
                raise ValueError("estimator is an empty dict: name at least one path pattern")
            self._paths = Patterns(self._by_path, name="estimator")
        else:
            self._estimator = as_estimator(estimator)
        self._routes = None if routes is None else Patterns(routes, name="routes")
        self._exclude = Patterns(exclude, name="exclude")
        self._websockets = Patterns(websockets, name="websockets")
        self._control = Patterns(control, name="control")
        self._check_priced("routes", self._routes)
        self._check_priced("websockets", self._websockets)
        self._named = {*(self._by_path or ()), *(() if self._routes is None else self._routes.patterns)}
        """Patterns of paths that are metered because the settings say so, even if they are control paths."""
        self._methods = frozenset(method_names(methods))
        self._takes_unknown = self._methods == frozenset(DEFAULT_METHODS)
        self._dialects = _dialects(dialect)
        self._dialect_paths = Patterns(self._dialects, name="dialect")
        self._cached = functools.lru_cache(maxsize=1024)(self._rule)

    def _check_priced(self, name: str, paths: Patterns | None) -> None:
        """Raise ``ValueError`` if the setting ``name`` names a path that a dict of estimators lacks."""
        if paths is None or self._by_path is None:
            return
        for path in paths.patterns:
            if "*" not in path and self._paths.match(path) is None:
                known = ", ".join(map(repr, self._by_path))
                raise ValueError(f"{name} names {path!r}, for which estimator has no pattern: it has {known}")

    def named_estimators(self) -> Sequence[tuple[str, Estimator]]:
        """All estimators that the setting ``estimator`` names, with their names there."""
        if self._by_path is not None:
            return [(f"estimator[{pattern!r}]", each) for pattern, each in self._by_path.items()]
        return [] if self._estimator is None else [("estimator", self._estimator)]

    def has_door(self, door: Priced) -> None:
        """``door`` charges by an estimator of its own, as long as there is the door."""
        self._doors[id(door)] = door

    def own_estimators(self) -> Sequence[tuple[str, Estimator]]:
        """The estimators of doors that have their own, each with the door's name."""
        return [(door.title, door.estimator) for door in self._doors.values() if door.estimator is not None]

    def estimators(self) -> Sequence[Estimator]:
        """All estimators that the setting ``estimator`` names."""
        return [estimator for _, estimator in self.named_estimators()]

    def progress(self) -> Sequence[str]:
        """How far each route is learned, for estimators that can say."""
        learners = {id(each): each for each in self.estimators() if hasattr(each, "progress")}
        return [str(route) for each in learners.values() for route in each.progress()]

    def control_paths(self) -> Sequence[str]:
        """Patterns of control paths that would otherwise be metered."""
        known = [
            path for path in CONTROL_PATHS if self._steers(path) and self._metered(path.replace("*", "x"))
        ]
        return [*known, *self._control.patterns]

    def rule(self, scope: Scope, root_path: str = "") -> Rule | None:
        """The rule for an ``http`` scope; ``None``: it is not metered.

        ``root_path`` is the app's own, with which it replaces the server's.
        """
        method = scope["method"]
        if method not in self._methods and not self._carries_work(method.upper()):
            return None
        path = scope["path"]
        find = self._cached if len(path) <= _CACHED_LENGTH else self._rule  # see ``_find``
        return find(path, root_path or scope.get("root_path", ""))

    def connection(self, scope: Scope, root_path: str = "") -> Rule | None:
        """The rule for a ``websocket`` scope; ``None``: it is not metered."""
        if not self._websockets.patterns:
            return None
        path = route_path(scope["path"], root_path or scope.get("root_path", ""))
        pattern = self._websockets.match(path)
        if pattern is None or self._by_path is None:
            return None if pattern is None else Rule(path, pattern, self._estimator, None)
        named = self._paths.match(path)
        return Rule(path, pattern, None if named is None else self._by_path[named], None)

    def _carries_work(self, method: str) -> bool:
        """Whether a method in capitals is metered.

        Some servers pass on lower case; and in an app that ignores the method, a made-up one would get
        its work done unmetered.
        """
        return method in self._methods or (self._takes_unknown and method not in _SAFE)

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
        if "//" in path or "/." in path:
            # A proxy behind us (httpx, Go) asks its upstream for the plain path, whose rule comes first.
            return self._rule_of(plain_path(path)) or self._rule_of(path)
        return self._rule_of(path)

    def _rule_of(self, path: str) -> Rule | None:
        return None if self._steers(path) else self._metered(path)

    def _steers(self, path: str) -> bool:
        """Whether it is a control path, which never waits behind the work that it steers."""
        return self._control.match(path) is not None or (is_control(path) and path not in self._named)

    def _metered(self, path: str) -> Rule | None:
        if self._exclude.match(path) is not None:
            return None
        route = "*" if self._routes is None else self._routes.match(path)
        if route is None:
            return None
        dialect = self._dialect(path)
        empty = dialect is None and path not in self._named and not reads_path(path)
        if self._by_path is None:
            return Rule(path, route, self._estimator, dialect, may_be_empty=empty)
        pattern = self._paths.match(path)
        if pattern is not None:
            return Rule(path, pattern, self._by_path[pattern], dialect, may_be_empty=empty)
        return None if self._routes is None else Rule(path, route, None, dialect)

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
