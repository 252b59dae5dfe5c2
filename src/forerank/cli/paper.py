"""forerank paper: the paper's tables and figures by name, published beside measured."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from forerank.console import format_table, print_json, say
from forerank.errors import ForerankError, InputError

if TYPE_CHECKING:
    from forerank.paper.render import Product
    from forerank.paper.study import Study

app = App(
    name="paper",
    help="The tables and figures of the PNP paper by name, published numbers beside measured ones.",
    help_epilogue="""Examples:
  forerank paper list
  forerank paper run toy
  forerank paper run variants-sop redundancy --on glyphs --seeds 10
  forerank paper run comparison-sop --data sop=/data/Stanford_Online_Products --dry-run
  forerank paper all --on glyphs
  forerank paper all --data cub=/data/CUB_200_2011""",
    help_format="plaintext",
)

Json = Annotated[bool, Parameter(help="One JSON document instead of tables.", negative=())]


@Parameter(name="*")
@dataclass
class StudyOptions:
    """What is trained, and where its results lie."""

    on: Annotated[
        str | None, Parameter(help="Data set to train on; by default the one --data names, else glyphs.")
    ] = None
    seeds: Annotated[
        int | None,
        Parameter(
            help="Seeds of the losses that claims compare; by default 10 on glyphs and cub, 3 elsewhere."
        ),
    ] = None
    other_seeds: Annotated[
        int, Parameter(help="Seeds of everything else: sweeps, and methods no claim names.")
    ] = 3
    out: Annotated[
        Path | None, Parameter(help="Folder for tables, figures and runs; by default runs/paper/DATA_SET.")
    ] = None
    values: Annotated[
        list[str] | None,
        Parameter(
            name="--set", help="A recipe value for every run: key=value, may be repeated.", negative=()
        ),
    ] = None
    kept: Annotated[
        Path | None,
        Parameter(
            help="File with results of earlier runs, which are not trained again; new results are added."
        ),
    ] = None


@Parameter(name="*")
@dataclass
class RunOptions(StudyOptions):
    """How it is trained."""

    data: Annotated[
        list[str] | None, Parameter(help="Where a data set lies: NAME=FOLDER, may be repeated.", negative=())
    ] = None
    dry_run: Annotated[
        bool,
        Parameter(
            help="Check data, weights and memory, print the plan and an estimate of time; train nothing.",
            negative=(),
        ),
    ] = False
    tune: Annotated[
        bool,
        Parameter(help="Choose learning rates per method on validation classes (glyphs and cub), or not."),
    ] = True
    jobs: Annotated[
        int | None,
        Parameter(help="Training runs at the same time on a CPU; by default one per core for small ones."),
    ] = None
    threads: Annotated[
        int | None, Parameter(help="Threads of each job; by default an equal share of the cores.")
    ] = None
    processes: Annotated[
        int, Parameter(help="Processes of each run, started with torchrun: one per GPU.")
    ] = 1
    beside: Annotated[
        list[str] | None,
        Parameter(
            help="Another data set to show beside this one in figures 7 and 8, from its folder beside --out.",
            negative=(),
        ),
    ] = None
    to: Annotated[
        Path | None, Parameter(help="Also write tables and chosen values to this file, as one Markdown page.")
    ] = None


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
def run(*names: str, options: RunOptions | None = None, json: Json = False) -> None:
    """Run tables or figures: train what is missing, write them, print measured beside published.

    Args:
        names: as `forerank paper list` names them.
    """
    if not names:
        raise InputError("name a table or a figure: forerank paper list shows them")
    _run(list(names), options or RunOptions(), json)


@app.command(name="all")
def run_all(*, options: RunOptions | None = None, json: Json = False) -> None:
    """Run the whole list; runs are shared, finished ones skipped. --dry-run says how long it takes here."""
    from forerank.paper.pipeline import all_names

    _run(all_names(), options or RunOptions(), json)


@app.command
def claims(*, options: StudyOptions | None = None, to: Path | None = None, json: bool = False) -> None:
    """Judge each claim of the paper on the runs that are there, by a rule, with numbers.

    Args:
        to: also write the page to this file.
        json: one JSON document instead of a table.
    """
    from forerank.paper.claims import write_claims

    study = _open_study([], options or StudyOptions())
    judged = write_claims(study, to)
    if json:
        print_json([vars(verdict) for verdict in judged])
        return
    print(format_table(["verdict", "seeds", "claim"], [[v.word, v.seeds or "", v.said] for v in judged]))
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

    ranked, written = draw_ranking(run_folder, query, out, variant=loss, shown=shown)
    places = [
        {
            "rank": place,
            "image": int(row),
            "similarity": float(s),
            "right": bool(p),
            "penalty": float(penalty),
        }
        for place, (row, s, p, penalty) in enumerate(
            zip(ranked.rows, ranked.similarities, ranked.is_positive, ranked.penalties, strict=True), 1
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


def _open_study(names: list[str], options: StudyOptions) -> "Study":
    from forerank.paper.pipeline import open_study

    known = ("on", "data", "seeds", "other_seeds", "out", "values", "beside", "kept")
    given = {key: value for key, value in vars(options).items() if key in known and value is not None}
    return open_study(names, **given)


def _run(names: list[str], options: RunOptions, json: bool) -> None:
    from forerank.paper import document, pipeline
    from forerank.paper.kept_results import keep_results
    from forerank.paper.render import time_taken

    study = _open_study(names, options)
    if options.dry_run:
        from forerank.paper.dry_run import describe_plan

        at_once = options.jobs or pipeline.default_jobs(study)
        methods = pipeline.methods_of(names, study) if options.tune else []
        plan = pipeline.runs_needed(names, study)
        text, ready = describe_plan(study, plan, methods, processes=options.processes, jobs=at_once)
        if json:
            print_json({"ready": ready, "plan": text.splitlines()})
        else:
            print(text)
        if not ready:
            raise NotReadyError("this plan cannot start as it is: see data, weights and memory above")
        return

    def show(product: "Product", study: "Study") -> None:
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
        print(f"  Time: {time_taken(product.name, study)}", flush=True)

    products: list[dict[str, object]] = []

    def keep(product: "Product", study: "Study") -> None:
        products.append(product.to_dict() | {"time": time_taken(product.name, study)})

    written: list[Product] = []

    def add(product: "Product", study: "Study") -> None:
        (keep if json else show)(product, study)
        if options.to is not None:
            written.append(product)
            document.write_document(options.to, written, study)

    try:
        pipeline.run_experiments(
            names,
            study,
            tune=options.tune,
            jobs=options.jobs,
            threads=options.threads,
            processes=options.processes,
            show=add,
        )
    finally:  # also what was measured before something failed
        if options.kept is not None:
            keep_results(study, options.kept)
        if products:
            print_json(products)


class NotReadyError(ForerankError):
    """A dry run found that the plan cannot start."""

    exit_code = 2
