"""What Argo CD (by our Lua, in a real Lua interpreter) and kstatus make of objects in every documented state."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from lupa.lua51 import LuaRuntime  # Argo CD's interpreter, gopher-lua, speaks Lua 5.1
from tests.gitops import kstatus_program
from tests.gitops.states import RULE_STATES, VERSION_STATES, State

ROOT = Path(__file__).parents[2]
ARGO = ROOT / "examples" / "gitops" / "argocd"
STATES = [
    *(pytest.param("health-routingrule.lua", state, id=f"RoutingRule {state.name}") for state in RULE_STATES),
    *(pytest.param("health-modelversion.lua", state, id=f"ModelVersion {state.name}") for state in VERSION_STATES),
]


def health(script: str, item: dict[str, Any]) -> dict[str, str]:
    """As Argo CD runs it: the object is the global ``obj``, the answer what the script returns."""
    lua = LuaRuntime(unpack_returned_tuples=True)
    lua.globals().obj = _to_lua(lua, item)
    for unsafe in ("os", "io", "require", "dofile", "loadfile"):
        lua.globals()[unsafe] = None  # Argo CD opens no standard libraries by default
    return dict(lua.execute((ARGO / script).read_text()))


def _to_lua(lua: LuaRuntime, value: Any) -> Any:
    if isinstance(value, dict):
        return lua.table_from({key: _to_lua(lua, entry) for key, entry in value.items()})
    if isinstance(value, list):
        return lua.table_from([_to_lua(lua, entry) for entry in value])
    return value


@pytest.mark.parametrize(("script", "state"), STATES)
def test_argo_cd_sees_what_people_should_see(script: str, state: State) -> None:
    """C52: progressing while moving, suspended while waiting for a person, degraded after a rollback, else healthy."""
    said = health(script, state.item)
    assert said["status"] == state.argo
    assert said["message"] or state.argo == "Healthy"


@pytest.mark.parametrize("script", ["health-routingrule.lua", "health-modelversion.lua"])
def test_an_object_without_any_status_is_not_healthy(script: str) -> None:
    """Row 61: flux2#4346, #5855."""
    item = {"metadata": {"name": "chat", "generation": 1}, "spec": {}}
    assert health(script, item)["status"] == "Progressing"


def test_kstatus_agrees() -> None:
    program = kstatus_program.built()
    if program is None:
        pytest.skip(
            "kstatus is not built: `python -m tests.gitops.kstatus_program` builds it where Go modules are to be had"
        )
    states = [*RULE_STATES, *VERSION_STATES]
    said = kstatus_program.compute(program, [state.item for state in states])
    assert dict(zip([state.name for state in states], said, strict=True)) == {
        state.name: state.kstatus for state in states
    }


def test_the_config_map_of_argo_cd_is_made_of_these_scripts() -> None:
    kustomization = yaml.safe_load((ARGO / "kustomization.yaml").read_text())
    (generated,) = kustomization["configMapGenerator"]
    files = dict(entry.split("=") for entry in generated["files"])
    assert files == {
        "resource.customizations.health.tidewheel.dev_RoutingRule": "health-routingrule.lua",
        "resource.customizations.health.tidewheel.dev_ModelVersion": "health-modelversion.lua",
    }
    assert all((ARGO / name).exists() for name in files.values())
