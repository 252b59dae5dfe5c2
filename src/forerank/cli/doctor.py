"""`forerank doctor`: what this machine has, what is missing, how to get it."""

from forerank.console import format_table, print_json
from forerank.errors import install_command
from forerank.machine import WITHOUT_AMX, describe_machine

# What the processor's instructions for half precision mean for embed and index.
_BF16 = {
    True: "yes: embed and index take --precision bf16, which may be faster (on CUB, measured with OpenVINO: "
    "Recall@1 63.74 instead of 63.71, another first neighbour for 8.2% of the images)",
    False: "no: embed and index stay in fp32",
}


def doctor(*, gpu: bool = False, device: str = "auto", json: bool = False) -> None:
    """Print what this machine has: torch, device, threads, optional parts, what is missing.

    Example: forerank doctor --json

    Example: forerank doctor --gpu

    Parameters
    ----------
    gpu
        Test the accelerator instead, in at most two minutes: losses, evaluation and training against the CPU,
        memory, speed, several GPUs. The report is made to be pasted into an issue. Without an accelerator
        the CPU is tested.
    device
        With --gpu: auto, cpu, cuda, cuda:1 or mps.
    json
        Print one JSON document for machines.
    """
    if gpu:
        _test_accelerator(device, json=json)
        return
    machine = describe_machine()
    if json:
        print_json(machine)
        return
    bf16 = _BF16[machine["bf16_instructions"]]
    if machine["bf16_fault"]:
        bf16 = f"no: {machine['bf16_fault']}; {'='.join(WITHOUT_AMX)} in the environment leaves them out"
    facts = [*machine["versions"].items()]
    facts += [
        ("platform", machine["platform"]),
        ("device", f"{machine['device']} ({machine['device_name']}, {machine['devices']} device(s))"),
        ("cores / torch threads", f"{machine['cores']} / {machine['threads']}"),
        ("memory", f"{machine['memory_gib']} GiB"),
        ("bf16 instructions", bf16),
        ("embedding and indexing", f"by {machine['inference']} in fp32"),
    ]
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        print(f"{name.ljust(width)}  {value}")
    rows = [
        [extra, "yes" if part["installed"] else "no", part["purpose"]]
        for extra, part in machine["extras"].items()
    ]
    print()
    print(format_table(["optional part", "installed", "purpose"], rows))
    missing = [extra for extra, part in machine["extras"].items() if not part["installed"]]
    if missing:
        print(f"\nTo add what is missing: {install_command(*missing)}")
    else:
        print("\nEvery optional part is installed.")


def _test_accelerator(device: str, *, json: bool) -> None:
    from forerank.training.self_test import self_test

    report = self_test(device)
    print_json(report.to_dict()) if json else print(report)
    if not report.passed:
        raise SystemExit(1)
