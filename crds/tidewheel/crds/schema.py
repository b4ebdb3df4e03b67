"""From a pydantic model to the structural schema of a CustomResourceDefinition.

Pydantic writes JSON Schema; the API server takes a subset with its own words for some things. What has no counterpart
raises SchemaError, so that a new construct in a type is a decision here and not a CRD that the API server refuses.
"""

from collections.abc import Mapping
from typing import Any, Final

from tidewheel.crds.base import Record

JsonSchema = dict[str, Any]

_KEPT: Final = (
    "format",
    "enum",
    "minimum",
    "maximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "required",
)
_HANDLED: Final = frozenset(
    {
        *_KEPT,
        *("title", "type", "description", "default", "pattern", "properties", "additionalProperties", "items"),
        *("exclusiveMinimum", "exclusiveMaximum", "const"),
    }
)


class SchemaError(Exception):
    """A type says something that a structural schema cannot; the message names the place and the construct."""


def structural_schema(model: type[Record], *, with_defaults: bool) -> JsonSchema:
    """The schema of a record. A status has no defaults: what its writer leaves out is unknown."""
    document = model.model_json_schema(by_alias=True)
    return _Converter(document.get("$defs", {}), with_defaults=with_defaults).convert(document, model.__name__)


class _Converter:
    def __init__(self, definitions: Mapping[str, JsonSchema], *, with_defaults: bool) -> None:
        self._definitions = definitions
        self._with_defaults = with_defaults

    def convert(self, source: JsonSchema, at: str, *, open_: frozenset[str] = frozenset()) -> JsonSchema:
        """The structural form of ``source``; ``open_`` are the definitions being inlined, to find recursion."""
        source, open_ = self._resolve(source, at, open_)
        extensions = {key: value for key, value in source.items() if key.startswith("x-kubernetes-")}
        if unknown := source.keys() - _HANDLED - extensions.keys() - {"$defs"}:
            raise SchemaError(f"{at}: {', '.join(sorted(unknown))} has no counterpart in a structural schema")
        result: JsonSchema = {"type": _type(source, at)}
        if "description" in source:
            result["description"] = _one_paragraph(source["description"])
        result |= {key: source[key] for key in _KEPT if key in source}
        if "const" in source:
            result["enum"] = [source["const"]]
        if "pattern" in source and "x-kubernetes-validations" not in extensions:
            result["pattern"] = source["pattern"]
        for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if exclusive in source:
                result |= {bound: source[exclusive], exclusive: True}
        self._convert_parts(source, result, at, open_)
        result |= extensions
        if result["type"] == "array":
            result.setdefault("x-kubernetes-list-type", "atomic")
        self._set_default(source, result)
        if "x-kubernetes-int-or-string" in result:
            del result["type"]  # the extension stands for both
        return result

    def _resolve(self, source: JsonSchema, at: str, open_: frozenset[str]) -> tuple[JsonSchema, frozenset[str]]:
        """Without ``$ref`` and without ``| None``; what stands beside them wins over what they contain."""
        while True:
            if reference := source.get("$ref"):
                name = reference.removeprefix("#/$defs/")
                if name in open_:
                    raise SchemaError(f"{at}: {name} contains itself, which a CRD cannot")
                open_ |= {name}
                inner = self._definitions[name]
            elif "anyOf" in source:
                branches = [branch for branch in source["anyOf"] if branch != {"type": "null"}]
                if len(branches) != 1:
                    raise SchemaError(f"{at}: a union of {len(branches)} types has no counterpart; use one object")
                (inner,) = branches
            else:
                return source, open_
            beside = {key: value for key, value in source.items() if key not in {"$ref", "anyOf", "$defs"}}
            source = {**inner, **beside}

    def _convert_parts(self, source: JsonSchema, result: JsonSchema, at: str, open_: frozenset[str]) -> None:
        if "properties" in source:
            result["properties"] = {
                name: self.convert(part, f"{at}.{name}", open_=open_) for name, part in source["properties"].items()
            }
        elif isinstance(values := source.get("additionalProperties"), dict):
            result["additionalProperties"] = self.convert(values, f"{at}[*]", open_=open_)
        if "items" in source:
            result["items"] = self.convert(source["items"], f"{at}[]", open_=open_)

    def _set_default(self, source: JsonSchema, result: JsonSchema) -> None:
        """Empty lists and maps are absent rather than default: they would only lengthen what people read."""
        default = source.get("default")
        if not self._with_defaults or default is None or default == []:
            return
        if result["type"] == "object":
            if "properties" in result:
                result["default"] = _without_inner_defaults(default, result)
            return
        result["default"] = default
        shown = f"'{default}'" if isinstance(default, str) else str(default)
        if default != "" and "description" in result:
            result["description"] += f" Default: {shown}."


def _without_inner_defaults(value: Any, schema: JsonSchema) -> Any:
    """A default without what the API server fills in from the defaults of its parts."""
    if value is None or "properties" not in schema:
        return value
    properties: dict[str, JsonSchema] = schema["properties"]
    parts = {name: _without_inner_defaults(part, properties[name]) for name, part in value.items()}
    return {
        name: part
        for name, part in parts.items()
        if part not in (None, []) and part != properties[name].get("default", {})
    }


def _type(source: JsonSchema, at: str) -> str:
    if "type" in source:
        return str(source["type"])
    if "const" in source:
        return "string"
    raise SchemaError(f"{at}: has no type")


def _one_paragraph(text: str) -> str:
    return " ".join(text.split())
