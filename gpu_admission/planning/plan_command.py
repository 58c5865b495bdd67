"""``gpu-admission plan``: its options, and the order in which a plan is made and shown.

What is planned is in ``plan``, what is played in ``waiting``, what is said in ``plan_report``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from gpu_admission.devices import discover
from gpu_admission.estimators import Linear, ModelConfig
from gpu_admission.planning.demand import PLAYED, Demand, at_once, at_rate, from_trace, parse_mix
from gpu_admission.planning.exits import exit_status
from gpu_admission.planning.gpus import Gpu, find_gpu, gpus
from gpu_admission.planning.options import count, new_file, not_negative, positive, read_by, share, size
from gpu_admission.planning.plan import Memory, Plan, Sized, charges, estimator_for, make_plan, settings
from gpu_admission.planning.plan_page import page
from gpu_admission.planning.plan_report import (
    Report,
    load_table,
    memory_table,
    patience,
    played_notes,
    played_table,
    promised,
    sentences,
    size_table,
    what_to_change,
)
from gpu_admission.planning.roofline import Engine, Roofline, engines, roofline_of
from gpu_admission.planning.terminal import Terminal
from gpu_admission.planning.waiting import STEPS, SUSTAINED, Played, Setting, Slo, largest_load
from gpu_admission.planning.weights import Weights, weights_of

_DESCRIPTION = """
What a model leaves of a card, how many requests fit and how fast they are, which wait to expect,
and the settings to paste. Nothing is loaded or run: bytes come from the model's config, speed from
a roofline. Without --gpu it plans for this machine's card, or with --slo finds the smallest one.
"""
_LOADS = (0.3, 0.5, 0.7, 0.8, 0.9, 1.0)
OVERLOAD = 1.2

_Add: TypeAlias = Callable[..., object]


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The model as it was asked for, and what its requests are charged by."""

    config: ModelConfig
    weights: Weights
    dtype: str
    kv_dtype: str
    eight_bit: bool
    costs: Linear | None

    def card(self, gpu: Gpu, engine: Engine) -> Roofline:
        return roofline_of(
            self.config, gpu, engine, self.weights, kv_dtype=self.kv_dtype, eight_bit=self.eight_bit
        )

    def estimator(self, card: Roofline) -> Sized:
        if self.costs is not None:
            return self.costs
        return estimator_for(self.config, card, dtype=self.dtype, kv_dtype=self.kv_dtype)


def main(arguments: Sequence[str]) -> int:
    """Run the command; its exit status."""
    options = _parser().parse_args(arguments)
    return exit_status("plan", lambda: _run(options, Terminal(), Terminal(sys.stderr)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu-admission plan", description=_DESCRIPTION)
    add = parser.add_argument
    add(
        "--model", type=Path, required=True, metavar="config.json", help="of the model, or the folder with it"
    )
    add("--gpu", metavar="NAME", help="such as 'RTX 4090' (default: this machine's)")
    add("--engine", choices=tuple(engines()), default="transformers", help="(default %(default)s)")
    add(
        "--slo",
        type=read_by(Slo.parse),
        metavar="'p95<5s'",
        help="the smallest card, or the largest load, that keeps it: of the waits in the queue, until work "
        "begins; 'answer p95<20s' is of the times until the answer is complete",
    )
    add("--html", type=new_file, metavar="FILE", help="write the plan there too, with plots")
    _asked(parser.add_argument_group("what is asked").add_argument)
    _stored(parser.add_argument_group("the model and the memory").add_argument)
    _speed(parser.add_argument_group("the speed").add_argument)
    return parser


def _asked(add: _Add) -> None:
    add(
        "--mix",
        type=read_by(parse_mix),
        default="512+256",
        metavar="NxP+T,...",
        help="how many with P prompt and T new tokens (default 512+256)",
    )
    add(
        "--rate",
        type=positive,
        metavar="R",
        help="requests of the mix a second, at random (default: all at once)",
    )
    add("--trace", type=Path, metavar="CSV", help="of arrival_s,input_tokens,output_tokens, instead of a mix")
    add(
        "--timeout",
        type=not_negative,
        default=None,
        metavar="S",
        help="that requests wait at most (default: none, and one is proposed)",
    )
    add("--max-waiting", type=count, default=None, metavar="N", help="that wait at once (default: no limit)")


def _stored(add: _Add) -> None:
    add("--dtype", metavar="NAME", help="that weights are stored in (default: what the config says)")
    add("--kv-dtype", default=None, metavar="NAME", help="of the cache (default: what the model computes in)")
    add("--weights", type=size, metavar="SIZE", help="bytes of the weights, where the config does not tell")
    add(
        "--costs", type=Path, metavar="FILE", help="measured by gpu-admission calibrate, instead of a formula"
    )
    add("--memory", type=size, metavar="SIZE", help="of the card, instead of the table's")
    add(
        "--context",
        type=size,
        default="512MiB",
        metavar="SIZE",
        help="of CUDA and libraries (default 512MiB)",
    )
    add(
        "--margin",
        type=share,
        default=0.1,
        metavar="X",
        help="share kept free where there is no pool (default 0.1)",
    )


def _speed(add: _Add) -> None:
    add("--bandwidth-share", type=positive, metavar="X", help="of the card's bandwidth that is reached")
    add("--compute-share", type=positive, metavar="X", help="of its matrix rate that is reached")
    add(
        "--layer-us",
        type=not_negative,
        metavar="US",
        help="microseconds of each layer and step beside computing",
    )
    add(
        "--batch",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="requests that run at once share a step",
    )


def _run(options: argparse.Namespace, out: Terminal, err: Terminal) -> int:
    model = _model(options)
    if options.gpu is None and options.slo is not None:
        plan, demand = _smallest(options, model, err)
    else:
        plan, demand = _plan(options, model, _gpu(options))
    report = _report(options, model, plan, demand, err)
    _show(report, out)
    if options.html is not None:
        options.html.write_text(page(report), encoding="utf-8")
        err.line(f"written: {options.html}")
    return 0


def _model(options: argparse.Namespace) -> Model:
    config = ModelConfig.read(options.model)
    weights = weights_of(options.model, config, dtype=options.dtype, given=options.weights)
    computes = config.dtype or "bf16"
    return Model(
        config=config,
        weights=weights,
        dtype=computes,
        kv_dtype=options.kv_dtype or computes,
        eight_bit=weights.eight_bit,
        costs=None if options.costs is None else Linear.load(options.costs),
    )


def _gpu(options: argparse.Namespace) -> Gpu:
    """The card that was named; else this machine's first, with the memory that its driver reports."""
    if options.gpu is not None:
        return find_gpu(options.gpu)
    found = discover()
    device = found.devices[0]
    try:
        gpu = find_gpu(device.name)
    except ValueError:
        raise ValueError(f"{found.reason}: name a card with --gpu, or promise something with --slo") from None
    total = device.read().total
    return gpu if total is None else msgspec.structs.replace(gpu, memory=total)


def _engine(options: argparse.Namespace) -> Engine:
    given = {
        "bandwidth": options.bandwidth_share,
        "compute": options.compute_share,
        "layer": None if options.layer_us is None else options.layer_us / 1e6,
        "batches": options.batch,
    }
    return msgspec.structs.replace(
        engines()[options.engine], **{name: value for name, value in given.items() if value is not None}
    )


def _plan(options: argparse.Namespace, model: Model, gpu: Gpu) -> tuple[Plan, Demand]:
    card = model.card(gpu, _engine(options))
    demand = _demand(options)
    memory = Memory(total=options.memory, context=options.context, margin=options.margin)
    plan = make_plan(model.config, card, demand, model.estimator(card), memory=memory, dtype=model.dtype)
    return plan, demand


def _demand(options: argparse.Namespace) -> Demand:
    if options.trace is not None:
        return from_trace(options.trace)
    return at_once(options.mix) if options.rate is None else at_rate(options.mix, options.rate)


def _setting(options: argparse.Namespace, model: Model, plan: Plan, demand: Demand) -> Setting:
    limits = {"timeout": options.timeout, "max_waiting": options.max_waiting}
    return Setting(
        card=plan.card,
        capacity=plan.capacity,
        charged=charges(demand, model.estimator(plan.card)),
        **{name: value for name, value in limits.items() if value is not None},
    )


def _report(options: argparse.Namespace, model: Model, plan: Plan, demand: Demand, err: Terminal) -> Report:
    setting = _setting(options, model, plan, demand)
    played = _compared(setting, plan, demand)
    by_load: Sequence[tuple[float, Played]] = ()
    if options.trace is None:
        by_load = _by_load(options, model, plan, err)
    promise = "" if options.slo is None else _promise(options, model, plan, demand, err)
    wait = options.timeout if options.timeout is not None else patience(played[1])
    kind = model.config.model_type or "model"
    return Report(
        title=f"{kind} on {plan.card.gpu.name} under {plan.card.engine.name}",
        plan=plan,
        demand=demand,
        played=played,
        by_load=by_load,
        promise=promise,
        settings=settings(
            plan, config=str(options.model), kv_dtype=model.kv_dtype, wait=wait, costs=options.costs
        ),
    )


def _compared(setting: Setting, plan: Plan, demand: Demand) -> Sequence[Played]:
    """The safe semaphore and the budget: at the given load, and overloaded too if that load has a limit."""
    rows = [(demand, "")]
    if not demand.at_once:
        short = demand.first(PLAYED)
        rows.append((short.faster(OVERLOAD * plan.load_limit / short.rate), f" at {OVERLOAD:g} x the limit"))
    slots = max(1, plan.slots)
    ways = ((slots, f"Semaphore({slots})"), (None, "budget of bytes"))
    return [
        setting.play(asked, permits=permits, name=f"{name}{how}")
        for asked, how in rows
        for permits, name in ways
    ]


def _by_load(
    options: argparse.Namespace, model: Model, plan: Plan, err: Terminal
) -> Sequence[tuple[float, Played]]:
    rows = []
    with err.progress("playing loads", len(_LOADS)) as step:
        for part in _LOADS:
            rate = part * plan.load_limit
            demand = at_rate(options.mix, rate)
            rows.append((rate, _setting(options, model, plan, demand).play(demand)))
            step(f"{rate:.3g} requests/s")
    return rows


def _promise(options: argparse.Namespace, model: Model, plan: Plan, demand: Demand, err: Terminal) -> str:
    if demand.at_once:
        demand = at_rate(options.mix, plan.load_limit)
    demand = demand.first(PLAYED)
    setting, most = _setting(options, model, plan, demand), SUSTAINED * plan.load_limit
    with err.progress("searching the largest load", STEPS) as step:
        rate = largest_load(setting, demand, options.slo, most=most, said=step)
    return promised(options.slo, rate, plan)


def _smallest(options: argparse.Namespace, model: Model, err: Terminal) -> tuple[Plan, Demand]:
    """The card with the least memory, and then the least bandwidth, that keeps the promise."""
    if options.trace is None and options.rate is None:
        raise ValueError(
            "--slo without --gpu looks for a card: say what it must carry, with --rate or --trace"
        )
    table = sorted(gpus(), key=lambda gpu: (gpu.room, gpu.bandwidth))
    with err.progress("trying cards", len(table)) as step:
        for gpu in table:
            step(gpu.name)
            found = _tried(options, model, gpu)
            if found is not None:
                return found
    raise ValueError(
        f"no card of the table keeps {options.slo} for {_demand(options).says}: "
        f"{what_to_change(_engine(options))}"
    )


def _tried(options: argparse.Namespace, model: Model, gpu: Gpu) -> tuple[Plan, Demand] | None:
    try:
        plan, demand = _plan(options, model, gpu)
    except ValueError:
        return None  # the weights alone are too large for it
    short = demand.first(PLAYED)
    if not plan.slots or demand.rate > SUSTAINED * plan.load_limit:
        return None
    kept = options.slo.kept(_setting(options, model, plan, short).play(short))
    return (plan, demand) if kept else None


def _show(report: Report, out: Terminal) -> None:
    out.line(report.title, style="bold")
    out.line(f"asked: {report.demand.says}")
    out.heading("Memory")
    out.table(memory_table(report.plan))
    out.heading("How many at once")
    out.table(size_table(report.plan))
    out.heading("Played")
    out.table(played_table(report))
    for text in played_notes(report):
        out.line(text)
    if report.by_load:
        out.heading("Which wait to expect")
        out.table(load_table(report))
    out.heading("What it rests on")
    for text in sentences(report):
        out.line(text)
    if report.promise:
        out.heading("Promise")
        out.line(report.promise, style="bold")
    out.heading("Settings")
    out.line(report.settings)
