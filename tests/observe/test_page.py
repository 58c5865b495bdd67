"""The status page in a real Chromium: it lives, hostile names are inert, and everybody can read it."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from gpu_admission import Admission, DeviceReading, GPUAdmission, Lane, RequestInfo, current_lease
from gpu_admission.observe import status_app
from gpu_admission.serving import Batcher
from gpu_admission.types import DeviceSnapshot, Receive, Scope, Send, Snapshot
from tests.observe.browser import Browser, chromium
from tests.observe.programs import program
from tests.observe.serving import served

pytestmark = pytest.mark.slow

HOSTILE_LANE = '"><script>boom()</script>'
HOSTILE_PATH = "/<img src=x onerror=boom()>"
TOKEN = "a-token-of-enough-characters"
GIB = 2**30


async def hold(scope: Scope, receive: Receive, send: Send) -> None:
    """Work that lasts until its client hangs up, and takes a little less than it was charged."""
    lease = current_lease()
    assert lease is not None
    lease.record_peak(lease.bytes * 7 // 8)
    while (await receive())["type"] != "http.disconnect":
        pass


ROUTES = ("/generate", "/embed", HOSTILE_PATH)


class Service:
    """An app with a status page, and clients that hold leases of it."""

    def __init__(self, shared: Path | None = None, routes: Sequence[str] | None = ROUTES) -> None:
        self.admission = Admission(
            shared=shared,
            name="<b>budget</b>",
            capacity="20GiB",
            estimator=lambda info: int(info.query["size"]) * GIB,
            routes=routes,
            lanes=[Lane("interactive"), Lane("batch", limit=0.75), Lane(HOSTILE_LANE)],
            lane=_lane,
            timeout=600,
            max_waiting=3,
        )
        page = status_app(self.admission, allow=lambda connection: True)
        guarded = status_app(self.admission, token=TOKEN)
        self.batch_may_end = threading.Event()
        self._batcher: Batcher[int, int] = Batcher(self._run, cost="1GiB", admission=self.admission)
        batched = Route("/batched", self._batch, methods=["POST"])
        app = Starlette(routes=[Mount("/gpu", page), Mount("/guarded", guarded), batched, Mount("/", hold)])
        app.add_middleware(GPUAdmission, admission=self.admission)
        self.app = app
        self._clients: list[http.client.HTTPConnection] = []

    async def _batch(self, request: Request) -> Response:
        return JSONResponse(await self._batcher(1))

    def _run(self, items: list[int]) -> list[int]:
        """A batch that lasts until the test lets it end."""
        assert self.batch_may_end.wait(60)
        return items

    def lower(self, ceiling: int) -> None:
        """As if a guard had set a ceiling on a measured device."""
        snapshot = self.admission.snapshot

        def lowered() -> Snapshot:
            now = snapshot()
            reading = DeviceReading(total=24 * GIB, used=21 * GIB, ours=16 * GIB, temperature=71.0)
            device = DeviceSnapshot(
                "device", now.capacity, now.in_use, ceiling, "memory", "others took 5.00 GiB", reading, 0.4
            )
            return msgspec.structs.replace(now, devices=(device,), ceiling=ceiling)

        self.admission.snapshot = lowered  # type: ignore[method-assign]

    def post(self, path: str, size: int, lane: str) -> http.client.HTTPConnection:
        """Ask for ``size`` GiB; whoever gets them holds them until the connection is closed."""
        client = http.client.HTTPConnection(self.address.netloc, timeout=20)
        client.request("POST", f"{path}?size={size}", body=b"{}", headers={"x-lane": lane})
        self._clients.append(client)
        return client

    @contextmanager
    def running(self) -> Iterator[str]:
        with served(self.app) as address:
            self.address = urlsplit(address)
            try:
                yield f"{address}/gpu/"
            finally:
                self.hang_up()

    def hang_up(self) -> None:
        for client in self._clients:
            client.close()


def _lane(info: RequestInfo) -> str:
    named = {"interactive": "interactive", "batch": "batch", "hostile": HOSTILE_LANE}
    return named[info.headers["x-lane"]]


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def page(service: Service, tmp_path: Path) -> Iterator[Browser]:
    """The page of the service, open in a browser, live."""
    path = program("chromium", "chromium-browser", "google-chrome")
    with chromium(path, tmp_path / "profile") as browser, service.running() as address:
        browser.open(address)
        browser.wait_for("document.getElementById('link').textContent === 'live'")
        yield browser
        assert_quiet(browser, address)


def assert_quiet(browser: Browser, address: str) -> None:
    """No error on the console, and no request to another host."""
    assert browser.told("Runtime.exceptionThrown") == []
    assert browser.told("Log.entryAdded") == []
    assert browser.told("Runtime.consoleAPICalled") == []
    asked = {urlsplit(told["request"]["url"]) for told in browser.told("Network.requestWillBeSent")}
    hosts = {url.netloc.rpartition("@")[2] for url in asked if url.scheme != "data"}
    assert hosts == {urlsplit(address).netloc}


def rows(browser: Browser, table: str) -> list[list[str]]:
    """The text of the cells of a table."""
    cells: list[list[str]] = browser.evaluate(
        f"[...document.getElementById('{table}').rows].map(row => [...row.cells].map(c => c.textContent))"
    )
    return cells


def fill(service: Service, page: Browser) -> None:
    """A busy service: leases in all lanes, a full queue, refusals, a measured peak, a lowered ceiling."""
    service.post("/embed", 8, "batch")
    page.wait_for("document.getElementById('leases').rows.length === 1")
    service.hang_up()
    page.wait_for("document.getElementById('estimates').rows.length === 1")
    service.lower(18 * GIB)
    for size, lane in ((4, "interactive"), (6, "batch"), (1, "interactive"), (2, "batch"), (3, "hostile")):
        service.post("/generate", size, lane)
    page.wait_for("document.getElementById('leases').rows.length === 5")
    for lane in ("interactive", "batch", "interactive"):
        for _ in range(2):
            service.post("/embed", 15, lane)
    for _ in range(3):
        service.post("/generate", 40, "batch").getresponse().read()
    page.wait_for("document.getElementById('queue').rows.length >= 4")
    page.wait_for("document.getElementById('refusals').rows.length >= 3")


def test_a_lease_is_on_the_page_within_a_second_and_leaves_it_when_it_ends(
    service: Service, page: Browser
) -> None:
    client = service.post("/generate", 5, "interactive")
    page.wait_for("document.getElementById('leases').rows.length === 1", limit=1.0)
    assert rows(page, "leases")[0][1] == "5.00 GiB"
    assert rows(page, "leases")[0][3:] == ["interactive", "/generate", "device"]
    assert page.evaluate("document.querySelectorAll('.block:not(.ceiling)').length") == 1
    client.close()
    page.wait_for("document.getElementById('leases').rows.length === 0", limit=1.0)


def test_a_route_without_a_pattern_has_the_name_that_it_has_in_the_metrics(tmp_path: Path) -> None:
    service, path = Service(routes=None), program("chromium", "chromium-browser", "google-chrome")
    with chromium(path, tmp_path / "profile") as browser, service.running() as address:
        browser.open(address)
        service.post("/generate", 5, "batch")
        browser.wait_for("document.getElementById('leases').rows.length === 1")
        assert rows(browser, "leases")[0][4] == "unmatched"


def test_hostile_names_are_shown_as_they_are_and_do_nothing(service: Service, page: Browser) -> None:
    page.evaluate("window.boomed = 0; window.boom = () => { window.boomed += 1; }")
    service.post("/%3Cimg%20src=x%20onerror=boom()%3E", 3, "hostile")
    page.wait_for("document.getElementById('leases').rows.length === 1")
    assert rows(page, "leases")[0][3:5] == [HOSTILE_LANE, HOSTILE_PATH]
    assert "<b>budget</b>" in page.evaluate("document.querySelector('h1').textContent")
    assert page.evaluate("document.querySelectorAll('main script, main img, h1 b').length") == 0
    assert page.evaluate("window.boomed") == 0


def test_the_queue_is_shown_in_order_and_refusals_with_their_reason(service: Service, page: Browser) -> None:
    fill(service, page)
    queue = rows(page, "queue")
    assert [row[0] for row in queue] == [str(place + 1) for place in range(len(queue))]
    assert {row[2] for row in queue} == {"15.00 GiB"}
    reasons = {row[1]: row[2] for row in rows(page, "refusals")}
    assert reasons["too_large (413)"] == "needs more than can ever be free"


def totals(browser: Browser) -> dict[str, str]:
    shown: dict[str, str] = browser.evaluate(
        "Object.fromEntries([...document.getElementById('totals').children]"
        ".map(box => [box.children[0].textContent, box.children[1].textContent]))"
    )
    return shown


def test_refused_requests_are_counted_by_their_reason(service: Service, page: Browser) -> None:
    for _ in range(3):
        service.post("/generate", 40, "batch").getresponse().read()
    page.wait_for("document.getElementById('refusals').rows.length === 3")
    assert totals(page)["Refused"] == "3"
    note = page.evaluate("document.getElementById('refusals-note').textContent")
    assert note == "Since the start: 3 too_large."


def test_the_sizes_of_one_figure_have_one_unit(service: Service, page: Browser) -> None:
    service.post("/generate", 1, "interactive")
    page.wait_for("document.getElementById('leases').rows.length === 1")
    sizes = [totals(page)[name] for name in ("Held", "Capacity", "Free now", "Peak")]
    assert sizes == ["1.00 GiB", "20.00 GiB", "19.00 GiB", "1.00 GiB"]
    axis = page.evaluate("[...document.querySelectorAll('#chart text')].map(t => t.textContent)")
    assert [text for text in axis if "B" in text] == ["0 GiB", "10.00 GiB", "20.00 GiB"]


@pytest.mark.parametrize("width", [1280, 390])
def test_blocks_that_are_too_narrow_for_their_figures_are_one(
    service: Service, page: Browser, width: int
) -> None:
    page.look(width=width, height=900, scheme="light", phone=width < 800)
    service.post("/generate", 8, "interactive")
    for _ in range(6):
        service.post("/generate", 1, "batch")
    page.wait_for("document.getElementById('leases').rows.length === 7")
    page.wait_for("document.querySelectorAll('.block:not(.ceiling)').length === 2")
    blocks = page.evaluate(
        "[...document.querySelectorAll('.block:not(.ceiling)')]"
        ".map(b => [...b.children].map(c => c.textContent))"
    )
    assert blocks[0][0] == "8.00 GiB"
    assert blocks[1] == ["6.00 GiB", "6 small"]
    cut = page.evaluate(
        "[...document.querySelectorAll('.block:not(.ceiling):not(.narrow)')]"
        ".filter(b => b.children[0].scrollWidth > b.children[0].clientWidth).length"
    )
    assert cut == 0, "the bytes of each block can be read"


def test_a_closed_device_is_told_in_words_and_announced(service: Service, page: Browser) -> None:
    state = "document.getElementById('state').textContent"
    assert page.evaluate(state) == "Open: requests start when they fit."
    service.admission.drain()
    page.wait_for(f"{state} === 'Draining: nobody is let in.'", limit=1.0)
    assert page.evaluate("document.getElementById('state').getAttribute('role')") == "status"


def test_a_shared_budget_that_begins_anew_is_told_in_words(tmp_path: Path) -> None:
    place = tmp_path / "gpu0"
    service, path = Service(place), program("chromium", "chromium-browser", "google-chrome")
    state = "document.getElementById('state').textContent"
    with chromium(path, tmp_path / "profile") as browser, service.running() as address:
        browser.open(address)
        browser.wait_for(f"{state} === 'Open: requests start when they fit.'")
        shutil.rmtree(place)
        browser.wait_for(f"{state}.startsWith('The shared budget begins anew: it lets nothing start for')")
        service.batch_may_end.set()


def test_a_lowered_ceiling_is_shown_with_who_set_it_and_why(service: Service, page: Browser) -> None:
    service.lower(15 * GIB)
    page.wait_for("!document.querySelector('.ceiling').hidden")
    assert page.evaluate("document.querySelector('.ceiling').style.width") == "25%"
    assert rows(page, "ceilings")[0][:4] == ["device", "15.00 GiB", "memory", "others took 5.00 GiB"]
    assert rows(page, "ceilings")[0][5] == "5.00 GiB"
    service.lower(0)
    page.wait_for("document.getElementById('state').textContent.startsWith('device is closed by memory')")


def test_a_stream_that_ends_is_followed_by_the_next(
    service: Service, page: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_admission.observe.status._STREAM_SECONDS", 0.5)
    page.call("Page.reload")
    for _ in range(3):
        page.wait_until_told("Network.requestWillBeSent", lambda told: told["type"] == "EventSource")
    page.wait_for("document.getElementById('link').textContent === 'live'")


def test_pausing_keeps_the_page_still_until_it_is_resumed(service: Service, page: Browser) -> None:
    page.evaluate("document.getElementById('pause').focus()")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", text="\r")
    page.call("Input.dispatchKeyEvent", type="keyUp", key="Enter", code="Enter")
    assert page.evaluate("document.getElementById('pause').getAttribute('aria-pressed')") == "true"
    service.post("/generate", 5, "batch")
    page.wait_until_told("Network.eventSourceMessageReceived", lambda told: '"running":1' in told["data"])
    page.wait_until_told("Network.eventSourceMessageReceived", lambda told: '"running":1' in told["data"])
    assert rows(page, "leases") == []
    page.evaluate("document.getElementById('pause').click()")
    page.wait_for("document.getElementById('leases').rows.length === 1", limit=1.0)


def test_a_browser_that_knows_the_token_sees_the_page(service: Service, tmp_path: Path) -> None:
    path = program("chromium", "chromium-browser", "google-chrome")
    with chromium(path, tmp_path / "profile") as browser, service.running() as address:
        page = address.replace("/gpu/", "/guarded/")
        browser.open(page.replace("http://", f"http://anybody:{TOKEN}@"))
        browser.wait_for("document.getElementById('link')?.textContent === 'live'")
        assert_quiet(browser, page)


def test_without_a_stream_the_page_asks_for_json_now_and_then(service: Service, tmp_path: Path) -> None:
    path = program("chromium", "chromium-browser", "google-chrome")
    with chromium(path, tmp_path / "profile") as browser, service.running() as address:
        browser.call(
            "Page.addScriptToEvaluateOnNewDocument",
            source="""window.EventSource = class {
              static CLOSED = 2; readyState = 2;
              constructor() { setTimeout(() => this.onerror(), 0); }
              close() {}
            };""",
        )
        browser.open(address)
        browser.wait_for("document.getElementById('link').textContent === 'asking every 2 s'")
        service.post("/generate", 5, "batch")
        browser.wait_for("document.getElementById('leases').rows.length === 1")
        assert_quiet(browser, address)


def open_to_all(page: Browser, scheme: str, tmp_path: Path) -> None:
    """Axe finds nothing serious, and nothing sticks out, on a desk and on a phone."""
    axe = (Path(__file__).parent / "data" / "axe.min.js").read_text(encoding="utf-8")
    page.evaluate(axe + "; 0")
    for width, height, phone in ((1280, 900, False), (390, 844, True)):
        page.look(width=width, height=height, scheme=scheme, phone=phone)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']}).then(r => r.violations)")
        serious = [violation for violation in found if violation["impact"] in ("serious", "critical")]
        assert serious == [], json.dumps(serious, indent=1)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        shot = tmp_path / f"{scheme}-{'phone' if phone else 'desk'}.png"
        page.screenshot(shot)
        assert shot.stat().st_size > 10_000


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_and_nothing_sticks_out(
    service: Service, page: Browser, scheme: str, tmp_path: Path
) -> None:
    fill(service, page)
    open_to_all(page, scheme, tmp_path)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nor_with_the_processes_of_a_shared_budget_and_batches(scheme: str, tmp_path: Path) -> None:
    service, path = Service(tmp_path / "gpu0"), program("chromium", "chromium-browser", "google-chrome")
    hold_some = [sys.executable, "-m", "gpu_admission", "hold", "2GiB", str(tmp_path / "gpu0"), "--", "cat"]
    with chromium(path, tmp_path / "profile") as browser, service.running() as address:
        browser.open(address)
        browser.wait_for("document.getElementById('link').textContent === 'live'")
        service.post("/batched", 0, "batch")
        browser.wait_for("document.getElementById('leases').rows.length === 1")
        assert rows(browser, "leases")[0][4] == "batch batcher"
        other = subprocess.Popen(hold_some, stdin=subprocess.PIPE)
        try:
            browser.wait_for("document.getElementById('members').rows.length === 2")
            service.post("/generate", 15, "interactive")
            service.post("/embed", 9, "interactive")
            browser.wait_for("document.getElementById('queue').rows.length === 1")
            assert {row[2] for row in rows(browser, "members")} == {"16.00 GiB", "2.00 GiB"}
            open_to_all(browser, scheme, tmp_path)
        finally:
            service.batch_may_end.set()
            other.communicate(timeout=20)
        assert_quiet(browser, address)
