"""What a status says when the world is bad: which trouble it is, in words that name the fix."""

import pytest
from tests.operator.builders import ago, pod, version

from tidewheel.operator.planning.failures import diagnose, worst_problem
from tidewheel.operator.planning.records import EngineContainer, PodCondition, PodRecord, Termination

GPU = version("v1", replica={"gpus": 4, "memory": "64Gi"})
NO_GPU_LEFT = (
    "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient nvidia.com/gpu. "
    "preemption: 0/3 nodes are available: 2 No preemption victims found for incoming pod."
)


def ended(code: int, words: str, *, reason: str = "Error", restarts: int = 3) -> PodRecord:
    """Between two attempts of a container that ends again and again."""
    engine = EngineContainer(
        restarts=restarts,
        waiting_reason="CrashLoopBackOff",
        waiting_message="back-off 20s restarting failed container",
        last_terminated=Termination(code, reason, words, ago(5)),
    )
    return pod(GPU, state="loading", engine=engine)


def waiting(reason: str, message: str) -> PodRecord:
    return pod(GPU, state="loading", engine=EngineContainer(waiting_reason=reason, waiting_message=message))


def unschedulable(words: str) -> PodRecord:
    return pod(GPU, state="new", scheduled=PodCondition("False", "Unschedulable", words))


CASES = {
    "no GPU left": (unschedulable(NO_GPU_LEFT), "NoGpuFree", ["needs 4 nvidia.com/gpu", "2 of 3", "add nodes"], False),
    "other scheduling trouble": (
        unschedulable('persistentvolumeclaim "models" not found'),
        "Unschedulable",
        ['persistentvolumeclaim "models" not found'],
        False,
    ),
    "artefact missing": (
        ended(3, "/models/m.gguf does not exist; mount it with replica.pod.volumes"),
        "EngineCannotStart",
        ["/models/m.gguf does not exist"],
        True,
    ),
    "engine dies on start": (
        ended(1, "Traceback: ValueError"),
        "CrashLoop",
        ["code 1", "3 restart", "ValueError"],
        False,
    ),
    "no last words": (ended(139, ""), "CrashLoop", ["139", "no last words"], False),
    "out of memory": (ended(137, "", reason="OOMKilled"), "OutOfMemory", ["64Gi", "more memory"], False),
    "image missing": (
        waiting("ImagePullBackOff", "tidewheel:1: not found"),
        "ImagePullFailed",
        ["image tidewheel:1", "not found", "imagePullSecrets"],
        True,
    ),
    "container cannot be made": (
        waiting("CreateContainerConfigError", 'secret "x" not found'),
        "ContainerNotCreated",
        ['secret "x" not found'],
        True,
    ),
    "evicted": (
        pod(GPU, state="failed", reason="Evicted", message="The node was low on resource: memory."),
        "Evicted",
        ["low on resource: memory"],
        False,
    ),
}


@pytest.mark.parametrize(("seen", "reason", "words", "stalled"), CASES.values(), ids=CASES)
def test_words(seen: PodRecord, reason: str, words: list[str], stalled: bool) -> None:
    assert GPU.spec is not None
    problem = diagnose(seen, GPU.spec)
    assert problem is not None
    assert problem.finding.reason == reason
    assert problem.stalled is stalled
    for part in words:
        assert part in problem.finding.message


def test_a_replica_that_serves_again_is_no_problem_whatever_it_went_through() -> None:
    assert GPU.spec is not None
    engine = EngineContainer(running_since=ago(60), started=True, restarts=3, last_terminated=Termination(1))
    assert diagnose(pod(GPU, engine=engine), GPU.spec) is None


def test_the_worst_of_several_problems_speaks() -> None:
    assert GPU.spec is not None
    problem = worst_problem((unschedulable(NO_GPU_LEFT), ended(3, "wrong sha256"), pod(GPU)), GPU.spec)
    assert problem is not None
    assert "wrong sha256" in problem.finding.message


def test_long_last_words_are_cut_to_their_end() -> None:
    assert GPU.spec is not None
    problem = diagnose(ended(1, "x" * 4096 + "the end"), GPU.spec)
    assert problem is not None
    assert problem.finding.message.endswith("the end")
    assert len(problem.finding.message) < 1000
