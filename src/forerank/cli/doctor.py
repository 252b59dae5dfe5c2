"""`forerank doctor`: what this machine has, what is missing, how to get it."""

from forerank.console import format_table, print_json
from forerank.machine import describe


def doctor(*, json: bool = False) -> None:
    """Print what this machine has: torch, device, threads, optional parts, what is missing.

    Example: forerank doctor --json

    Parameters
    ----------
    json
        Print one JSON document for machines.
    """
    found = describe()
    if json:
        print_json(found)
        return
    facts = [*found["versions"].items()]
    facts += [
        ("platform", found["platform"]),
        ("device", f"{found['device']} ({found['device_name']}, {found['devices']} device(s))"),
        ("cores / torch threads", f"{found['cores']} / {found['threads']}"),
        ("memory", f"{found['memory_gib']} GiB"),
        ("bf16 instructions", "yes" if found["bf16_instructions"] else "no"),
    ]
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        print(f"{name.ljust(width)}  {value}")
    rows = [
        [extra, "yes" if part["installed"] else "no", part["purpose"]]
        for extra, part in found["extras"].items()
    ]
    print()
    print(format_table(["optional part", "here", "for"], rows))
    lacking = [extra for extra, part in found["extras"].items() if not part["installed"]]
    if lacking:
        print(f"\nTo add what is missing: pip install 'forerank[{','.join(lacking)}]'")
    else:
        print("\nEvery optional part is installed.")
