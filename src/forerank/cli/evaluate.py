"""`forerank evaluate`: retrieval figures of a run, or of vectors and labels from files."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from forerank.console import print_json, say
from forerank.errors import InputError

if TYPE_CHECKING:
    from forerank.metrics import Evaluation, RerankChoice

AUTO = "auto"


def evaluate(
    run: str | None = None,
    *,
    embeddings: Path | None = None,
    labels: Path | None = None,
    ks: list[int] | None = None,
    metrics: list[str] | None = None,
    nmi: bool | None = None,
    ignore_sequence: bool = False,
    repeats: int = 0,
    by_category: bool = False,
    rerank: str | None = None,
    ties: str = "pessimistic",
    precision: str = "auto",
    memory: int = 512,
    seed: int = 0,
    split: Literal["train", "validation", "test"] | None = None,
    json: bool = False,
    plots: Path | None = None,
) -> None:
    """Recall, mAP, mAP@R, R-precision, MRR, class distances and NMI, counted exactly.

    Examples:
      forerank evaluate runs/birds
      forerank evaluate --embeddings e.npy --labels l.csv
      forerank evaluate --embeddings e.npy --labels l.csv --ks 1 --ks 5 --json
      forerank evaluate --embeddings e.npy --labels l.csv --metrics precision@5 --metrics map@5 --by-category
      forerank evaluate runs/birds --rerank auto
      forerank evaluate runs/birds --rerank reciprocal:k1=10,depth=100
      torchrun --nproc-per-node 2 -m forerank evaluate --embeddings e.npy --labels l.csv

    Parameters
    ----------
    run
        Folder of a training run; its best model is evaluated on its data by its own protocol.
    embeddings
        Matrix (images, dimensions) in a .npy file; it stays on disk.
    labels
        A .csv with a column `label` (also is_query, is_gallery, sequence, category), or one label per line.
    ks
        The k of metrics such as recall@k; default the recipe's or 1, 10, 100, 1000, up to the gallery's size.
    metrics
        Only these: recall@k (at every k of --ks), precision@5, map@5, map@r, nmi, ...; default the usual.
    nmi
        Also cluster the vectors; default as the recipe says, or yes. --no-nmi saves that time.
    ignore_sequence
        Leave out items that share label and sequence with the query (re-identification).
    repeats
        Evaluate on this many random galleries of one image per label (VehicleID's protocol: 10).
    by_category
        Also a table of figures per category of the query, worst first; needs a column `category`.
    rerank
        Refine rankings by neighbours: expansion, averaging or reciprocal, with settings after a colon; auto
        takes what helps on a run's validation classes, or none.
    ties
        pessimistic: an equally similar negative stands before the positive; optimistic: after it.
    precision
        What screens the similarities: auto, bfloat16, float32, float64. The figures are the same.
    memory
        MiB for counting, above the embeddings.
    seed
        For clustering, intervals and random galleries.
    split
        Part of the run's data to evaluate; default test.
    json
        Print one JSON document for machines.
    plots
        Folder to write recall.png, similarities.png and ranks.png into.
    """
    if memory < 1:
        raise InputError(f"--memory is a number of MiB, at least 1, not {memory}.")
    options: dict[str, Any] = {"ties": ties, "precision": precision, "memory": memory << 20, "seed": seed}
    if ks is not None:
        options["ks"] = tuple(ks)
    if metrics is not None:
        options["metrics"] = metrics
    if nmi is not None:
        options["nmi"] = nmi
    if rerank is not None:
        from forerank.ranking.reranking import NONE, read_reranking

        if rerank != AUTO:
            read_reranking(rerank)  # a wrong name is refused before any work
        options["rerank"] = rerank
    if run is not None:
        if embeddings is not None:
            raise InputError(
                f"{run!r} was read as a run folder beside --embeddings: give one of the two, and several ks "
                "as --ks 1 --ks 5."
            )
        own = {"labels": labels, "ignore-sequence": ignore_sequence, "repeats": repeats, "plots": plots}
        for name, given in own.items():
            if given:
                raise InputError(
                    f"--{name} goes with --embeddings; a run has its own labels, protocol and report.html."
                )
        from forerank.training import choose_run_reranking, evaluate_run, is_first_process

        choice = None
        if rerank == AUTO:
            if split == "validation":
                raise InputError("--rerank auto chooses on the validation classes: evaluate another split.")
            choice = choose_run_reranking(Path(run), seed=seed)
            options["rerank"] = choice.chosen
        result = evaluate_run(Path(run), split=split or "test", by_category=by_category, **options)
        if is_first_process():
            if choice is not None and not json:
                print(f"{choice}\n")
            _print(result, json, choice)
            if choice is not None and choice.chosen != NONE:
                from forerank.training import load_recipe
                from forerank.training.outcome import next_command, write_source_to_index
                from forerank.training.record import recipe_source

                folder, recipe = Path(run), load_recipe(recipe_source(run))
                write_source_to_index(folder, recipe)
                say(f"search the same way: {next_command(folder, recipe, '--rerank', choice.chosen)}")
        return
    if embeddings is None:
        raise InputError("name a run folder, or give --embeddings e.npy --labels l.csv.")
    if labels is None:
        raise InputError("--embeddings needs --labels: a .csv with a column 'label', one row per embedding.")
    if rerank == AUTO:
        raise InputError("--rerank auto needs a run with validation classes: give a kind, such as expansion.")
    if split is not None:
        raise InputError("--split goes with a run folder; with --embeddings every row is evaluated.")
    if repeats and plots is not None:
        raise InputError("--plots shows one gallery: leave out --repeats.")
    if repeats and by_category:
        raise InputError("--by-category goes with one gallery: leave out --repeats.")
    if repeats and nmi:
        raise InputError("--nmi clusters one gallery: leave out --repeats.")
    if plots is not None:
        try:  # before the work, not after it
            plots.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--plots takes a folder, and {plots} is not one: {error.strerror}.") from error
    from forerank.metrics import evaluate as measure
    from forerank.metrics import repeated_gallery
    from forerank.metrics.files import read_embeddings, read_labels

    vectors = read_embeddings(embeddings)
    file = read_labels(labels, vectors.shape[0] if vectors.ndim else None)
    ignore = file.sequence if ignore_sequence else None
    if ignore_sequence and ignore is None:
        raise InputError(f"--ignore-sequence needs a column 'sequence' in {labels}.")
    if by_category and file.category is None:
        raise InputError(f"--by-category needs a column 'category' in {labels}.")
    if repeats and not all(flags is None or flags.all() for flags in (file.is_query, file.is_gallery)):
        raise InputError(
            f"--repeats draws its own galleries: leave the columns is_query and is_gallery out of {labels}."
        )
    with _processes() as (distributed, first):
        options |= {"ignore": ignore, "distributed": distributed}
        if repeats:
            options.pop("nmi", None)
            result = repeated_gallery(vectors, file.label, repeats=repeats, **options)
        else:
            result = measure(
                vectors,
                file.label,
                queries=file.is_query,
                gallery=file.is_gallery,
                per_query=plots is not None,
                categories=file.category if by_category else None,
                **options,
            )
    if not first:
        return
    if plots is not None:
        from forerank.metrics.histograms import similarity_histogram
        from forerank.metrics.inputs import label_codes, row_numbers
        from forerank.ranking.hard_rows import unit_rows
        from forerank.report.evaluation_plots import write_plots

        rows = unit_rows(vectors)
        codes = label_codes(file.label, len(rows), "labels")
        both = (row_numbers(mask, len(rows), "rows") for mask in (file.is_query, file.is_gallery))
        hidden = None if ignore is None else label_codes(ignore, len(rows), "ignore")
        histogram = similarity_histogram(rows, codes, *both, ignore=hidden)
        for path in write_plots(result, histogram, plots):
            say(f"wrote {path}")
    _print(result, json)


def _print(result: "Evaluation", json: bool, choice: "RerankChoice | None" = None) -> None:
    if json:
        whole = result.to_dict()
        whole.pop("per_query", None)
        if choice is not None:
            whole["rerank_choice"] = choice.to_dict()
        print_json(whole)
    else:
        print(result)


@contextmanager
def _processes() -> Iterator[tuple[bool, bool]]:
    """Whether torchrun started several processes, and whether this is the one that speaks."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield False, True
        return
    from forerank.training.processes import joined

    with joined("cpu") as processes:
        yield True, processes.rank == 0
