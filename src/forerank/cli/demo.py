"""`forerank demo`."""

import time
from pathlib import Path

from forerank.console import print_json, say


def demo(*, run: Path = Path("runs/demo"), json: bool = False) -> None:
    """See the main job in a minute or two: train PNP-Dq on images of characters, measure it on unseen ones.

    Example: forerank demo --run runs/demo

    Parameters
    ----------
    run:
        Folder to write. A demo that was interrupted there is continued; one that has ended is run again.
    json:
        Print the results as JSON.
    """
    from forerank.models import keep_freed_memory
    from forerank.training import load_recipe, remove_finished_run
    from forerank.training import train as start

    began = time.perf_counter()
    keep_freed_memory()
    say("glyphs: characters in the typefaces that matplotlib ships; the test characters are never trained on")
    remove_finished_run(run)
    values = ["name=demo", "backbone=glyphnet-small", "steps=120", "every=60"]
    outcome = start(load_recipe("glyphs", values), run)
    if json:
        print_json({"run": str(run), **outcome.results})
        return
    print(outcome)
    print(f"\n{time.perf_counter() - began:.0f} s. Open {outcome.results['report']} in a browser.")
    print("Try next:")
    print("  forerank train ./my_images              your own images, one sub-folder per class")
    print("  forerank train glyphs loss=PNP-Ds       another loss: forerank losses")
    print(f"  forerank index {run} IMAGES -o INDEX    search with it, then: forerank serve INDEX")
