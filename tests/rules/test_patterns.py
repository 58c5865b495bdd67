"""Path patterns, and which path they see."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette._utils import get_route_path

from gpu_admission.rules.metering import Metering
from gpu_admission.rules.patterns import Glob, Patterns, overlap, route_path


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("/v1/chat", ["/v1/chat"], ["/v1/chats", "/v1/chat/x", "/x/v1/chat", "/V1/chat", ""]),
        ("/v1/chat/", ["/v1/chat"], ["/v1"]),
        ("/v1/*", ["/v1/chat", "/v1/a.b"], ["/v1/chat/x", "/v1"]),
        ("/*/chat", ["/v1/chat", "/v2/chat"], ["/chat", "/a/b/chat"]),
        ("/v1/**", ["/v1/chat", "/v1/a/b/c"], ["/v1", "/v2/x"]),
        ("**/generate", ["/generate", "/a/b/generate"], ["/generate/x", "/regenerated"]),
        ("**", ["/", "/a/b"], []),
        ("/", ["/"], ["/x"]),
        ("/a.b+c", ["/a.b+c"], ["/aXb+c", "/a.bbc"]),
        ("/models/*:predict", ["/models/m:predict"], ["/models/a/b:predict", "/models/m"]),
    ],
)
def test_a_pattern_matches_the_whole_path(pattern: str, matching: list[str], others: list[str]) -> None:
    patterns = Patterns([pattern], name="routes")
    assert [patterns.match(path) for path in matching] == [pattern] * len(matching)
    assert [patterns.match(path) for path in others] == [None] * len(others)


def test_the_first_pattern_that_matches_is_the_one() -> None:
    patterns = Patterns(["/a/b", "/a/*", "**"], name="routes")
    assert [patterns.match(path) for path in ("/a/b", "/a/c", "/d")] == ["/a/b", "/a/*", "**"]


def test_a_path_that_ends_in_a_line_feed_is_the_routers_path_without_it() -> None:
    """Starlette's own expressions end in ``$``, which matches before it."""
    patterns = Patterns(["/work", "/v1/*"], name="routes")
    assert patterns.match("/work\n") == "/work"
    assert patterns.match("/v1/x\n") == "/v1/*"
    assert patterns.match("/work\n\n") is None
    assert patterns.match("\n/work") is None


@pytest.mark.parametrize(
    ("path", "root_path", "seen"),
    [
        ("/api/work", "/api", "/work"),
        ("/work", "/api", "/work"),
        ("/api", "/api", "/"),
        ("/apiary", "/api", "/apiary"),
        ("/work/", "", "/work"),
        ("/work//", "", "/work"),
        ("/api/", "/api", "/"),
        ("", "", "/"),
        ("/", "", "/"),
        ("///", "", "/"),
        ("//work", "", "//work"),
    ],
)
def test_the_path_is_the_one_that_the_router_sees(path: str, root_path: str, seen: str) -> None:
    assert route_path(path, root_path) == seen


PATHS = st.text(alphabet="/ab", max_size=8).map(lambda text: "/" + text)


@given(path=PATHS, root_path=st.one_of(st.just(""), PATHS))
def test_it_is_starlettes_path_but_for_slashes_at_the_end(path: str, root_path: str) -> None:
    theirs = get_route_path({"path": path, "root_path": root_path})
    assert route_path(path, root_path) == (theirs.rstrip("/") or "/")


@pytest.mark.parametrize(
    ("patterns", "kind", "message"),
    [
        ("/x", TypeError, "must be a list of path patterns, not one string"),
        (5, TypeError, "must be a list of path patterns, not int"),
        ([b"/x"], TypeError, "must hold path patterns as strings"),
        (["x"], ValueError, "must start with"),
        (["*"], ValueError, "must start with"),
        (["*/x"], ValueError, "must start with"),
        ([""], ValueError, "must start with"),
    ],
)
def test_what_is_no_pattern_is_refused_with_the_name_of_the_setting(
    patterns: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        Patterns(patterns, name="exclude")
    assert "exclude" in str(caught.value)


def meaning(pattern: str) -> re.Pattern[str]:
    """The pattern as a regular expression: the same meaning, without the bound on time."""
    words = {"**": ".*", "*": "[^/]*"}
    parts = re.split(r"(\*+)", pattern)
    return re.compile("".join(words.get(part[:2], re.escape(part)) for part in parts), re.DOTALL)


@given(
    st.text("/ab*", min_size=1, max_size=12).map(lambda text: f"/{text}".rstrip("/") or "/"),
    st.text("/ab", max_size=12).map(lambda text: f"/{text}"),
)
def test_wildcards_mean_what_the_regular_expression_means(pattern: str, path: str) -> None:
    assert Glob(pattern).matches(path) is bool(meaning(pattern).fullmatch(path))


@pytest.mark.parametrize(
    "pattern", ["/**a**a**a**b**/c", "/*a*a*a*a*b*/c", "/**/x/**/y/**/z/c", "/**a*a*/y/**/c"]
)
def test_c3_a_path_of_any_length_is_matched_step_by_step(pattern: str) -> None:
    """A regular expression takes two minutes for the first of these."""
    path = f"/{'a' * 60_000}/x/y/{'/z' * 300}/c"
    steps = 0

    class Counted(dict[str, int]):
        def get(self, key: str, default: Any = None) -> Any:
            nonlocal steps
            steps += 1
            return super().get(key, default)

    glob = Glob(pattern)
    glob._literals = Counted(glob._literals)
    glob.matches(path)
    assert steps <= len(path)


def test_long_paths_are_not_kept() -> None:
    metering = Metering(1)
    for number in range(100):
        scope = {"method": "POST", "path": f"/{number}{'x' * 60_000}"}
        assert metering.rule(scope) is not None
    assert metering._cached.cache_info().currsize == 0


@given(first=st.text("ab/*", max_size=5), second=st.text("ab/*", max_size=5), path=st.text("ab/", max_size=6))
def test_patterns_that_match_one_path_overlap(first: str, second: str, path: str) -> None:
    if all(Glob(f"/{each}").matches(f"/{path}") for each in (first, second)):
        assert overlap(f"/{first}", f"/{second}")


@pytest.mark.parametrize(
    ("first", "second", "do"),
    [
        ("/a/*", "/a/b", True),
        ("/a/*", "/a/b/c", False),
        ("/a/**", "/*/b/c", True),
        ("/*/c/b", "/a/*/b", True),
        ("/a*", "/b*", False),
        ("**", "/", True),
        ("/x/", "/x", True),
        ("/*" * 20, "/*a" * 20, True),
        ("/v1/chat", "/v1/chats", False),
    ],
)
def test_whether_two_patterns_have_a_path_in_common(first: str, second: str, do: bool) -> None:
    assert overlap(first, second) is overlap(second, first) is do
