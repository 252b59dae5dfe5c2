"""`forerank compare`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from forerank.console import format_table, print_json, say
from forerank.errors import InputError


def compare(
    *runs: str,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("comparison.html"),
    seed: int = 0,
    json: bool = False,
) -> None:
    """Compare finished runs: tables, curves, and differences to the first with 95% intervals.

    The best model of every run is measured again on its test images. Where the test sets are the same, the
    differences are paired query by query, and whole classes are drawn anew for the intervals. Where they are
    not, this is said, and only the figures stand beside each other.

    Examples:

        forerank compare runs/birds runs/birds-contrastive
        forerank compare runs/a runs/b runs/c -o abc.html --json

    Parameters
    ----------
    runs
        Two run folders or more; the first is what the others are compared with.
    output
        The page to write.
    seed
        Of the intervals.
    json
        Print the numbers as JSON.
    """
    import torch

    from forerank.metrics.registry import shown, title
    from forerank.models import keep_freed_memory
    from forerank.report.comparison import ComparedRun, comparison_dict, pair_runs, write_comparison
    from forerank.training import embed_run
    from forerank.training.measure import measure
    from forerank.training.processes import Processes
    from forerank.training.recipe import nested
    from forerank.training.record import RECIPE, is_run, read_history

    if len(runs) < 2:
        raise InputError("give two run folders or more, as in: forerank compare runs/a runs/b")
    for run in runs:
        if not is_run(Path(run)):
            raise InputError(f"{run} is not a run folder: it has no {RECIPE}")
    if len({Path(run).resolve() for run in runs}) < len(runs):
        raise InputError("one run is given twice")
    keep_freed_memory()
    names = [Path(run).resolve().name for run in runs]
    compared = []
    for run, name in zip(runs, names, strict=True):
        embedded, recipe = embed_run(Path(run), "test")
        one = Processes(0, 1, torch.device("cpu"))
        evaluation = measure(embedded, recipe, one, full=True, metrics=None, nmi=False)
        called = name if names.count(name) == 1 else run
        history = read_history(Path(run))
        compared.append(ComparedRun(called, embedded.table, evaluation, history, nested(recipe)))
    paired = pair_runs(compared, seed=seed)
    write_comparison(output, compared, paired)
    if json:
        print_json({**comparison_dict(compared, paired), "page": str(output)})
        return
    wanted = [m for m in ("recall@1", "map@r", "map") if all(m in c.evaluation for c in compared)]
    rows = [[c.name, *[shown(m, c.evaluation[m], mark=False) for m in wanted]] for c in compared]
    print(format_table(["test", *[title(m) for m in wanted]], rows))
    for pair in paired:
        if pair.reason:
            print(f"{pair.name} and {compared[0].name} are not paired: {pair.reason}")
        for d in pair.differences:
            if d.metric in ("recall@1", "map"):
                ends = " to ".join(shown(d.metric, end, signed=True, mark=False) for end in (d.low, d.high))
                clear = "" if d.clear else ": no clear difference"
                value = shown(d.metric, d.difference, signed=True, mark=False)
                print(f"{pair.name} - {compared[0].name}: {title(d.metric)} {value} (95% {ends}){clear}")
    say(f"look at them: {output}")
