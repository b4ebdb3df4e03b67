"""The generated files, and the schema in them, without an API server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from pydantic import Field

from tidewheel.crds.base import Record
from tidewheel.crds.definitions import DEFINITIONS, UNSEEN_STATUS, Definition, custom_resource_definition
from tidewheel.crds.generate import main, render_all, stale_files
from tidewheel.crds.schema import SchemaError, structural_schema

ROOT = Path(__file__).parents[2]
Json = dict[str, Any]

UNITS = (
    *("second", "token", "replica", "percent", "basis points", "gpus", "stream", "port", "generation", "rung"),
    *("block", "scrape", "look", "request", "step", "verdict", "how many there are"),
)


def schema_of(definition: Definition) -> Json:
    """The kind's schema."""
    (version,) = custom_resource_definition(definition)["spec"]["versions"]
    schema: Json = version["schema"]["openAPIV3Schema"]
    return schema


EACH_KIND = pytest.mark.parametrize(
    "schema", [pytest.param(schema_of(definition), id=definition.kind) for definition in DEFINITIONS]
)


def walk(path: str, schema: Json) -> Iterator[tuple[str, Json]]:
    """Every part of a schema; ``metadata`` is Kubernetes' own."""
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        if path or name not in {"metadata", "apiVersion", "kind"}:
            yield from walk(f"{path}.{name}", part)
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(key), dict):
            yield from walk(f"{path}{mark}", schema[key])


def test_the_checked_in_files_are_what_the_types_say() -> None:
    assert stale_files(ROOT, render_all()) == []


def test_the_check_names_what_differs_and_generating_mends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pyproject.toml").touch()
    root = ["--root", str(tmp_path)]
    assert main([*root, "--check"]) == 1
    assert "crds/tidewheel.dev_modelversions.yaml is not what the types say" in capsys.readouterr().err
    assert main(root) == 0
    assert main([*root, "--check"]) == 0
    (tmp_path / "crds" / "tidewheel.dev_old.yaml").touch()
    assert main([*root, "--check"]) == 1
    assert main(root) == 0
    assert not (tmp_path / "crds" / "tidewheel.dev_old.yaml").exists()


def test_it_refuses_to_write_outside_the_repository(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["--root", str(tmp_path)])


def test_the_charts_copy_is_the_plain_one_behind_a_value_and_kept() -> None:
    rendered = render_all()
    for definition in DEFINITIONS:
        plain = yaml.safe_load(rendered[Path("crds") / definition.file_name])
        text = rendered[Path("charts/tidewheel/templates/crds") / definition.file_name]
        lines = text.splitlines()
        assert (lines[1], lines[-1]) == ("{{- if .Values.crds.install }}", "{{- end }}")
        inside = "\n".join(lines[2:-1]).replace('{{ "{{" }}', "ESCAPED")
        assert "{{" not in inside
        chart = yaml.safe_load(inside.replace("ESCAPED", "{{"))
        assert chart["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
        assert chart == plain


def test_every_kind_is_small_enough_for_a_helm_release_and_for_apply() -> None:
    """Client-side apply keeps a copy in an annotation of at most 256 KiB."""
    assert max(len(text) for path, text in render_all().items() if path.suffix == ".yaml") < 100_000


def test_the_reference_has_a_row_for_every_field() -> None:
    reference = render_all()[Path("docs/api-reference.md")]
    for definition in DEFINITIONS:
        for path, _ in walk("", schema_of(definition)):
            if path and not path.endswith(("[]", "{}")):
                assert f"| `{path.removeprefix('.')}`" in reference


@EACH_KIND
def test_every_field_has_a_description(schema: Json) -> None:
    bare = [path for path, part in walk("", schema) if not path.endswith(("[]", "{}")) and not part.get("description")]
    assert bare == []


@EACH_KIND
def test_every_number_has_a_unit_and_every_default_is_told(schema: Json) -> None:
    for path, part in walk("", schema):
        if part.get("type") == "integer":
            assert any(unit in part["description"].lower() for unit in UNITS), path
        default = part.get("default")
        if default not in (None, "", {}, UNSEEN_STATUS):
            assert f"Default: {default!r}." in part["description"], path


@EACH_KIND
def test_everything_is_bounded(schema: Json) -> None:
    """What is unbounded the API server's cost estimate takes at its worst, and an etcd entry at its largest."""
    for path, part in walk("", schema):
        match part.get("type"):
            case "string":
                bounded = "maxLength" in part or "enum" in part
            case "array":
                bounded = "maxItems" in part
            case "object":
                bounded = "properties" in part or "maxProperties" in part
            case "integer":
                bounded = path.startswith(".status") or "minimum" in part
            case kind:
                bounded = kind in {"boolean", "number"} or part.get("x-kubernetes-int-or-string", False)
        assert bounded, path


@EACH_KIND
def test_every_rule_has_a_sentence(schema: Json) -> None:
    rules = [(path, rule) for path, part in walk("", schema) for rule in part.get("x-kubernetes-validations", ())]
    assert rules
    for path, rule in rules:
        assert len(rule["message"].split()) >= 4, (path, rule)


@EACH_KIND
def test_a_status_has_no_defaults_but_that_nobody_has_seen_the_object(schema: Json) -> None:
    defaults = {
        path: part["default"] for path, part in walk("", schema) if path.startswith(".status") and "default" in part
    }
    assert defaults in ({}, {".status": UNSEEN_STATUS})


class Inner(Record):
    """An inner record."""

    size: Annotated[int, Field(description="How big.")] = 5


class Outer(Record):
    """Every construct that has a counterpart."""

    kind: Annotated[Literal["only"], Field(description="Fixed.")]
    above: Annotated[int, Field(gt=0, description="Above zero.")]
    maybe: Annotated[str | None, Field(description="May be absent.", max_length=3)] = None
    inner: Annotated[Inner, Field(description="Nested.")] = Inner()
    other: Annotated[Inner, Field(description="Nested, with another default.")] = Inner(size=6)


def test_each_construct_has_its_structural_form() -> None:
    inner = {"type": "integer", "description": "How big. Default: 5.", "default": 5}
    assert structural_schema(Outer, with_defaults=True) == {
        "type": "object",
        "description": "Every construct that has a counterpart.",
        "required": ["kind", "above"],
        "properties": {
            "kind": {"type": "string", "description": "Fixed.", "enum": ["only"]},
            "above": {"type": "integer", "description": "Above zero.", "minimum": 0, "exclusiveMinimum": True},
            "maybe": {"type": "string", "description": "May be absent.", "maxLength": 3},
            "inner": {"type": "object", "description": "Nested.", "properties": {"size": inner}, "default": {}},
            "other": {
                "type": "object",
                "description": "Nested, with another default.",
                "properties": {"size": inner},
                "default": {"size": 6},
            },
        },
    }


class Union(Record):
    """A union."""

    value: int | str


class Recursive(Record):
    """A record in itself."""

    parts: "list[Recursive]"


class Pair(Record):
    """A tuple."""

    pair: tuple[int, str]


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (Union, "Union.value: a union of 2 types has no counterpart"),
        (Recursive, r"parts\[\]: Recursive contains itself"),
        (Pair, "Pair.pair: prefixItems has no counterpart"),
    ],
)
def test_a_construct_without_a_counterpart_is_an_error_here_and_not_in_a_cluster(
    model: type[Record], sentence: str
) -> None:
    with pytest.raises(SchemaError, match=sentence):
        structural_schema(model, with_defaults=True)
