"""Options as frozen pydantic dataclasses: read from YAML and from `--set key=value`, refused in one sentence."""

import difflib
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar, Union, dataclass_transform, get_args, get_origin

import pydantic
import yaml
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

__all__ = [
    "Absent",
    "Option",
    "Refusal",
    "build",
    "closest",
    "describe",
    "options",
    "parse_settings",
    "read_yaml",
    "values",
]


C = TypeVar("C")


class Refusal(ValueError):
    """Something the user can mend; the message is one sentence that names the remedy."""


class Absent(Refusal):
    """Data that is not on this machine: a suite passes it over and says so."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
def options(cls: type[C]) -> type[C]:
    """Make a class a set of options: frozen, keyword-only, unknown keys refused, a field's docstring its help."""
    return dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid", use_attribute_docstrings=True))(cls)


class Option(NamedTuple):
    """One option as `show`, the docs and the report print it."""

    name: str
    kind: str
    default: object
    help: str


def describe(cls: type) -> list[Option]:
    """All options of a class; pydantic drops an inherited field's docstring, so the bases are asked for it."""
    fields: dict[str, Any] = getattr(cls, "__pydantic_fields__", {})
    described = []
    for name, field in fields.items():
        texts = (getattr(base, "__pydantic_fields__", {}).get(name) for base in cls.__mro__)
        text = next((known.description for known in texts if known is not None and known.description), "")
        described.append(Option(name, type_name(field.annotation), field.get_default(call_default_factory=True), text))
    return described


def type_name(annotation: Any) -> str:
    """A type as a user would write it: `str`, `0.5 | none`, `he | she`."""
    if get_origin(annotation) is Literal:
        return " | ".join(str(value) for value in get_args(annotation))
    if get_origin(annotation) in (Union, types.UnionType):
        return " | ".join(type_name(part) for part in get_args(annotation))
    if annotation is type(None):
        return "none"
    return getattr(annotation, "__name__", str(annotation)) if not get_args(annotation) else str(annotation)


def build(cls: type[C], settings: Mapping[str, object], what: str) -> C:
    """Construct options from settings; a wrong key or value is refused with the choices."""
    options_of = describe(cls)
    known = [option.name for option in options_of]
    for key in settings:
        if key not in known:
            raise Refusal(
                f"{what} has no option {key!r}{closest(key, known)}. Its options: {', '.join(known) or 'none'}."
            )
    listed = {option.name for option in options_of if option.kind.startswith("tuple[")}
    given = {key: as_list(value) if key in listed else value for key, value in settings.items()}
    try:
        return cls(**given)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        if isinstance(own := first.get("ctx", {}).get("error"), Refusal):
            raise own from None
        place = ".".join(str(part) for part in first["loc"])
        raise Refusal(f"{what}, option {place!r}: {first['msg']} (given: {first['input']!r}).") from None


def as_list(value: object) -> object:
    """`he,she`, or one value alone, as the list that the option takes."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value if value is None or isinstance(value, list | tuple) else [value]


def values(chosen: object) -> dict[str, Any]:
    """The options of an object as plain values, for YAML and JSON."""
    return {option.name: plain(getattr(chosen, option.name)) for option in describe(type(chosen))}


def plain(value: Any) -> Any:
    """Tuples as lists, so that YAML and JSON give back what was put in."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple | list) else value


def parse_settings(pairs: Iterable[str]) -> dict[str, dict[str, Any]]:
    """`method.rate=1e-4` becomes `{"method": {"rate": 1e-4}}`; values are read as YAML."""
    settings: dict[str, dict[str, Any]] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        part, dot, name = key.partition(".")
        if not equals or not dot or not name:
            raise Refusal(f"--set {pair}: write it as part.option=value, for example --set method.rate=1e-4.")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            value = text
        settings.setdefault(part, {})[name] = number(value)
    return settings


def number(value: Any) -> Any:
    """YAML reads `1e-4` as text; a user means the number."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def read_yaml(path: str) -> dict[str, Any]:
    """A YAML file as a mapping, or a refusal that names the line."""
    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.safe_load(file)
    except FileNotFoundError:
        raise Refusal(f"There is no file {path}; give a run folder or a recipe (evenhand ls recipes).") from None
    except yaml.YAMLError as error:
        raise Refusal(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(content, dict):
        raise Refusal(f"{path} holds no settings; a config is a YAML mapping such as `model: smollm2`.")
    return content


def closest(name: str, known: Iterable[str]) -> str:
    """` (did you mean ...?)` when a known name is near, else nothing."""
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
