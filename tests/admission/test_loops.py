"""Telling asyncio from trio, and one loop from another."""

from __future__ import annotations

import asyncio
import sys

import pytest
import trio

from gpu_admission.runtime.loop import call_soon, is_running, running_loop


def test_outside_of_a_loop_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError):
        running_loop()
    monkeypatch.delitem(sys.modules, "trio")
    with pytest.raises(RuntimeError, match="no event loop is running"):
        running_loop()


def test_an_asyncio_loop_runs_while_it_runs() -> None:
    called: list[str] = []

    async def main() -> asyncio.AbstractEventLoop:
        loop: asyncio.AbstractEventLoop = running_loop()
        assert loop is asyncio.get_running_loop()
        assert is_running(loop)
        assert call_soon(loop, lambda: called.append("soon"))
        await asyncio.sleep(0)
        return loop

    loop = asyncio.run(main())
    assert called == ["soon"]
    assert not is_running(loop)
    assert not call_soon(loop, lambda: called.append("too late"))
    assert called == ["soon"]


def test_a_trio_run_is_one_while_it_runs() -> None:
    called: list[str] = []

    async def main() -> trio.lowlevel.TrioToken:
        token: trio.lowlevel.TrioToken = running_loop()
        assert token is trio.lowlevel.current_trio_token()
        assert is_running(token)
        assert call_soon(token, lambda: called.append("soon"))
        await trio.testing.wait_all_tasks_blocked()
        return token

    token = trio.run(main)
    assert called == ["soon"]
    assert not is_running(token)
    assert not call_soon(token, lambda: called.append("too late"))
