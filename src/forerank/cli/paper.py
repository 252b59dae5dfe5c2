"""forerank paper: the paper's tables and figures by name, published beside measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from forerank.console import format_table, print_json, say
from forerank.errors import ForerankError

if TYPE_CHECKING:
    from forerank.paper.make import Product

app = App(
    name="paper",
    help="The tables and figures of the PNP paper by name, published numbers beside measured ones.",
    help_epilogue="""Examples:
  forerank paper list
  forerank paper run toy
  forerank paper run variants-sop --on glyphs --seeds 3
  forerank paper run comparison-sop --data sop=/data/Stanford_Online_Products --dry-run
  forerank paper all --on glyphs""",
    help_format="plaintext",
)

On = Annotated[
    str | None,
    Parameter(help="Data set to train on; by default the one --data names, else glyphs."),
]
Data = Annotated[
    list[str] | None, Parameter(help="Where a data set lies: NAME=FOLDER, may be repeated.", negative=())
]
Seeds = Annotated[int, Parameter(help="Seeds, from 0 up; the paper used one.")]
Out = Annotated[
    Path | None, Parameter(help="Folder for tables, figures and runs; by default runs/paper/DATA_SET.")
]
DryRun = Annotated[
    bool,
    Parameter(
        help="Check data, weights and memory, print the plan and an estimate of time; train nothing.",
        negative=(),
    ),
]
SideBySide = Annotated[
    int | None, Parameter(help="Training runs at once on a CPU; by default one a core for small ones.")
]
Processes = Annotated[int, Parameter(help="Processes of each run, started with torchrun: one a GPU.")]
Values = Annotated[
    list[str] | None,
    Parameter(name="--set", help="A recipe value for every run: key=value, may be repeated.", negative=()),
]
Json = Annotated[bool, Parameter(help="One JSON document instead of tables.", negative=())]


@app.command(name="list")
def list_experiments(*, json: bool = False) -> None:
    """Name every table and figure, and what each needs.

    Args:
        json: one JSON document instead of a table.
    """
    from forerank.paper import EXPERIMENTS

    if json:
        print_json(
            [
                {"name": e.name, "kind": e.kind, "title": e.title, "reference": e.reference, "data": e.native}
                for e in EXPERIMENTS.values()
            ]
        )
        return
    rows = [[e.name, e.kind, e.reference, e.native or "nothing", e.title] for e in EXPERIMENTS.values()]
    widths = max(len(row[-1]) for row in rows)
    print(
        format_table(
            ["name", "kind", "in the paper", "data", "shows".ljust(widths)],
            [[*r[:-1], r[-1].ljust(widths)] for r in rows],
        )
    )
    say("run one with: forerank paper run NAME        all of them: forerank paper all --on glyphs")


@app.command
def run(
    name: str,
    /,
    *,
    on: On = None,
    data: Data = None,
    seeds: Seeds = 3,
    out: Out = None,
    dry_run: DryRun = False,
    side_by_side: SideBySide = None,
    processes: Processes = 1,
    values: Values = None,
    json: Json = False,
) -> None:
    """Run one table or figure: train what is missing, write it, print measured beside published.

    Args:
        name: as `forerank paper list` names it.
    """
    _perform([name], on, data, seeds, out, dry_run, side_by_side, processes, values, json)


@app.command(name="all")
def run_all(
    *,
    on: On = None,
    data: Data = None,
    seeds: Seeds = 3,
    out: Out = None,
    dry_run: DryRun = False,
    side_by_side: SideBySide = None,
    processes: Processes = 1,
    values: Values = None,
    json: Json = False,
) -> None:
    """Run the whole list; runs are shared, finished ones skipped. On glyphs about an hour on two cores."""
    from forerank.paper.perform import all_names

    _perform(all_names(), on, data, seeds, out, dry_run, side_by_side, processes, values, json)


@app.command
def claims(
    *,
    on: On = None,
    seeds: Seeds = 3,
    out: Out = None,
    values: Values = None,
    to: Path | None = None,
    json: bool = False,
) -> None:
    """Judge each claim of the paper on the runs that are there, by a rule, with numbers.

    Args:
        to: also write the page to this file.
        json: one JSON document instead of a table.
    """
    from forerank.paper import claims as room
    from forerank.paper.perform import open_study

    study = open_study([], on=on, seeds=seeds, out=out, values=values or ())
    found = room.write(study, to)
    if json:
        print_json([vars(verdict) for verdict in found])
        return
    print(format_table(["verdict", "claim"], [[v.word, v.said] for v in found]))
    say(f"with numbers: {study.folder / 'claims.md'}")


@app.command(
    help_epilogue="""Example:
  forerank paper ranking runs/birds --query 12 --loss Dq --out ranking"""
)
def ranking(
    run_folder: Path,
    /,
    *,
    query: int = 0,
    out: Path = Path("ranking"),
    loss: str = "Dq",
    shown: int = 12,
    json: bool = False,
) -> None:
    """Draw the ranked list of a test query of any run, with the penalty that each negative receives.

    Args:
        run_folder: a run of `forerank train` or of this command.
        query: number of the test image.
        out: where to write, .png and .svg are added.
        loss: whose penalties; see: forerank losses.
        shown: length of the list.
        json: one JSON document instead of a table.
    """
    from forerank.paper.examples import draw_ranking

    found, written = draw_ranking(run_folder, query, out, variant=loss, shown=shown)
    places = [
        {
            "rank": place,
            "image": int(row),
            "similarity": float(s),
            "right": bool(p),
            "penalty": float(penalty),
        }
        for place, (row, s, p, penalty) in enumerate(
            zip(found.rows, found.similarities, found.is_positive, found.penalties, strict=True), 1
        )
    ]
    if json:
        print_json({"query": query, "ranking": places, "files": [str(path) for path in written]})
        return
    rows = [
        [
            p["rank"],
            p["image"],
            f"{p['similarity']:.3f}",
            "right" if p["right"] else "wrong",
            "" if p["right"] else f"{p['penalty']:.4g}",
        ]
        for p in places
    ]
    print(format_table(["rank", "image", "similarity", "class", "penalty"], rows))
    say(f"drawn: {', '.join(str(path) for path in written)}")


def _perform(
    names: list[str],
    on: str | None,
    data: list[str] | None,
    seeds: int,
    out: Path | None,
    dry_run: bool,
    side_by_side: int | None,
    processes: int,
    values: list[str] | None,
    json: bool,
) -> None:
    from forerank.paper import perform as room
    from forerank.paper.make import made_in

    study = room.open_study(names, on=on, data=data or (), seeds=seeds, out=out, values=values or ())
    at_once = side_by_side or room.default_side_by_side(study)
    if dry_run:
        from forerank.paper.dry_run import describe

        text, ready = describe(study, room.plan_of(names, study), processes=processes, side_by_side=at_once)
        if json:
            print_json({"ready": ready, "plan": text.splitlines()})
        else:
            print(text)
        if not ready:
            raise NotReadyError("this plan cannot start as it is: see data, weights and memory above")
        return

    def show(product: "Product") -> None:
        print(f"\n{product.name} ({product.reference}): {product.title}")
        for table in product.tables:
            shown = [[("–" if cell is None else cell) for cell in row] for row in table.rows]
            print(format_table([str(h) for h in table.header], shown))
            for note in table.notes:
                print(f"  {note}")
        if product.figure:
            print(f"  figure: {product.figure} and .svg")
        for note in product.notes:
            print(f"  {note}")
        print(f"  Time: {made_in(product.name, study)}", flush=True)

    products: list[dict[str, object]] = []

    def keep(product: "Product") -> None:
        products.append(product.to_dict() | {"time": made_in(product.name, study)})

    try:
        room.perform(names, study, side_by_side=at_once, processes=processes, show=keep if json else show)
    finally:
        if products:  # also what was made before something failed
            print_json(products)


class NotReadyError(ForerankError):
    """A dry run found that the plan cannot start."""

    exit_code = 2
