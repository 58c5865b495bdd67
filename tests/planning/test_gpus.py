"""The table of cards, and the names that people and drivers give them."""

from __future__ import annotations

import pytest

from gpu_admission.planning.gpus import find_gpu, gpus
from gpu_admission.sizes import GIB


def test_every_card_has_a_name_of_its_own_a_source_and_plausible_numbers() -> None:
    table = gpus()
    assert len(table) >= 40
    assert len({gpu.name for gpu in table}) == len(table)
    for gpu in table:
        assert gpu.source
        assert 4 * GIB <= gpu.room <= gpu.memory <= 512 * GIB
        assert 50e9 <= gpu.bandwidth <= 10e12
        assert 1e12 <= gpu.flops <= 3e15
        assert gpu.flops8 == 0 or gpu.flops <= gpu.flops8 <= 2.1 * gpu.flops


@pytest.mark.parametrize("name", ["B200", "MI300X", "M2 Ultra", "Jetson AGX Orin 64GB", "A100 80GB 3g.40gb"])
def test_the_table_reaches_from_slices_to_the_largest(name: str) -> None:
    assert find_gpu(name).name == name


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4060 Ti", "RTX 4060 Ti"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A10", "A10"),
        ("Tesla T4", "T4"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "H100 1g.10gb"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("AMD Instinct MI300X", "MI300X"),
        ("M2 Ultra 192GB", "M2 Ultra"),
    ],
)
def test_a_card_is_found_as_people_and_drivers_write_it(asked: str, meant: str) -> None:
    assert find_gpu(asked).name == meant


def test_a_name_that_may_be_several_cards_is_refused_with_those() -> None:
    with pytest.raises(ValueError, match="may be several cards; write one of: A100 PCIe 40GB, A100 SXM 40GB"):
        find_gpu("A100")


def test_an_unknown_name_is_refused_with_what_is_known() -> None:
    with pytest.raises(ValueError, match="--gpu 'Voodoo 2' is no card that is known; write one of: RTX 3060"):
        find_gpu("Voodoo 2")


def test_a_card_whose_memory_is_also_the_systems_is_not_planned_full() -> None:
    apple = find_gpu("M3 Max")
    assert apple.room == int(0.75 * apple.memory)
