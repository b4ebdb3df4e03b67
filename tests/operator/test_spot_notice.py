"""A notice that is a file on the node becomes the taint that the operator obeys."""

import secrets
from pathlib import Path

import pytest

from tidewheel.clients.kubernetes import Access, KubeClient
from tidewheel.clients.resources import NODES
from tidewheel.operator.scaling.nodes import leaving_nodes
from tidewheel.operator.spot_notice import EFFECT, follow_once, has_notice, taints_with

GPU = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
OURS = {"key": "tidewheel.dev/spot-notice", "effect": EFFECT}


def test_taints_of_others_stay_and_nothing_is_written_twice() -> None:
    assert taints_with([GPU], notice=True) == [GPU, OURS]
    assert taints_with([GPU, OURS], notice=True) is None
    assert taints_with([OURS, GPU], notice=False) == [GPU]
    assert taints_with([GPU], notice=False) is None


def test_only_a_file_that_says_something_is_a_notice(tmp_path: Path) -> None:
    assert not has_notice(tmp_path / "absent")
    (tmp_path / "file").touch()
    assert not has_notice(tmp_path / "file")
    (tmp_path / "file").write_text('{"action": "terminate"}')
    assert has_notice(tmp_path / "file")


@pytest.mark.component
async def test_a_node_whose_file_says_that_it_will_go_is_one_that_leaves(access: Access, tmp_path: Path) -> None:
    name, file = f"spot-{secrets.token_hex(4)}", tmp_path / "instance-action"
    async with KubeClient(access, user_agent="test") as client:
        await client.create(NODES, {"metadata": {"name": name}, "spec": {"taints": [GPU]}})
        for text, leaves in (("", False), ('{"action": "terminate"}', True), ("", False)):
            file.write_text(text)
            await follow_once(client, node=name, file=file)
            node = await client.get(NODES, name)
            assert leaving_nodes([node]) == (frozenset({name}) if leaves else frozenset())
            assert GPU["key"] in {taint["key"] for taint in node["spec"]["taints"]}
        await client.delete(NODES, name)
