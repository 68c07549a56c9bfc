"""Typed, frozen sections of keys on pydantic, with errors of one line: the machinery behind `config`."""

import difflib
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from byov_jax import ranges
from byov_jax.errors import ConfigError
from byov_jax.ranges import Range

Tree = TypeVar("Tree", bound="Section")


def setting(
    default: Any, meaning: str, *, may_change: bool = False, within: Range | None = None, **limits: Any
) -> Any:
    """Define a key.

    Args:
      default: its value if a config leaves it out.
      meaning: one sentence.
      may_change: a resumed run may have another value, since it changes neither what is learned nor logged.
      within: the range of the library's argument of this name.
      **limits: pydantic's `ge`, `gt`, `le`, `lt`, `min_length`.
    """
    limits |= within.bounds() if within else {}
    return Field(default, description=meaning, json_schema_extra={"may_change": may_change}, **limits)


def argument(meaning: str, **limits: Any) -> Any:
    """Define a key that is an argument of what the section names; if left out, that has its own default."""
    return setting(None, meaning, **limits)


class Section(BaseModel):
    """Some keys; values of a wrong type, out of range, or of an unknown key are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the keys and values as a nested dict; arguments that were not given are left out."""
        return {
            name: value.to_dict() if isinstance(value, Section) else value
            for name, value in self
            if name in self.model_fields_set or value is not None
        }

    def arguments(self) -> dict[str, Any]:
        """Return the same without `name`, for the function that the section names."""
        return {name: value for name, value in self.to_dict().items() if name != "name"}


def validated(kind: type[Tree], given: Any) -> Tree:
    """Check a nested mapping of any kind; a ConfigError names the key, value and what is allowed."""
    values = plain(given)
    if not isinstance(values, dict):
        raise ConfigError(f"a config must be a mapping from keys to values, not a {type(given).__name__}")
    for name, field in kind.model_fields.items():
        members = _sections(field)
        if len(members) > 1 and isinstance(values.get(name), dict):  # pydantic must know which of them it is
            values[name].setdefault("name", field.default.name)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_message(kind, error, values)) from None


def plain(value: Any) -> Any:
    """Turn mappings of any kind into dicts, and lists, which JSON has, into tuples."""
    if isinstance(value, Section):
        return value.to_dict()
    if hasattr(value, "items"):
        return {str(key): plain(item) for key, item in value.items()}
    return tuple(plain(item) for item in value) if isinstance(value, list | tuple) else value


def merged(values: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested values with changes of any depth."""
    result = dict(values)
    for key, value in changes.items():
        nested = isinstance(value, Mapping) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if nested else value
    return result


class Key(NamedTuple):
    """A key of the config, for tables: its dotted name, what is allowed, its default, and its meaning."""

    name: str
    allowed: str
    default: str
    meaning: str
    may_change: bool


def keys(kind: type[Section]) -> list[Key]:
    """List all keys, section by section."""
    return list(_keys(kind, ""))


def require(key: str, value: Any, valid: bool, allowed: str) -> None:
    """Raise a ConfigError unless a value is valid."""
    if not valid:
        raise ConfigError(f"config.{key}={value!r} must be {allowed}")


def _keys(section: type[Section], prefix: str) -> Iterator[Key]:
    for name, field in section.model_fields.items():
        members = _sections(field)
        if len(members) > 1:
            yield from _keys_of_choices(members, f"{prefix}{name}.", field.default.name)
        elif members:
            yield from _keys(members[0], f"{prefix}{name}.")
        else:
            extra = typing.cast(dict, field.json_schema_extra)
            default = "" if field.default is None else str(field.default)
            allowed = ", ".join(text for text in (_kind(field), _limits(field)) if text)
            yield Key(prefix + name, allowed, default, field.description or "", extra["may_change"])


def _keys_of_choices(members: list[type[Section]], prefix: str, default: str) -> Iterator[Key]:
    """List the keys of sections of which a config has one, each key once, with the sections that have it."""
    choices: dict[str, dict[str, Key]] = {}
    for member in members:
        for key in _keys(member, prefix):
            choices.setdefault(key.name, {})[member.model_fields["name"].default] = key
    for name, found in choices.items():
        key = next(iter(found.values()))
        if name == f"{prefix}name":
            yield key._replace(allowed=f"one of {', '.join(sorted(found))}", default=default)
        elif len(found) == len(members) and len({key.meaning for key in found.values()}) == 1:
            yield key
        else:
            meanings = (f"{choice}: {key.meaning}" for choice, key in found.items())
            yield key._replace(meaning="; ".join(meanings))


def _sections(field: FieldInfo) -> list[type[Section]]:
    kinds = typing.get_args(field.annotation) or (field.annotation,)
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)]


def _message(kind: type[Section], error: ValidationError, values: dict[str, Any]) -> str:
    """Say in one line what is wrong; unknown keys first, since a misspelt key explains the others."""
    first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
    section = kind
    field: FieldInfo | None = None
    names: list[str] = []
    value: Any = values
    for part in first["loc"]:
        if not isinstance(value, dict):
            break  # an element of a tuple: the whole tuple is shown
        members = _sections(field) if field is not None else []
        if len(members) > 1 and part in [member.model_fields["name"].default for member in members]:
            section = next(member for member in members if member.model_fields["name"].default == part)
            continue
        names.append(str(part))
        value = value.get(part)
        field = section.model_fields.get(str(part))
        if field is not None and _sections(field):
            section = _sections(field)[0]
    key = ".".join(names)
    if first["type"] == "extra_forbidden":
        return f"config has no key {key}: {nearest(key, section.model_fields)}"
    if first["type"].startswith("union_tag"):
        named = value.get("name") if isinstance(value, dict) else value
        choices = sorted(member.model_fields["name"].default for member in _sections(field)) if field else []
        return f"config.{key}.name={named!r} must be one of {', '.join(choices)}"
    assert field is not None
    if _sections(field):
        return f"config.{key}={value!r} must be a section with the keys {', '.join(section.model_fields)}"
    is_kind = first["type"] not in KIND_ERRORS or not _kind(field)
    return f"config.{key}={value!r} must be {_limits(field) if is_kind else _kind(field)}"


KIND_ERRORS = ("bool_type", "int_type", "float_type", "string_type", "tuple_type", "finite_number")


def nearest(key: str, names: Iterable[str]) -> str:
    """Suggest the key that was meant, or list those there are."""
    prefix, _, name = key.rpartition(".")
    close = difflib.get_close_matches(name, names, n=1)
    dotted = f"{prefix}.{close[0]}" if prefix and close else "".join(close)
    return f"did you mean {dotted}?" if close else f"there are {', '.join(sorted(names))}"


def _kind(field: FieldInfo) -> str:
    """Name the type of a key's values; empty if `_limits` lists them."""
    kinds = [
        kind for kind in typing.get_args(field.annotation) or (field.annotation,) if kind is not type(None)
    ]
    if typing.get_origin(field.annotation) is Literal:
        return ""
    if typing.get_origin(field.annotation) is tuple:
        return "numbers separated by commas"
    name = {bool: "True or False", int: "an integer", float: "a finite number", str: "a string"}[kinds[0]]
    return f"{name} or None" if type(None) in typing.get_args(field.annotation) else name


def _limits(field: FieldInfo) -> str:
    """Describe the values that are allowed, beyond their type."""
    if typing.get_origin(field.annotation) is Literal:
        return f"one of {', '.join(sorted(typing.get_args(field.annotation)))}"
    if any(getattr(limit, "min_length", None) for limit in field.metadata):
        return "one or more positive integers"
    bounds = {
        name: getattr(limit, name)
        for limit in field.metadata
        for name in ranges.BOUNDS
        if hasattr(limit, name)
    }
    return ranges.describe(**bounds)
