"""Parts of documents that benchmarks write from their measurements."""


def replace_part(page: str, script: str, text: str) -> str:
    """The page with the part between a benchmark's two marks written anew.

    >>> page = replace_part("a\\n<!-- written by: python benchmarks/x.py page -->\\nold\\n"
    ...     "<!-- end of what benchmarks/x.py wrote -->\\nb\\n", "x.py", "new\\n")
    >>> page.splitlines()[2:4]
    ['', 'new']
    """
    begin = f"<!-- written by: python benchmarks/{script} page -->\n"
    end = f"<!-- end of what benchmarks/{script} wrote -->\n"
    before, begun, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not (begun and ended):
        raise ValueError(f"the marks of {script} are missing: {begin}{end}")
    return f"{before}{begin}\n{text}\n{end}{after}"
