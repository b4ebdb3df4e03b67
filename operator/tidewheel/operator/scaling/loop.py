"""The scaling loop: once per period read demand, ask the autoscaler, and wake the models whose advice has changed."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from tidewheel.autoscaler.units import Demand
from tidewheel.clients.errors import ApiError, NotFound
from tidewheel.clients.kubernetes import KubeClient
from tidewheel.clients.prometheus import PrometheusError
from tidewheel.clients.resources import CONFIG_MAPS, NODES, KubeObject, Resource
from tidewheel.crds.scaling import SourceKind
from tidewheel.operator.planning.records import ModelKey, Picture, PodRecord
from tidewheel.operator.planning.split import shares
from tidewheel.operator.scaling.advice import ModelAdvice
from tidewheel.operator.scaling.demand import DemandReader, DemandReading
from tidewheel.operator.scaling.engines import EngineReader
from tidewheel.operator.scaling.metrics import ScalingMetrics
from tidewheel.operator.scaling.model_scaling import ModelScaling, Surroundings, keep_days
from tidewheel.operator.scaling.nodes import leaving_nodes
from tidewheel.operator.scaling.past import PastReader, joined
from tidewheel.operator.scaling.placement import SOURCE_LABEL
from tidewheel.operator.scaling.profile import KEY, profile_config_map, profile_name, profile_text, saved_buckets
from tidewheel.operator.scaling.settings import ScalingSettings
from tidewheel.operator.scaling.writers import other_writers
from tidewheel.operator.tasks import KeyedTasks

_LOG: Final = logging.getLogger(__name__)
AUTOSCALERS: Final = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
FIELD_MANAGER: Final = "tidewheel-autoscaler"
WRITERS_SECONDS: Final = 60.0
CLOSED_AT_ONCE: Final = 150
"""Models whose ended buckets one cycle takes in, at 3 ms of CPU each; the others have their turn in the next cycles."""


class ScalingLoop:
    """Holds what is learnt of every model and the last advice about it."""

    def __init__(
        self,
        client: KubeClient,
        *,
        settings: ScalingSettings,
        reader: DemandReader,
        past: PastReader,
        engines: EngineReader,
        metrics: ScalingMetrics,
        keys: Callable[[], Iterable[ModelKey]],
        picture: Callable[[ModelKey], Picture],
        namespaces: Sequence[str],
        may_write: Callable[[], bool],
        wake: Callable[[ModelKey], None],
    ) -> None:
        self._client = client
        self._settings = settings
        self._reader = reader
        self._past = past
        self._engines = engines
        self._metrics = metrics
        self._keys = keys
        self._picture = picture
        self._namespaces = namespaces
        self._may_write = may_write
        self._wake = wake
        self._models: dict[ModelKey, ModelScaling] = {}
        self._advice: dict[ModelKey, ModelAdvice] = {}
        self._saved_at: dict[ModelKey, float] = {}
        self._writers: Mapping[tuple[str, str], str] = {}
        self._writers_at = float("-inf")
        self._remembering: KeyedTasks[ModelKey] = KeyedTasks()
        self._one_at_a_time = asyncio.Semaphore(1)

    def advice(self, key: ModelKey) -> ModelAdvice | None:
        """The last advice about a model; None where it is not scaled, or before the first look."""
        return self._advice.get(key)

    async def run(self) -> None:
        """For ever; a cycle that fails is logged, and the next one tries again."""
        try:
            while True:
                began = time.monotonic()
                try:
                    await self.cycle()
                except Exception:
                    self._metrics.errors.inc()
                    _LOG.exception("a scaling cycle failed; the sizes stay as they are")
                spent = time.monotonic() - began
                self._metrics.seconds.set(spent)
                await asyncio.sleep(max(0.0, self._settings.period_seconds - spent))
        finally:
            await self._remembering.close()

    async def cycle(self) -> None:
        """One look at all models."""
        pictures = {key: picture for key in sorted(self._keys()) if _is_scaled(picture := self._picture(key))}
        for key in [key for key in self._advice if key not in pictures]:
            self._forget(key)
        if not pictures:
            return
        at = next(iter(pictures.values())).now
        reading, writers, nodes, reports = await asyncio.gather(
            self._reader.read(at.timestamp()),
            self._other_writers(),
            self._leaving_nodes(pictures.values()),
            self._engines.read({f"{key}/{name}": pod for key, name, pod in _one_of_each(pictures.values())}),
        )
        free = self._free_gpus(pictures.values())
        closings = CLOSED_AT_ONCE
        for key, picture in pictures.items():
            has_ended = key in self._models and self._models[key].has_ended(picture.now.timestamp())
            may_close = not has_ended or closings > 0
            closings -= has_ended
            around = Surroundings(
                reports={name: reports[path] for name in picture.versions if (path := f"{key}/{name}") in reports},
                free_gpus=free,
                other_writers={name: who for (namespace, name), who in writers.items() if namespace == key.namespace},
                leaving_nodes=nodes,
            )
            await self._advise(key, picture, reading, around, may_close=may_close)

    async def _advise(
        self, key: ModelKey, picture: Picture, reading: DemandReading, around: Surroundings, *, may_close: bool
    ) -> None:
        model = self._models.get(key)
        if model is None:
            model = self._models[key] = self._begin(key)
        # Rebuilding a forecast for another lead takes a second or two: not in the loop that everybody shares.
        advice = await asyncio.to_thread(model.advise, picture, reading, around, may_close=may_close)
        if advice is None:
            self._forget(key)
            return
        before = self._advice.get(key)
        self._advice[key] = advice
        self._metrics.show(key, advice)
        if before is None or _matters(before, advice, picture):
            self._wake(key)
        await self._save(key, model, picture.now)

    def _begin(self, key: ModelKey) -> ModelScaling:
        """At once, without its past: that is read beside the cycles, one model after the other."""
        model = ModelScaling(self._settings, knows_past=False)
        self._remembering.start(key, self._remember(key, model), name=f"past demand of {key}")
        return model

    async def _remember(self, key: ModelKey, model: ModelScaling) -> None:
        """What Prometheus has and what an operator before this one has saved, as soon as both can be read."""
        give_up = time.monotonic() + self._settings.past_patience_seconds
        while True:
            async with self._one_at_a_time:
                is_complete = await self._learn_past(key, model, is_last=time.monotonic() >= give_up)
            if is_complete:
                return
            await asyncio.sleep(self._settings.period_seconds)

    async def _learn_past(self, key: ModelKey, model: ModelScaling, *, is_last: bool) -> bool:
        picture, step = self._picture(key), self._settings.step_seconds
        end = int(picture.now.timestamp() // step)
        oldest = end - keep_days(step)
        troubles: list[str] = []
        saved: Mapping[int, Demand] = {}
        measured: Mapping[int, Demand] = {}
        try:
            body = await self._client.get(CONFIG_MAPS, profile_name(key.model), key.namespace)
            text = (body.get("data") or {}).get(KEY, "")
            saved = await asyncio.to_thread(saved_buckets, text, step_seconds=step)
        except NotFound:
            pass
        except ApiError as error:
            troubles.append(str(error))
        try:
            measured = await self._past.read(key, first=oldest, end=end)
        except PrometheusError as error:
            troubles.append(str(error))
        if troubles:
            _LOG.warning("the past demand of %s is not all known: %s", key, "; ".join(troubles))
        recent = {bucket: demand for bucket, demand in saved.items() if oldest <= bucket < end}
        first, demands = joined(measured, recent)
        is_complete = is_last or not troubles
        await asyncio.to_thread(model.learn_past, picture, first, demands, complete=is_complete)
        _LOG.info(
            "past demand of %s: %d buckets, %d of them measured, %d saved",
            key, len(demands), len(measured), len(recent),
        )  # fmt: skip
        return is_complete

    async def _save(self, key: ModelKey, model: ModelScaling, now: datetime) -> None:
        at = now.timestamp()
        if at - self._saved_at.setdefault(key, at) < self._settings.save_seconds or model.outlook is None:
            return
        if not model.knows_past:
            return  # what is saved is more than what is known
        text = profile_text(model.outlook, buckets=keep_days(self._settings.step_seconds))
        if text is None or not self._may_write():
            return
        self._saved_at[key] = at
        try:
            body = profile_config_map(key, text)
            await self._client.apply(CONFIG_MAPS, body, field_manager=FIELD_MANAGER, force=True)
        except ApiError as error:
            _LOG.warning("the demand profile of %s cannot be saved: %s", key, error)

    async def _other_writers(self) -> Mapping[tuple[str, str], str]:
        """Looked for once a minute, however many models there are."""
        if time.monotonic() - self._writers_at >= WRITERS_SECONDS:
            self._writers_at = time.monotonic()
            try:
                self._writers = other_writers(await self._list_autoscalers())
            except ApiError as error:
                _LOG.warning("HorizontalPodAutoscalers cannot be listed: %s", error)
        return self._writers

    async def _list_autoscalers(self) -> list[KubeObject]:
        found: list[KubeObject] = []
        for namespace in self._namespaces or (None,):
            found += (await self._client.list(AUTOSCALERS, namespace)).items
        return found

    async def _leaving_nodes(self, pictures: Iterable[Picture]) -> frozenset[str]:
        """Nodes are looked at only while a replica runs on spot."""
        if not any(_runs_on_spot(picture) for picture in pictures):
            return frozenset()
        try:
            return leaving_nodes((await self._client.list(NODES)).items)
        except ApiError as error:
            _LOG.warning("nodes cannot be listed, so a spot notice is not seen: %s", error)
            return frozenset()

    def _free_gpus(self, pictures: Iterable[Picture]) -> int | None:
        if self._settings.gpu_budget is None:
            return None
        used = sum(
            max(version.spec.replica.gpus, 1)
            for picture in pictures
            for pod in picture.pods
            if (version := picture.versions.get(pod.version)) is not None and version.spec is not None
            if not pod.is_finished
        )
        return self._settings.gpu_budget - used

    def _forget(self, key: ModelKey) -> None:
        self._remembering.stop(key)
        self._models.pop(key, None)
        self._saved_at.pop(key, None)
        if self._advice.pop(key, None) is not None:
            self._metrics.forget(key)
            self._wake(key)


def _is_scaled(picture: Picture) -> bool:
    return any(found.spec is not None and found.spec.scaling is not None for found in picture.versions.values())


def _one_of_each(pictures: Iterable[Picture]) -> Iterable[tuple[ModelKey, str, PodRecord]]:
    """The oldest serving replica of each scaled version: it has seen the most steps."""
    for picture in pictures:
        for name, version in picture.versions.items():
            if version.spec is None or version.spec.scaling is None:
                continue
            pod = next((pod for pod in picture.pods_of(name) if pod.is_serving and pod.ip), None)
            if pod is not None:
                yield picture.key, name, pod


def _runs_on_spot(picture: Picture) -> bool:
    for name, version in picture.versions.items():
        scaling = version.spec.scaling if version.spec is not None else None
        spot = {entry.name for entry in scaling.sources if entry.kind is SourceKind.SPOT} if scaling else set()
        if spot and any(pod.labels.get(SOURCE_LABEL) in spot for pod in picture.pods_of(name)):
            return True
    return False


def _matters(before: ModelAdvice, after: ModelAdvice, picture: Picture) -> bool:
    """Whether the model must be looked at now: another size at any share that counts, another rung, a leaving node."""
    if (before.rung, before.leaving_nodes, before.outlook.is_blind) != (
        after.rung,
        after.leaving_nodes,
        after.outlook.is_blind,
    ):
        return True
    weights = shares(picture.table)
    for name, found in after.versions.items():
        old = before.versions.get(name)
        marks = {weights.get(name, 0), 10_000}
        if old is None or old.other_writer != found.other_writer or old.load.bounds != found.load.bounds:
            return True
        if any(old.load.wanted(share) != found.load.wanted(share) for share in marks):
            return True
    return False
