"""An extension of griffe: examples in docstrings are shown as code.

Without it, Markdown reads the three signs of a doctest prompt as three nested quotations.
"""

import re
from typing import Any

import griffe

# A prompt and what follows it, up to the next empty line.
EXAMPLE = re.compile(r"^(?P<indent> *)>>> .*(?:\n *\S.*)*", re.MULTILINE)


def _as_code(example: re.Match[str]) -> str:
    indent = example["indent"]
    return f"{indent}```pycon\n{example[0]}\n{indent}```"


class ExamplesAsCode(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(_as_code, obj.docstring.value)
