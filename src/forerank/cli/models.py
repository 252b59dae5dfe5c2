"""`forerank models list`: the backbones that a string can name."""

from cyclopts import App

from forerank.console import format_table, print_json, say

app = App(
    name="models",
    help="The backbones that a string can name.",
    help_epilogue="Examples: forerank models list    forerank models list 'timm:convnext*'",
)


@app.command(name="list")
def list_models(pattern: str | None = None, *, json: bool = False) -> None:
    """List backbones: the name to use, the input size, where the weights come from.

    Example: forerank models list 'timm:resnet*'

    Parameters
    ----------
    pattern
        A shell pattern or a part of the name. Without it, timm's hundreds of names are counted, not listed.
    json
        Print one JSON document for machines.
    """
    from forerank.errors import InputError
    from forerank.models import list_backbones

    rows = list_backbones(pattern or "*")
    if not rows:
        raise InputError(f"no backbone's name fits {pattern!r}; any model of the hub goes by hf:NAME")
    if json:
        print_json(rows)
        return
    shown = rows if pattern else [row for row in rows if not str(row["name"]).startswith("timm:")]
    table = [[row["name"], row["size"], row["weights"]] for row in shown]
    print(format_table(["backbone", "input", "weights"], table))
    if len(shown) < len(rows):
        say(f"\nand {len(rows) - len(shown):,} of timm: forerank models list 'timm:*'")
    if not pattern:
        say("also hf:NAME or hf:FOLDER (transformers), NAME@FILE (weights from a file), or a folder of a run")
