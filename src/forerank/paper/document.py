"""Tables of the paper as one Markdown page for documentation, with the command that wrote it."""

from collections.abc import Sequence
from pathlib import Path

from forerank.files import write_atomically
from forerank.paper.published import source
from forerank.paper.render import Product, time_taken
from forerank.paper.study import Study
from forerank.paper.tuning import choices_table


def run_command(names: Sequence[str], study: Study, to: Path) -> str:
    """The command that gives these results; the place of the data is left to the reader.

    >>> run_command(["variants-sop"], Study("cub", 3, 3, roots={"cub": "/data/cub"}), Path("docs/cub.md"))
    'forerank paper run variants-sop --data cub=PATH --seeds 3 --to docs/cub.md'
    """
    where = f"--data {study.on}=PATH" if study.on in study.roots else f"--on {study.on}"
    values = [f"--set {value}" for value in study.values]
    few = [] if study.other_seeds == 3 else [f"--other-seeds {study.other_seeds}"]
    words = ["forerank paper run", *names, where, f"--seeds {study.seeds}", *few, *values, f"--to {to}"]
    return " ".join(words)


def write_document(to: Path, products: Sequence[Product], study: Study) -> None:
    """Write the tables of some products, and the values that were chosen for their methods, as one page."""
    title = products[0].title if len(products) == 1 else "The paper's results"
    lines = [
        f"# {title}: {study.on}",
        "",
        "Written by:",
        "",
        f"```console\n$ {run_command([product.name for product in products], study, to)}\n```",
    ]
    for product in products:
        lines += ["", f"## {product.title}"] if len(products) > 1 else []
        for text in (*(table.to_markdown() for table in product.tables), *product.notes):
            lines += ["", text]
        lines += ["", f"Time: {time_taken(product.name, study)}"]
    chosen = choices_table(study)
    if chosen is not None:
        lines += ["", "## Values chosen on validation classes", "", chosen.to_markdown()]
    lines += ["", f"Published numbers: {source()}", ""]
    write_atomically(to, "\n".join(lines))
