"""A filter in the language of Milvus."""

from forerank.search.engine import Filter

# Signs of the pattern language, replaced in `folded` by characters without a meaning: servers differ in how,
# and whether, such a sign can be escaped.
PLAIN = str.maketrans("%_\\", "\ue000\ue001\ue002")


def folded_text(text: str) -> str:
    """What texts are compared by: Milvus compares letters as they are written, and so in lower case.

    >>> folded_text("ÄPFEL") == folded_text("äpfel")
    True
    """
    return text.casefold().translate(PLAIN)


def milvus_condition(where: Filter, also: str = "id >= 0") -> str:
    """A filter in Milvus' own language.

    >>> milvus_condition(Filter(label="a", text="Shoe", columns=(("price", "9"),)))
    'id >= 0 and label == "a" and folded like "%shoe%" and columns["price"] == "9"'
    """
    conditions = [also]
    if where.label is not None:
        conditions.append(f"label == {_quoted(where.label)}")
    if where.text:
        conditions.append(f"folded like {_quoted(f'%{folded_text(where.text)}%')}")
    conditions += [f"columns[{_quoted(name)}] == {_quoted(value)}" for name, value in where.columns]
    return " and ".join(conditions)


def _quoted(text: str) -> str:
    """A string literal of Milvus' filter language."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
