"""``gpu-admission check`` as it is typed: what it finds in an app, and what it calls a mistake."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpu_admission import cli

APP = """
from contextlib import asynccontextmanager
from pathlib import Path
from time import sleep
from typing import Annotated

import anyio
from fastapi import APIRouter, Depends, FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount, Route, WebSocketRoute

from gpu_admission import Admission, GPUAdmission, Lease, RequestInfo
from gpu_admission.devices import FixedDevice
from gpu_admission.estimators import Constant, Linear
from gpu_admission.serving import Batcher
from gpu_admission.testing import FakeDevice


async def answer(request): ...


def own(info: RequestInfo) -> int:
    return 1


admission = Admission(
    capacity="20GiB", estimator={"/v1/chat/**": Linear({"prompt_tokens": 1000}), "/in/*": own}
)
whole = FastAPI()
whole.add_middleware(GPUAdmission, admission=admission)
inner = APIRouter(prefix="/in")


@inner.post("/embed")
async def embed(lease: Annotated[Lease, Depends(admission.dependency("300MiB"))]) -> None: ...


@whole.post("/v1/chat/completions")
async def chat() -> None: ...


@whole.post("/draw/{size}")
@admission.admit(estimator=Constant("2GiB"))
async def draw(size: int) -> None: ...


@whole.post("/feedback")
async def feedback() -> None: ...


whole.include_router(inner)


def starlette(*, lifespan=None, **settings):
    routes = [Route("/work", answer, methods=["POST"]), Route("/look", answer)]
    routes = [Mount("/api", routes=routes), WebSocketRoute("/talk", answer)]
    return GPUAdmission(Starlette(routes=routes, lifespan=lifespan), **settings)


def decorated():
    own = Admission(capacity="2GiB", estimator="1GiB")
    return Starlette(routes=[Route("/work", own.admit(work), methods=["POST"])])


async def work(request): ...


def measured():
    return starlette(devices=[FakeDevice("24GiB", foreign="2GiB", ours="5GiB")], estimator="1GiB")


def added():
    app = FastAPI()
    app.add_middleware(GPUAdmission, devices=[FakeDevice("24GiB")], estimator="1GiB")
    return app


def outgrown(**settings):
    own = Admission(capacity="2GiB", estimator="100MiB", **settings)
    app = FastAPI()
    app.add_middleware(GPUAdmission, admission=own)
    app.post("/work")(own.admit(estimator="400MiB")(work))
    app.post("/less")(own.admit(estimator="50MiB")(work))
    return app


def outside():
    return outgrown(exclude=["/work"])


def depending(first, second):
    own = Admission(capacity="2GiB", estimator="100MiB")
    app = FastAPI()

    @app.post("/work", dependencies=[Depends(own.dependency(first))])
    @own.admit(estimator=second)
    async def work() -> None: ...

    return app


def more():
    return depending("200MiB", "400MiB")


def less():
    return depending("200MiB", "50MiB")


def unknown():
    return depending(Linear({"prompt_tokens": 1000}), "400MiB")


def unmeasured():
    device = FakeDevice("24GiB")
    device.error = "the driver is gone"
    return starlette(devices=[device], estimator="1GiB")


def too_large():
    return starlette(capacity="1GiB", estimator="2GiB")


def typo():
    return starlette(capacity="2GiB", estimator={"/api/work": "1GiB", "/api/wrok": "1GiB"})


def strays(**settings):
    return starlette(capacity="2GiB", estimator="1GiB", **settings)


def excluded():
    return strays(exclude=["/api/lok", "/api/look", "/api/l*"])


def controlled():
    return strays(control=["/stop"])


def talking():
    return strays(websockets=["/tlak"])


def spoken():
    return strays(dialect={"/api/wok": "openai"})


def mounted():
    own = Admission(capacity="2GiB", estimator={"/one": 5}, name="own")
    routes = [
        Route("/{kind}/{name:path}", answer, methods=["POST"]),
        WebSocketRoute("/talk", answer),
        Route("/one", own.admit(work), methods=["POST"]),
    ]
    inner = GPUAdmission(
        Starlette(routes=routes),
        capacity="2GiB",
        estimator={"/*/b/c": "1GiB", "/talk": "1GiB"},
        websockets=["/talk"],
        exclude=["/a/none/**"],
    )
    return Starlette(routes=[Mount("/below", inner)])


def through():
    app = Starlette(routes=[Route("/files/{path:path}", answer), Mount("/static", bare)])
    return GPUAdmission(app, capacity="2GiB", estimator="1GiB", exclude=["/files/x/y", "/static/a.css"])


def lifespan(start):
    @asynccontextmanager
    async def run(app):
        await start()
        Path("started").touch()
        yield
        Path("stopped").touch()

    return run


async def load(): ...


def started(start=load, **settings):
    device = FakeDevice("24GiB", ours="5GiB")
    return starlette(devices=[device], estimator="1GiB", lifespan=lifespan(start), **settings)


def breaks():
    async def load():
        raise OSError("no such weights")

    return started(load)


def never():
    return started(anyio.sleep_forever)


def blocks():
    async def load():
        sleep(60)

    return started(load)


def sharing():
    return started(shared=str(Path("shared").absolute()), name="ours")


def unpriced():
    return starlette(capacity="2GiB", routes=["/api/**"], estimator={"/api/other": "1GiB"})


def leaves():
    raise SystemExit(0)


def misspelt():
    return starlette(capacity="2GiB", estimator="1GiB", timout=3)


def off():
    return starlette(mode="off", estimator="1GiB")


async def bare(scope, receive, send): ...


def too_large_a_door() -> FastAPI:
    small = Admission(capacity="3GiB", estimator="1GiB")
    app = FastAPI()

    @app.post("/draw")
    @small.admit(estimator=Constant("5GiB"))
    async def draw() -> None: ...

    @app.post("/embed")
    async def embed(lease: Annotated[Lease, Depends(small.dependency("6GiB"))]) -> None: ...

    return app


def batching():
    own = Admission(capacity="2GiB", estimator="1GiB", exclude=["/embed"])
    embed = Batcher(len, cost=1000, admission=own, name="embedder")

    async def call(request):
        await embed(1)

    return GPUAdmission(Starlette(routes=[Route("/embed", call, methods=["POST"])]), admission=own)


plain = GPUAdmission(bare, capacity="2GiB", estimator="1GiB")
"""


@pytest.fixture(autouse=True)
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_service.py").write_text(APP)
    (tmp_path / "lone_service.py").write_text("async def bare(scope, receive, send): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def checked(capsys: pytest.CaptureFixture[str], name: str, *options: str, status: int = 0) -> str:
    app = name if name.startswith("lone") else f"some_service:{name}"
    assert cli.main(["check", app, *options]) == status
    said = capsys.readouterr()
    return said.err if status == 2 else said.out


def test_each_route_is_named_with_its_door_estimator_and_reader(capsys: pytest.CaptureFixture[str]) -> None:
    out = checked(capsys, "whole")
    lines = [line.split() for line in out.splitlines() if line.startswith("POST ")]
    assert ["POST", "/v1/chat/completions", "middleware", "Linear", "OpenAI"] in lines
    assert ["POST", "/in/embed", "middleware", "own", "TEI"] in lines
    assert ["POST", "/in/embed", "dependency", "300.00", "MiB", "-"] in lines
    assert ["POST", "/draw/{size}", "admit", "Constant", "-"] in lines
    assert out.partition("Not metered")[2].split("\n")[1] == "POST /feedback"
    assert "capacity 20.00 GiB was given in bytes" in out
    assert out.rstrip().endswith("no mistake was found")


def test_a_route_of_starlette_is_found_below_a_mount_and_safe_methods_are_not_metered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = checked(capsys, "measured()")
    lines = [line.split()[:3] for line in out.splitlines() if line.startswith(("POST ", "GET "))]
    assert lines == [["POST", "/api/work", "middleware"]]


def test_a_decorated_route_of_starlette_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert "POST /work" in checked(capsys, "decorated()")


def test_the_capacity_is_shown_term_by_term(capsys: pytest.CaptureFixture[str]) -> None:
    out = checked(capsys, "measured()")
    assert (
        "(24.00 GiB total - 0 B reserve - 2.00 GiB foreign - 5.00 GiB resident) less a margin of 10%" in out
    )
    assert "/interrupt" in out or "control paths, which pass at once" in out


def test_an_app_that_check_builds_and_starts_has_one_budget(capsys: pytest.CaptureFixture[str]) -> None:
    assert "two budgets" not in checked(capsys, "added()")


def test_an_inner_door_that_asks_for_more_than_the_outer_one_is_warned_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = checked(capsys, "outgrown()")
    assert "POST /work: middleware holds 100.00 MiB, and admit inside it asks for 400.00 MiB" in out
    assert out.count("inside it asks for") == 1
    assert "Admission(exclude=['/work'])" in out
    assert "inside it" not in checked(capsys, "outside()")


def test_a_dependency_is_passed_before_admit(capsys: pytest.CaptureFixture[str]) -> None:
    out = checked(capsys, "more()")
    assert "POST /work: dependency holds 200.00 MiB, and admit inside it asks for 400.00 MiB" in out
    assert "leaving the other out, or name its size in the estimator of the dependency" in out
    assert "inside it" not in checked(capsys, "less()")
    assert "inside it" not in checked(capsys, "unknown()")


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("unmeasured()", "mistake: capacity can't be measured on fake: the driver is gone"),
        ("too_large()", "mistake: estimator: even the smallest request needs 2.00 GiB"),
        ("too_large_a_door()", "mistake: admit on draw: even the smallest request needs 5.00 GiB"),
        ("too_large_a_door()", "mistake: dependency: even the smallest request needs 6.00 GiB"),
        ("typo()", "mistake: estimator: no route of the app matches '/api/wrok'; the nearest is '/api/work'"),
        ("excluded()", "mistake: exclude: no route of the app matches '/api/lok'; the nearest"),
        ("controlled()", "mistake: control: no route of the app matches '/stop'\n"),
        ("talking()", "mistake: websockets: no route of the app matches '/tlak'; the nearest is '/talk'"),
        ("spoken()", "mistake: dialect: no route of the app matches '/api/wok'; the nearest is '/api/work'"),
        ("breaks()", "mistake: the app's startup failed: OSError: no such weights"),
        ("unpriced()", "mistake: POST /api/work: no pattern of the estimator mapping matches"),
    ],
)
def test_a_mistake_is_named_and_makes_the_status_1(
    name: str, mistake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mistake in checked(capsys, name, status=1)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("misspelt()", "no setting 'timout'; did you mean 'timeout'"),
        ("nothing", "app 'some_service:nothing' can't be had"),
        ("leaves()", "the app can't be had: SystemExit: 0"),
        ("lone_service:bare", "lone_service:bare has no GPUAdmission"),
    ],
)
def test_what_can_not_be_looked_into_is_status_2(
    name: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in checked(capsys, name, status=2)


def test_of_an_app_whose_routes_can_not_be_told_every_path_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "/**      middleware; GET passes" in checked(capsys, "plain")


def test_a_batcher_is_named_where_its_routes_pass(capsys: pytest.CaptureFixture[str]) -> None:
    out = checked(capsys, "batching()")
    assert re.search("^batches of embedder +batcher ", out, re.MULTILINE)
    assert out.partition("Not metered")[2].split("\n")[1:3] == [
        "POST /embed",
        "of these, what calls a batcher is metered there, by the batch: embedder",
    ]


def test_an_admission_without_a_door_is_shown_as_the_apps_own(capsys: pytest.CaptureFixture[str]) -> None:
    out = checked(capsys, "bare")
    assert "capacity 20.00 GiB was given in bytes" in out
    assert "what the app asks itself  lease, job" in out


def test_a_budget_that_is_off_is_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    out = checked(capsys, "off()")
    assert "mode=off" in out
    assert "foreign" not in out


def test_a_pattern_that_some_path_below_a_route_or_a_mount_matches_is_no_mistake(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = checked(capsys, "through()")
    assert "POST /files" not in out
    assert "mistake:" not in out


def test_patterns_are_held_against_routes_as_doors_below_a_mount_see_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = checked(capsys, "mounted()")
    lines = [line.split() for line in out.splitlines()]
    assert ["WEBSOCKET", "/below/talk", "middleware", "1.00", "GiB", "-"] in lines
    assert ["POST", "/below/one", "admit", "5", "B", "-"] in lines


def test_the_app_is_started_looked_into_and_shut_down(capsys: pytest.CaptureFixture[str]) -> None:
    out = checked(capsys, "started()")
    assert "5.00 GiB resident" in out
    assert (Path("started").exists(), Path("stopped").exists()) == (True, True)


def test_no_startup_leaves_the_app_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert "the app was not started: --no-startup" in checked(capsys, "breaks()", "--no-startup")
    checked(capsys, "started()", "--no-startup")
    assert not Path("started").exists()


@pytest.mark.parametrize("name", ["never()", "blocks()"])
def test_a_startup_that_takes_too_long_is_a_mistake(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = checked(capsys, name, "--startup-timeout", "0.05", status=1)
    assert "mistake: the app's startup failed" in out
    assert not Path("stopped").exists()


def test_an_app_that_shares_a_budget_is_not_started(capsys: pytest.CaptureFixture[str]) -> None:
    out = checked(capsys, "sharing()")
    assert "the app was not started: budget 'ours' is shared, and a start would join it" in out
    assert not Path("started").exists()
