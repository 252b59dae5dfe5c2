"""The model of an index, and what computed its vectors: only vectors of the same origin can be compared."""

from forerank.errors import InputError


def vectors_identity(model: str, engine: str, precision: str) -> str:
    """What tells the vectors of an index from others: model, inference engine and precision.

    >>> vectors_identity("ab12", "torch", "fp32"), vectors_identity("ab12", "openvino", "bf16")
    ('ab12', 'ab12-openvino-bf16')
    """
    return model if (engine, precision) == ("torch", "fp32") else f"{model}-{engine}-{precision}"


def split_identity(identity: str) -> tuple[str, str, str]:
    """Model, engine and precision of `vectors_identity`.

    >>> split_identity("ab12-openvino-bf16"), split_identity("ab12")
    (('ab12', 'openvino', 'bf16'), ('ab12', 'torch', 'fp32'))
    """
    parts = identity.rsplit("-", 2)
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 else (identity, "torch", "fp32")


def refuse_other_engine(address: str, stored: dict[str, str], engine: str, precision: str) -> None:
    """Raise unless engine and precision are those that computed the vectors of an index."""
    made = split_identity(stored["fingerprint"])[1:]
    if made != (engine, precision):
        raise InputError(
            f"the vectors of {address} come from {' '.join(made)}, and this machine would add some from "
            f"{engine} {precision}: install {made[0]} here, or build the index again with --replace."
        )


def refuse_other_model(address: str, stored: dict[str, str], given: str, name: str, instead: str) -> None:
    """Raise unless the model `given` is the one stored; vectors of two models cannot be compared."""
    if split_identity(stored["fingerprint"])[0] != given:
        raise InputError(
            f"{address} was built with another model ({stored.get('source', 'unknown')}, "
            f"{stored['fingerprint'][:8]}) than {name} ({given[:8]}): their vectors cannot be compared. "
            f"{instead}"
        )
