"""The fault proxy does what it says, and without a fault nothing."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from contextlib import aclosing
from pathlib import Path

import pytest
from tests.clients.configmaps import create, through
from tests.faults.proxy import (
    WRITES,
    After,
    ApiProxy,
    Delay,
    DelayEvent,
    Hang,
    LoseAnswer,
    ReorderEvent,
    Rewrite,
    calls,
)

from tidewheel.cli.cluster.control_plane import ControlPlane
from tidewheel.clients.errors import ServerUnavailable
from tidewheel.clients.kubernetes import CONFIG_MAPS, Access, KubeClient

pytestmark = pytest.mark.component

WRITER = """
import asyncio, sys
from pathlib import Path
from tests.clients.configmaps import create
from tidewheel.clients.kubernetes import KubeClient, load_access

async def main():
    async with KubeClient(load_access(kubeconfig=Path(sys.argv[1]))) as client:
        for number in range(4):
            await create(client, f"m-{number}", sys.argv[2])

asyncio.run(main())
"""


def test_kubectl_works_through_it_as_without_it(control_plane: ControlPlane, access: Access) -> None:
    with ApiProxy(access) as proxy:
        server = f"--server={proxy.url}"
        control_plane.kubectl(server, "create", "namespace", "through-the-proxy")
        control_plane.kubectl(server, "create", "configmap", "a", "--from-literal=k=v", "-n", "through-the-proxy")
        assert "v" in control_plane.kubectl(
            server, "get", "cm", "a", "-n", "through-the-proxy", "-o=jsonpath={.data.k}"
        )
        assert [call.resource for call in proxy.seen()] == ["namespaces", "configmaps"]
        assert proxy.executed_writes() == 2


def start_writer(kubeconfig: Path, namespace: str) -> subprocess.Popen[bytes]:
    """A program that creates four ConfigMaps, one after the other."""
    return subprocess.Popen([sys.executable, "-c", WRITER, str(kubeconfig), namespace])


@pytest.mark.parametrize("k", [1, 2, 3, 4])
async def test_a_program_dies_right_after_its_kth_write(
    access: Access, client: KubeClient, namespace: str, tmp_path: Path, k: int
) -> None:
    with ApiProxy(access) as proxy:
        kubeconfig = proxy.write_kubeconfig(tmp_path / "kubeconfig")
        started = threading.Event()
        program: subprocess.Popen[bytes]

        def kill() -> None:
            started.wait(10)
            program.kill()
            program.wait(10)

        proxy.inject(WRITES, After(kill), skip=k - 1)
        program = start_writer(kubeconfig, namespace)
        started.set()
        code = await asyncio.to_thread(program.wait, 30)
        assert code == -signal.SIGKILL
        assert proxy.executed_writes() == k
        names = [item["metadata"]["name"] for item in (await client.list(CONFIG_MAPS, namespace)).items]
        assert sorted(name for name in names if name.startswith("m-")) == [f"m-{number}" for number in range(k)]


async def test_a_program_may_also_hear_of_its_last_write(access: Access, namespace: str) -> None:
    ran = threading.Event()
    with ApiProxy(access) as proxy:
        proxy.inject(WRITES, After(ran.set, answer=True))
        async with through(proxy) as faulty:
            assert (await create(faulty, "a", namespace))["metadata"]["name"] == "a"
    assert ran.is_set()


async def test_a_lost_answer_is_a_write_that_happened(access: Access, client: KubeClient, namespace: str) -> None:
    with ApiProxy(access) as proxy:
        proxy.inject(WRITES, LoseAnswer(), skip=1)
        async with through(proxy) as faulty:
            await create(faulty, "a", namespace)
            with pytest.raises(ServerUnavailable):
                await create(faulty, "b", namespace)
    assert await client.get(CONFIG_MAPS, "b", namespace)


async def test_a_call_hangs_until_the_fault_is_removed(access: Access, namespace: str) -> None:
    with ApiProxy(access) as proxy:
        fault = proxy.inject(calls("list"), Hang())
        async with through(proxy) as faulty:
            listing = asyncio.create_task(faulty.list(CONFIG_MAPS, namespace))
            done, _ = await asyncio.wait({listing}, timeout=0.5)
            assert not done
            fault.remove()
            assert (await listing).resource_version


async def test_a_call_is_delayed(access: Access, namespace: str) -> None:
    with ApiProxy(access) as proxy:
        proxy.inject(calls("list"), Delay(0.3))
        async with through(proxy) as faulty:
            began = time.monotonic()
            await faulty.list(CONFIG_MAPS, namespace)
            assert time.monotonic() - began >= 0.3


async def test_a_list_can_show_the_servers_own_past(access: Access, client: KubeClient, namespace: str) -> None:
    await create(client, "a", namespace)
    past = (await client.list(CONFIG_MAPS, namespace, label_selector="test=yes")).resource_version
    await client.delete(CONFIG_MAPS, "a", namespace)
    with ApiProxy(access) as proxy:
        proxy.inject(calls("list"), Rewrite({"resourceVersion": past, "resourceVersionMatch": "Exact"}))
        async with through(proxy) as faulty:
            stale = await faulty.list(CONFIG_MAPS, namespace, label_selector="test=yes")
            assert [item["metadata"]["name"] for item in stale.items] == ["a"]
            assert (await faulty.list(CONFIG_MAPS, namespace, label_selector="test=yes")).items == []


@pytest.mark.parametrize(
    ("effect", "order"),
    [
        pytest.param(ReorderEvent(), ["b", "a", "c"], id="reorder"),
        pytest.param(DelayEvent(seconds=0.2), ["a", "b", "c"], id="delay"),
    ],
)
async def test_events_come_in_another_order_or_later(
    access: Access, client: KubeClient, namespace: str, effect: ReorderEvent | DelayEvent, order: list[str]
) -> None:
    with ApiProxy(access) as proxy:
        proxy.inject(calls("watch", resource="configmaps"), effect)
        async with through(proxy) as faulty:
            listed = await faulty.list(CONFIG_MAPS, namespace)
            for name in ("a", "b", "c"):
                await create(client, name, namespace)
            watch = faulty.watch(CONFIG_MAPS, namespace=namespace, resource_version=listed.resource_version)
            seen: list[str] = []
            async with aclosing(watch):
                async for event in watch:
                    seen.append(event.object["metadata"]["name"])
                    if len(seen) == 3:
                        break
    assert seen == order
