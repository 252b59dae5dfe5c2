"""A recipe: every value of a run, in one frozen tree of dataclasses that YAML and ``key=value`` can fill.

The recipe knows nothing of torch, so that listing and checking recipes stays instant.

>>> from forerank.training.recipe import Recipe, override
>>> recipe = override(Recipe(), ["lr=3e-4", "loss=pml:FastAPLoss", "batch_size=64"])
>>> recipe.optimiser.lr, recipe.loss.name, recipe.batch.batch_size
(0.0003, 'pml:FastAPLoss', 64)
>>> override(Recipe(), ["optimiser.lrr=1"])
Traceback (most recent call last):
forerank.errors.InputError: unknown recipe key 'optimiser.lrr': did you mean 'optimiser.lr'?
"""

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml

from forerank.errors import InputError, check_name, nearest, no_such_path, unknown
from forerank.training.sections import (
    BatchSection,
    DataSection,
    EvaluationSection,
    LossSection,
    MethodSection,
    ModelSection,
    OptimiserSection,
    ScheduleSection,
    setting,
)


@dataclass(frozen=True)
class Recipe:
    """Every value of a run."""

    name: str = setting("run", "names the run folder")
    variant: str | None = setting(None, "which variant of the recipe file was taken")
    seed: int = setting(0, "all randomness follows from it")
    mode: Literal["auto", "head", "full"] = setting(
        "auto",
        "head: a new head on cached features of the frozen backbone; full: all weights; auto: by the machine",
    )
    device: str = setting("auto", "cpu, cuda, cuda:1, mps")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting(
        "auto", "of the model; the loss is always in fp32"
    )
    save_every: int | None = setting(None, "steps between checkpoints; null: at each validation")
    tracking: str = setting(
        "tensorboard", "where numbers go: tensorboard, mlflow, wandb, several with commas, or none"
    )
    data: DataSection = field(default_factory=DataSection)
    model: ModelSection = field(default_factory=ModelSection)
    method: MethodSection = field(default_factory=MethodSection)
    loss: LossSection = field(default_factory=LossSection)
    batch: BatchSection = field(default_factory=BatchSection)
    optimiser: OptimiserSection = field(default_factory=OptimiserSection)
    schedule: ScheduleSection = field(default_factory=ScheduleSection)
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)


# The name of the loss where the method brings its own.
OWN_LOSS = "method"

# Values that change where and how fast a run is computed, but not which run it is.
INCIDENTAL = frozenset({"device", "tracking", "data.workers", "batch.hold_mb"})


def flatten(recipe: Recipe) -> dict[str, Any]:
    """Dotted key -> value, in the order of the file.

    >>> flatten(Recipe())["batch.images_per_class"]
    4
    """
    flat: dict[str, Any] = {}
    for f in dataclasses.fields(recipe):
        value = getattr(recipe, f.name)
        if dataclasses.is_dataclass(value):
            flat |= {f"{f.name}.{g.name}": getattr(value, g.name) for g in dataclasses.fields(value)}
        else:
            flat[f.name] = value
    return flat


def nested(recipe: Recipe) -> dict[str, Any]:
    """The recipe as plain nested values, as its YAML file holds them.

    >>> nested(Recipe())["batch"]["images_per_class"]
    4
    """

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items()}
        return list(value) if isinstance(value, tuple) else value

    values: dict[str, Any] = plain(dataclasses.asdict(recipe))
    return values


def differences(one: Recipe, other: Recipe) -> dict[str, tuple[Any, Any]]:
    """Dotted keys whose values differ and matter for the numbers.

    >>> differences(Recipe(), override(Recipe(), ["seed=3", "workers=2"]))
    {'seed': (0, 3)}
    """
    a, b = flatten(one), flatten(other)
    return {k: (a[k], b[k]) for k in a if a[k] != b[k] and k not in INCIDENTAL}


# Arguments of our losses that may be written without `loss.` before them; the loss checks them itself.
LOSS_ARGUMENTS = ("alpha", "b", "temperature", "count_self", "linear_tail", "derivative", "naive", "mixup")

_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")
_SECTIONS = {f.name: f.type for f in dataclasses.fields(Recipe) if dataclasses.is_dataclass(f.type)}
_KEYS = list(flatten(Recipe()))
# Mappings whose keys others know: the loss, the method and the reader of the data refuse a wrong one by name.
_OPEN = ("loss.options.", "method.options.", "data.options.")


def recipe_from_dict(values: Mapping[str, Any], where: str, base: Recipe | None = None) -> Recipe:
    """A recipe from nested values over `base` (or the defaults); unknown keys and wrong types are refused.

    >>> recipe_from_dict({"seed": 1, "batch": {"batch_size": 8}}, "an example").batch.batch_size
    8
    >>> recipe_from_dict({"batch": {"batchsize": 8}}, "it")
    Traceback (most recent call last):
    forerank.errors.InputError: unknown recipe key 'batch.batchsize' in it: did you mean 'batch.batch_size'?
    """
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if key in _SECTIONS and isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": inner_value for inner, inner_value in value.items()}
        else:
            flat[str(key)] = value
    full = {_full_key(key, f" in {where}"): (value, where) for key, value in flat.items()}
    return _with_values(Recipe() if base is None else base, full)


def _with_values(recipe: Recipe, values: Mapping[str, tuple[Any, str]]) -> Recipe:
    """The recipe with dotted key -> (value, where it is written); a method's own values go below them."""
    if "method.name" in values:
        for key in ("method.name", "method.settings"):
            if key in values:
                recipe = _with(recipe, key, *values[key])
        recipe = _with_method(recipe)
    for key, (value, where) in values.items():
        recipe = _with(recipe, key, value, where)
    return recipe


def _with_method(recipe: Recipe) -> Recipe:
    """The recipe with the values that belong to its method."""
    if recipe.method.name is None:
        return recipe
    from forerank.training.methods import find_method

    published = recipe.method.settings == "published"
    return override(recipe, find_method(recipe.method.name).assignments(published=published))


def override(recipe: Recipe, assignments: Iterable[str]) -> Recipe:
    """The recipe with ``key=value`` texts applied: dotted keys, or a key's last part where only one fits.

    A section's name stands for its first key: ``loss=PNP-Ds`` is ``loss.name=PNP-Ds``. ``method=NAME`` brings
    the values that belong to the method; values that are given here replace them.
    """
    values: dict[str, tuple[Any, str]] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError(f"cannot read {text!r}: give values as key=value, for example lr=1e-4")
        full = _full_key(key.strip(), "")
        try:
            parsed = yaml.safe_load(value) if value else None
        except yaml.YAMLError as error:
            raise InputError(f"cannot read the value of {text!r}: {value!r} is not a YAML value") from error
        values[full] = (parsed, f"{text!r}")
    return _with_values(recipe, values)


def assigned_keys(assignments: Iterable[str]) -> frozenset[str]:
    """The dotted keys that ``key=value`` texts give.

    >>> sorted(assigned_keys(["lr=1", "loss=PNP-Ds"]))
    ['loss.name', 'optimiser.lr']
    """
    return frozenset(_full_key(text.partition("=")[0].strip(), "") for text in assignments)


def _full_key(key: str, where: str) -> str:
    """The dotted key that a key written by a person stands for."""
    if key in _KEYS or key.startswith(_OPEN):
        return key
    if key == "quality":  # quality=best reads better than variant=best, and is the same
        return "variant"
    if key in _SECTIONS:
        return f"{key}.{dataclasses.fields(_SECTIONS[key])[0].name}"
    if key in LOSS_ARGUMENTS:
        return f"loss.options.{key}"
    matches = [k for k in _KEYS if k.rpartition(".")[2] == key]
    if len(matches) == 1:
        return matches[0]
    if len(matches) > 1:
        raise InputError(f"recipe key {key!r}{where} could mean {' or '.join(matches)}: write it in full")
    section, _, rest = key.partition(".")
    if section in ("loss", "method") and rest:
        return f"{section}.options.{rest}"  # they know their arguments and refuse a wrong one by name
    guess = nearest(key, _KEYS) or nearest(key, ["quality", *[k.rpartition(".")[2] for k in _KEYS]])
    hint = f": did you mean {guess!r}?" if guess else ": forerank recipe show folder lists them all"
    raise InputError(f"unknown recipe key {key!r}{where}{hint}")


def _with(recipe: Recipe, key: str, value: Any, where: str) -> Recipe:
    """The recipe with one dotted key replaced, its type checked."""
    section, _, rest = key.rpartition(".")
    if f"{section}." in _OPEN:
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            value = float(value)  # YAML 1.1 reads 1e-4 as a text
        key, rest, value = section, "options", {**getattr(recipe, section.split(".")[0]).options, rest: value}
        section = section.split(".")[0]
    holder = getattr(recipe, section) if section else recipe
    if dataclasses.is_dataclass(getattr(holder, rest)):
        raise InputError(f"recipe key {key!r} in {where} holds several values: write it as a mapping")
    converted = _convert(key, get_type_hints(type(holder))[rest], value, where)
    changed: Any = dataclasses.replace(holder, **{rest: converted})
    parts: dict[str, Any] = {section: changed}
    return dataclasses.replace(recipe, **parts) if section else changed


def _convert(key: str, kind: Any, value: Any, where: str) -> Any:
    """`value` as the type of the field, or one sentence that says what was expected."""
    options = get_args(kind) if get_origin(kind) not in (Literal, tuple, dict) and get_args(kind) else (kind,)
    if value is None and type(None) in options:
        return None
    (kind,) = [o for o in options if o is not type(None)]
    wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    if get_origin(kind) is Literal:
        choices = [str(c) for c in get_args(kind)]
        if str(value) in choices:
            return str(value)
        raise unknown(f"value of {key}", value, choices)
    if get_origin(kind) is tuple:
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(_convert(key, get_args(kind)[0], item, where) for item in items)
    if get_origin(kind) is dict:
        if isinstance(value, Mapping):
            return {str(k): v for k, v in value.items()}
        raise InputError(f"{key} in {where} must be a mapping such as {{name: value}}, not {value!r}")
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if kind is float and not isinstance(value, bool):
        try:  # YAML 1.1 reads 1e-4 as a text
            return float(value)
        except (TypeError, ValueError):
            pass
    if kind is str and isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    null = " or null" if type(None) in options else ""
    raise InputError(f"{key} must be {wanted[kind]}{null}, not {value!r} (in {where})")


def recipe_text(recipe: Recipe) -> str:
    """The whole recipe as YAML, every value present, with what each one means.

    >>> print(recipe_text(Recipe()).splitlines()[2])
    seed: 0                       # all randomness follows from it
    """

    def line(indent: str, f: "dataclasses.Field[Any]", value: Any) -> str:
        plain = list(value) if isinstance(value, tuple) else value
        shown = yaml.safe_dump(plain, default_flow_style=True, width=1000, allow_unicode=True)
        text = f"{f.name}: {shown.removesuffix('...' + chr(10)).strip()}"
        about = f.metadata.get("about", "")
        return (f"{indent}{text}".ljust(29) + f" # {about}") if about else indent + text

    lines: list[str] = []
    for f in dataclasses.fields(recipe):
        value = getattr(recipe, f.name)
        if dataclasses.is_dataclass(value):
            lines += [
                f"{f.name}:",
                *[line("  ", g, getattr(value, g.name)) for g in dataclasses.fields(value)],
            ]
        else:
            lines.append(line("", f, value))
    return "\n".join(lines) + "\n"


def recipe_names() -> list[str]:
    """The recipes shipped with the package.

    >>> "glyphs" in recipe_names()
    True
    """
    folder = resources.files("forerank.recipes")
    return sorted(p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml"))


def recipe_about(name: str) -> str:
    """The first comment line of a shipped recipe: what it is for."""
    text = (resources.files("forerank.recipes") / f"{name}.yaml").read_text(encoding="utf-8")
    return text.splitlines()[0].lstrip("# ").strip()


def _is_data_set(name: str) -> bool:
    from forerank.data.registry import DATA_SETS  # brings torch, which reading a recipe does without

    return name in DATA_SETS


def load_recipe(source: str | Path, assignments: Iterable[str] = ()) -> Recipe:
    """A shipped recipe by name, a recipe file, or the recipe for a data set, an image folder or a .csv table.

    >>> load_recipe("sop").batch.batch_size
    384
    >>> load_recipe("sop", ["variant=authors"]).data.crop
    'official'
    >>> load_recipe("folder", ["quality=best"]).model.backbone
    'efficientnet-lite0@320px+efficientnet-lite2'
    >>> load_recipe("glyps")
    Traceback (most recent call last):
    forerank.errors.InputError: there is no recipe, recipe file, run folder, image folder or .csv table 'glyps': did you mean the recipe 'glyphs'?
    """  # noqa: E501
    chosen = list(assignments)
    name, path = str(source), Path(source)
    if name in recipe_names():
        values = _read_yaml(resources.files("forerank.recipes") / f"{name}.yaml", f"the recipe {name}")
        where = f"the recipe {name}"
    elif path.suffix in (".yaml", ".yml") and path.is_file():
        values, where = _read_yaml(path, str(path)), str(path)
    elif (named := _is_data_set(name)) or path.is_dir() or (path.suffix == ".csv" and path.is_file()):
        values = _read_yaml(resources.files("forerank.recipes") / "folder.yaml", "the recipe folder")
        values |= {"name": name if named else path.resolve().stem or "images"}
        values["data"] = {**values.get("data", {}), "source": name if named else str(path.resolve())}
        where = "the recipe folder"
    else:
        guess = nearest(name, recipe_names())
        if guess and not _are_close(name, guess):  # a path is as likely as a name here
            guess = None
        hint = (
            f": did you mean the recipe {guess!r}?" if guess else f" (recipes: {', '.join(recipe_names())})"
        )
        raise no_such_path(source) or InputError(
            f"there is no recipe, recipe file, run folder, image folder or .csv table {name!r}{hint}"
        )
    variants = values.pop("variants", {}) or {}
    recipe = recipe_from_dict(values, where)
    picked = [text for text in chosen if text.startswith(("variant=", "quality="))]
    for text in picked:
        variant = text.partition("=")[2]
        if not variants:
            raise InputError(f"{where} has no variants: leave {text} out")
        check_name(f"variant of {where}", variant, variants)
        recipe = recipe_from_dict(
            {**variants[variant], "variant": variant}, f"{where}, variant {variant}", recipe
        )
    return override(recipe, [text for text in chosen if text not in picked])


def _are_close(name: str, other: str) -> bool:
    """Whether one is likely the other with a slip, or its beginning.

    >>> _are_close("glyps", "glyphs"), _are_close("vehicle", "vehicle_id"), _are_close("nope", "inshop")
    (True, True, False)
    """
    folded = name.casefold()
    return other.startswith(folded) or difflib.SequenceMatcher(None, folded, other).ratio() > 0.7


def _read_yaml(path: Any, where: str) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{where} is not UTF-8: save it as UTF-8 text") from error
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        at = f" at line {line + 1}" if line is not None else ""
        raise InputError(f"{where} is not valid YAML{at}: {getattr(error, 'problem', error)}") from error
    if not isinstance(values, dict):
        raise InputError(f"{where} is not a recipe: a mapping such as 'seed: 0' was expected")
    return values
