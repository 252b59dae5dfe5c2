"""Run an experiment, or all of them: choose learning rates, train what is missing, write the results."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from forerank.console import say
from forerank.errors import ForerankError, InputError, check_name
from forerank.machine import choose_device
from forerank.paper import claims, kept_results, page, runs, tuning
from forerank.paper.experiments import EXPERIMENTS
from forerank.paper.render import Product, render
from forerank.paper.study import SETTINGS, Run, Study


def open_study(
    names: Sequence[str],
    *,
    on: str | None = None,
    data: Sequence[str] = (),
    seeds: int | None = None,
    other_seeds: int = 3,
    out: Path | None = None,
    values: Sequence[str] = (),
    beside: Sequence[str] = (),
    kept: Path | None = None,
) -> Study:
    """The study that the options of the command line describe, with the values chosen in its folder.

    Args:
        on: data set; by default the one that `data` names, otherwise glyphs.
        data: "sop=/where/it/lies" texts.
        seeds: for the losses that claims compare; None: 10 where a run takes a minute, else 3.
        other_seeds: for everything else.
        out: what is written goes here, by default runs/paper/DATA_SET.
        values: recipe assignments for every run.
        beside: further data sets for the figures that can show several, from the folders beside `out`.
        kept: a file with results of earlier runs, put into the folder before anything else; none if it is not
            there yet.

    >>> open_study(["variants-sop"], data=["sop=."]).on
    'sop'
    >>> open_study(["variants-sop"]).on
    'glyphs'
    """
    roots = _roots(data)
    for name in names:
        check_name("experiment", name, EXPERIMENTS)
    if on is None:
        if len(roots) > 1:
            raise InputError(f"--data names {', '.join(roots)}: say with --on which of them to train on")
        on = next(iter(roots), "glyphs")
    for name in (on, *beside):
        check_name("data set", name, SETTINGS)
    if roots and on not in roots:
        raise InputError(
            f"--data {', '.join(roots)} would not be used, because training is on {on}: leave out one of the "
            "two"
        )
    if seeds is None:
        seeds = 10 if SETTINGS[on].quick else 3
    for count in (seeds, other_seeds):
        if count < 1:
            raise InputError(f"seeds must be at least 1, not {count}")
    folder = out or Path("runs") / "paper" / on
    if any(part.exists() and not part.is_dir() for part in (folder, *folder.parents)):
        raise InputError(f"cannot write into {folder}: there is a file in its place")
    study = Study(on, seeds, other_seeds, folder, folder / "training", roots, tuple(values))
    if kept is not None and kept.exists():
        restored = kept_results.restore_results(study, kept)
        say(f"{restored} results taken over from {kept}")
    others = []
    for name in beside:
        place = folder.parent / name
        if not place.is_dir():
            raise InputError(f"--beside {name}: there is no study in {place}; run forerank paper there first")
        others.append(tuning.with_choices(replace(study, on=name, folder=place, runs=place / "training")))
    return replace(tuning.with_choices(study), beside=tuple(others))


def run_experiments(
    names: Sequence[str],
    study: Study,
    *,
    tune: bool = True,
    jobs: int | None = None,
    threads: int | None = None,
    processes: int = 1,
    show: Callable[[Product, Study], None] = lambda product, study: None,
) -> list[Product]:
    """Write what needs no training, choose learning rates, train, write the rest; the page after every
    result.

    Finished runs and finished seeds of the toy are skipped, so a stopped command continues where it was. What
    fails is left out of the results, and named in an error when everything else is done.

    Args:
        tune: choose learning rates on validation classes, where the data set allows it.
        jobs: training runs at the same time.
        threads: of each job.
        processes: of each run, see `runs.train_missing`.
        show: called with each product as soon as it is written.
    """
    study.folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    at_once = jobs or default_jobs(study)
    products: list[Product] = []
    failed: list[str] = []

    def render_all(some: Sequence[str]) -> None:
        for name in some:
            try:
                product = render(name, study)
            except ForerankError as error:
                failed.append(f"{name}: {error}")
                say(f"failed: {failed[-1]}")
                continue
            products.append(product)
            page.write_study_page(study, claims.write_claims(study))
            show(product, study)

    trained = [name for name in names if runs_needed([name], study)]
    render_all([name for name in names if name not in trained])
    if tune and trained and tuning.can_tune(study):
        study, problems = tuning.tune(study, methods_of(trained, study), jobs=at_once, threads=threads)
        failed += problems
    failed += runs.train_missing(
        runs_needed(trained, study), jobs=at_once, threads=threads, processes=processes
    )
    render_all(trained)
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


def runs_needed(names: Sequence[str], study: Study) -> list[Run]:
    """Every training run of some experiments, shared ones once, in the order in which they are needed."""
    needed: dict[str, Run] = {}
    for name in names:
        for run in EXPERIMENTS[name].plan(study):
            needed.setdefault(run.key, run)
    return list(needed.values())


def methods_of(names: Sequence[str], study: Study) -> list[str]:
    """The methods that some experiments train."""
    conditions = [c for name in names for c in EXPERIMENTS[name].conditions(study) if not c.all_weights]
    return list(dict.fromkeys(condition.method for condition in conditions))


def default_jobs(study: Study) -> int:
    """How many runs to train at the same time: one per core for small runs on a CPU, one otherwise."""
    if choose_device() != "cpu" or not study.setting.quick:
        return 1
    return min(4, os.cpu_count() or 1)


def all_names() -> list[str]:
    """Every experiment, figures that need no training first, so that there is something to look at early."""
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
        check_name("data set", name, SETTINGS)
        if not Path(path).is_dir():
            raise InputError(f"--data {name}: there is no folder {path}")
        roots[name] = str(Path(path).resolve())
    return roots
