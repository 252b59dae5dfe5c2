"""Run an experiment, or all of them: train what is missing, make the result, say what was found."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from forerank.console import say
from forerank.errors import ForerankError, InputError, unknown
from forerank.paper import claims, page, runs
from forerank.paper.experiments import EXPERIMENTS, experiment
from forerank.paper.make import Product, make
from forerank.paper.study import SETTINGS, Run, Study


def open_study(
    names: Sequence[str],
    *,
    on: str | None = None,
    data: Sequence[str] = (),
    seeds: int = 3,
    out: Path | None = None,
    values: Sequence[str] = (),
) -> Study:
    """The study that the options of the command line describe.

    Args:
        on: data set; by default the one that `data` names, otherwise glyphs.
        data: "sop=/where/it/lies" texts.
        out: what is written goes here, by default runs/paper/DATA_SET.
        values: recipe assignments for every run.

    >>> open_study(["variants-sop"], data=["sop=."]).on
    'sop'
    >>> open_study(["variants-sop"]).on
    'glyphs'
    """
    roots = _roots(data)
    for name in names:
        experiment(name)  # an unknown one is refused here
    if on is None:
        if len(roots) > 1:
            raise InputError(f"--data names {', '.join(roots)}: say with --on which of them to train on")
        on = next(iter(roots), "glyphs")
    if on not in SETTINGS:
        raise unknown("data set", on, SETTINGS)
    if roots and on not in roots:
        raise InputError(
            f"--data {', '.join(roots)} would not be used, because training is on {on}: drop one"
        )
    if seeds < 1:
        raise InputError(f"seeds must be at least 1, not {seeds}")
    folder = out or Path("runs") / "paper" / on
    if any(part.exists() and not part.is_dir() for part in (folder, *folder.parents)):
        raise InputError(f"cannot write into {folder}: there is a file in its place")
    return Study(on, seeds, folder, folder / "training", roots, tuple(values))


def perform(
    names: Sequence[str],
    study: Study,
    *,
    side_by_side: int | None = None,
    processes: int = 1,
    show: Callable[[Product], None] = lambda product: None,
) -> list[Product]:
    """Make what needs no training, train everything else, make that; the page is written after every one.

    Finished runs and the toy's finished losses are skipped, so a stopped command goes on where it was. What
    fails is left out of the results, and said in an error when all the rest is made.

    Args:
        show: called with each product as soon as it is made.
    """
    study.folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    plan = plan_of(names, study)
    products: list[Product] = []
    failed: list[str] = []

    def make_all(some: Sequence[str]) -> None:
        for name in some:
            try:
                product = make(name, study)
            except ForerankError as error:
                failed.append(f"{name}: {error}")
                say(f"failed: {failed[-1]}")
                continue
            products.append(product)
            page.write(study, claims.write(study))
            show(product)

    make_all([name for name in names if not plan_of([name], study)])
    failed += runs.carry_out(
        plan, side_by_side=side_by_side or default_side_by_side(study), processes=processes
    )
    make_all([name for name in names if plan_of([name], study)])
    say(
        f"{len(products)} of {len(names)} experiments in {time.perf_counter() - began:.0f} s; "
        f"the page: {study.folder / page.NAME}"
    )
    if failed:
        raise ForerankError(
            f"{len(failed)} parts failed and are missing from the results, the first: {failed[0]}; "
            "the same command tries them again"
        )
    return products


def plan_of(names: Sequence[str], study: Study) -> list[Run]:
    """Every training run of some experiments, shared ones once, in the order in which they are needed."""
    found: dict[str, Run] = {}
    for name in names:
        for run in study.plan(experiment(name).conditions(study)):
            found.setdefault(run.key, run)
    return list(found.values())


def default_side_by_side(study: Study) -> int:
    """How many runs to train at once: one a core for small runs on a CPU, one otherwise."""
    import torch

    if torch.cuda.is_available() or not study.setting.quick:
        return 1
    return min(4, os.cpu_count() or 1)


def all_names() -> list[str]:
    """Every experiment, figures that need no training first, so that something can be looked at early."""
    cheap = [name for name, about in EXPERIMENTS.items() if about.native is None]
    return cheap + [name for name in EXPERIMENTS if name not in cheap]


def _roots(data: Sequence[str]) -> Mapping[str, str]:
    roots = {}
    for text in data:
        name, equals, path = text.partition("=")
        if not equals or not path:
            raise InputError(
                f"cannot read --data {text!r}: write it as NAME=FOLDER, for example sop=/data/sop"
            )
        if name not in SETTINGS:
            raise unknown("data set", name, SETTINGS)
        if not Path(path).is_dir():
            raise InputError(f"--data {name}: there is no folder {path}")
        roots[name] = str(Path(path).resolve())
    return roots
