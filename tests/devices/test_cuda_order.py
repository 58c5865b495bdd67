from __future__ import annotations

import ctypes
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from gpu_admission.devices import cuda_order
from gpu_admission.devices.cuda_order import Card, NotVisible, Slice, ask_child, parse_visible, visible_ids

A = Card("GPU-aaaa1111", "NVIDIA L4", 24)
B = Card("GPU-aaaa2222", "NVIDIA L4", 24)
C = Card("GPU-cccc3333", "NVIDIA L4", 24)
FAST = Card("GPU-ffff4444", "NVIDIA H100", 80)
MIG = Card("GPU-dddd5555", "NVIDIA H100", 80, (Slice("MIG-1111", 1, 0), Slice("MIG-2222", 2, 0)))
EMPTY_MIG = Card("GPU-eeee6666", "NVIDIA H100", 80, ())


def never() -> Sequence[str]:
    raise AssertionError("CUDA must not be asked")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, [A, B, C]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2,0", [C, A]),
        (" 2 , 0 ", [C, A]),
        ("0,2,-1,1", [A, C]),
        ("0,9,1", [A]),
        ("0,x,1", [A]),
        ("0,,1", [A]),
        ("1,1", []),
        ("0,GPU-aaaa1111", []),
        ("GPU-cc,0", [C, A]),
        ("GPU-cccc3333,GPU-aaaa2222", [C, B]),
        ("GPU-aaaa", []),
        ("GPU-zz,0", []),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(value: str | None, shown: list[Card]) -> None:
    assert parse_visible(value, [A, B, C]) == [card.uuid for card in shown]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ["GPU-aaaa1111", "MIG-1111"]),
        ("1", ["MIG-1111"]),
        ("GPU-dddd5555", ["MIG-1111"]),
        ("MIG-2222", ["MIG-2222"]),
        ("MIG-22", ["MIG-2222"]),
        ("MIG-GPU-dddd5555/2/0", ["MIG-2222"]),
        ("MIG-GPU-dddd5555/9/0", []),
        ("2", []),
    ],
)
def test_a_card_in_mig_mode_shows_a_slice(value: str | None, shown: list[str]) -> None:
    assert parse_visible(value, [A, MIG, EMPTY_MIG]) == shown


def test_a_card_that_does_not_answer_is_not_shown() -> None:
    assert parse_visible(None, [Card("", "", None), A]) == ["GPU-aaaa1111"]


def test_cards_of_one_kind_keep_the_order_of_the_bus() -> None:
    assert visible_ids([A, B], {}, never) == [A.uuid, B.uuid]


def test_different_cards_are_in_the_order_that_cuda_tells() -> None:
    asked = visible_ids([A, FAST], {}, lambda: ["FFFF4444", "aaaa1111"])
    assert asked == [FAST.uuid, A.uuid]


def test_bus_order_makes_asking_needless() -> None:
    assert visible_ids([A, FAST], {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, never) == [A.uuid, FAST.uuid]


def test_uuids_make_asking_needless() -> None:
    env = {"CUDA_VISIBLE_DEVICES": "GPU-ffff4444,GPU-aaaa1111"}
    assert visible_ids([A, FAST], env, never) == [FAST.uuid, A.uuid]


def test_an_index_among_different_cards_is_asked_for() -> None:
    assert visible_ids([A, FAST], {"CUDA_VISIBLE_DEVICES": "1"}, lambda: ["aaaa1111"]) == [A.uuid]


def test_a_uuid_that_only_cuda_knows_is_kept() -> None:
    assert visible_ids([A, FAST], {}, lambda: ["0badcafe"]) == ["GPU-0badcafe"]


def script(folder: Path, text: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_the_child_tells_one_uuid_a_line(tmp_path: Path) -> None:
    assert ask_child(script(tmp_path, "echo 11; echo 22")) == ["11", "22"]


def test_a_child_that_finds_no_cuda_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(NotVisible, match=r"CUDA error 100.*set CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        ask_child(script(tmp_path, "echo 'CUDA error 100' >&2; exit 1"))


def test_a_python_that_can_not_be_started_is_no_crash(tmp_path: Path) -> None:
    with pytest.raises(NotVisible, match="FileNotFoundError"):
        ask_child(str(tmp_path / "nothing"))


class FakeCuda:
    """``libcuda`` as the child calls it: two devices, the second a MIG slice."""

    def __init__(self, code: int = 0, failing: int = -1) -> None:
        self._code, self._failing = code, failing

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return self._code

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 2
        return 0

    def cuDeviceGetUuid(self, ident: Any, index: int) -> int:  # noqa: N802
        ident[:] = bytes([index + 1] * 16)
        return 101 if index == self._failing else 0


def test_the_child_asks_cuda_for_each_uuid(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeCuda())
    exec(cuda_order._CHILD, {})
    assert capsys.readouterr().out.split() == [str(UUID(bytes=bytes([n] * 16))) for n in (1, 2)]


@pytest.mark.parametrize(
    ("library", "said"),
    [(FakeCuda(code=100), "CUDA error 100"), (FakeCuda(failing=1), "CUDA error 101"), (None, "no libcuda")],
)
def test_the_child_says_what_went_wrong(
    monkeypatch: pytest.MonkeyPatch, library: FakeCuda | None, said: str
) -> None:
    def load(name: str) -> FakeCuda:
        if library is None:
            raise OSError("no libcuda")
        return library

    monkeypatch.setattr(ctypes, "CDLL", load)
    with pytest.raises(SystemExit, match=said):
        exec(cuda_order._CHILD, {})


@pytest.mark.gpu
def test_the_child_tells_the_order_of_the_cards_that_are_here() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    shown = [str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())]
    assert ask_child() == shown
