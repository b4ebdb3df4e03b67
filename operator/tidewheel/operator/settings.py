"""Settings of the operator: flags, or environment variables of the same name (``TIDEWHEEL_OPERATOR_LEASE_SECONDS``)."""

import argparse
import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, get_type_hints

from tidewheel.autoscaler.forecast.calendar import DAY_SECONDS
from tidewheel.autoscaler.ladder import LadderSettings
from tidewheel.operator.errors import SettingsError
from tidewheel.operator.planning.drain import DrainSettings
from tidewheel.operator.planning.podmanifest import PodSettings
from tidewheel.operator.planning.pool import PoolSettings
from tidewheel.operator.rollouts.gateways import GatewaySettings
from tidewheel.operator.rollouts.judging import JudgingSettings
from tidewheel.operator.scaling.settings import ScalingSettings

ENVIRONMENT_PREFIX: Final = "TIDEWHEEL_OPERATOR_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every duration in seconds."""

    kubeconfig: Path | None = None
    """A kubeconfig; without it $KUBECONFIG, the pod's service account, or ~/.kube/config."""
    serving_namespaces: tuple[str, ...] = ()
    """Namespaces with models, comma-separated; none: all of them."""
    namespace: str = "tidewheel-system"
    """Where the Lease is."""
    lease_name: str = "tidewheel-operator"
    """Operators with the same Lease take turns."""
    identity: str = ""
    """This operator's name in the Lease; default: host name and a random part."""
    engine_token_file: Path | None = None
    """Bearer token of the engines; engines are told to ask for it, and /load and /drain are called with it."""
    host: str = "0.0.0.0"
    """Address of /healthz, /readyz and /metrics."""
    port: int = 8080
    """Port of /healthz, /readyz and /metrics; 0 picks a free one and logs it."""
    log_level: str = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""
    workers: int = 6
    """Models reconciled at the same time."""
    lease_seconds: float = 15.0
    """Others may take the Lease when it has not been renewed for so long."""
    renew_deadline_seconds: float = 10.0
    """Without a renewal for so long this operator stops writing and exits."""
    lease_retry_seconds: float = 2.0
    """Pause between renewals, and between attempts to take the Lease."""
    resync_seconds: float = 300.0
    """Every model is looked at again after so long, give or take a fifth, even if nothing happened."""
    list_seconds: float = 120.0
    """Every kind is listed again after so long, and what a watch has missed is corrected."""
    watch_silence_seconds: float = 20.0
    """A watch without a byte for so long is opened again; a half-open connection lasts no longer."""
    watch_old_seconds: float = 90.0
    """/healthz is red when a watch was silent for so long while the API server answers."""
    queue_stuck_seconds: float = 120.0
    """/healthz is red when a model has waited for a worker for so long."""
    watch_restart_seconds: float = 1.0
    """Pause before the watcher is started again after it ended; doubles up to 30 s."""
    backoff_seconds: float = 0.2
    """First back-off of a model whose reconcile failed; doubles, with full jitter."""
    backoff_limit_seconds: float = 300.0
    """Longest back-off."""
    drain_propagation_seconds: float = 3.0
    """After a replica's gate closes, gateways may still send to it for so long."""
    load_poll_seconds: float = 1.0
    """Pause between looks at the streams of a replica that leaves."""
    load_timeout_seconds: float = 2.0
    """Longest wait for an engine's answer."""
    min_ready_seconds: float = 1.0
    """A replica gets weight only when it has been ready for so long: gateways must know it first."""
    replace_backoff_seconds: float = 5.0
    """Wait before a pod that its node ended is replaced; doubles with every incarnation."""
    prometheus_url: str = ""
    """Prometheus that scrapes the gateways, as http://prometheus.monitoring:9090; without it no step is cleared."""
    prometheus_timeout_seconds: float = 5.0
    """Longest wait for an answer of Prometheus."""
    scrape_seconds: float = 5.0
    """How often Prometheus scrapes the gateways, where a rule does not say."""
    judge_lag_scrapes: float = 1.0
    """The judge looks so many scrapes back, so that all samples have arrived; more where they are written remotely."""
    judge_retry_seconds: float = 5.0
    """Pause after a look of the judge that could tell nothing."""
    gateway_service: str = "tidewheel-gateway-admin"
    """Service of the gateways' admin ports, in --namespace; each of its ready endpoints must confirm a new weight."""
    gateway_port: int = 9090
    """Admin port of the gateways."""
    gateway_timeout_seconds: float = 2.0
    """Longest wait for a gateway's answer."""
    confirm_poll_seconds: float = 0.5
    """Pause between questions to gateways while one of them has not confirmed."""
    confirm_settled_seconds: float = 5.0
    """The same once all of them have."""
    startup_timeout_seconds: int = 3600
    """An engine that generated no token by then is restarted."""
    scaling_period_seconds: float = 15.0
    """Between two looks at the demand of all scaled models."""
    scaling_window_seconds: float = 60.0
    """Present demand is the rate over so long: at least four scrapes."""
    scaling_step_seconds: int = 300
    """Length of a bucket of demand history; it divides a day."""
    cold_start_prior_seconds: float = 180.0
    """From order to first token, before any start of a version was measured."""
    gpu_budget: int = 0
    """GPUs of the pool (replicas, for CPU replicas): scaling ends there, a rollout must fit; 0: not known, no limit."""
    ladder_period_seconds: float = 60.0
    """The degradation ladder climbs at most one rung in so long, on forecasts."""
    ladder_minimum_seconds: float = 180.0
    """A rung of the degradation ladder is kept for at least so long."""
    profile_save_seconds: float = 900.0
    """How often what was learnt of demand is written to its ConfigMap."""
    stop_seconds: float = 10.0
    """After SIGTERM, time for reconciles under way."""

    def __post_init__(self) -> None:
        if not self.lease_retry_seconds < self.renew_deadline_seconds < self.lease_seconds:
            raise SettingsError(
                "--lease-retry-seconds < --renew-deadline-seconds < --lease-seconds must hold, or two operators could "
                f"write: {self.lease_retry_seconds:g}, {self.renew_deadline_seconds:g}, {self.lease_seconds:g}"
            )
        if self.scaling_step_seconds < 1 or DAY_SECONDS % self.scaling_step_seconds:
            raise SettingsError(f"--scaling-step-seconds {self.scaling_step_seconds}: must divide a day; 300 does")
        if self.workers < 1:
            raise SettingsError("--workers must be at least 1")
        if self.engine_token_file is not None and not self.engine_token_file.exists():
            raise SettingsError(f"--engine-token-file {self.engine_token_file} does not exist; mount the Secret there")

    @property
    def gateways(self) -> GatewaySettings:
        """Whom to ask which generation they obey."""
        return GatewaySettings(
            namespace=self.namespace,
            service=self.gateway_service,
            port=self.gateway_port,
            timeout_seconds=self.gateway_timeout_seconds,
            poll_seconds=self.confirm_poll_seconds,
            settled_seconds=self.confirm_settled_seconds,
        )

    @property
    def judging(self) -> JudgingSettings:
        """How the judge looks."""
        return JudgingSettings(lag_scrapes=self.judge_lag_scrapes, retry_seconds=self.judge_retry_seconds)

    @property
    def scaling(self) -> ScalingSettings:
        """What the scaling loop needs."""
        return ScalingSettings(
            period_seconds=self.scaling_period_seconds,
            window_seconds=self.scaling_window_seconds,
            step_seconds=self.scaling_step_seconds,
            cold_start_prior_seconds=self.cold_start_prior_seconds,
            save_seconds=self.profile_save_seconds,
            gpu_budget=self.gpu_budget or None,
            ladder=LadderSettings(
                period_seconds=self.ladder_period_seconds, minimum_seconds=self.ladder_minimum_seconds
            ),
        )

    @property
    def pool(self) -> PoolSettings:
        """What the planners need."""
        return PoolSettings(
            pods=PodSettings(
                engine_token=self.engine_token_file is not None, startup_timeout_seconds=self.startup_timeout_seconds
            ),
            drain=DrainSettings(propagation_seconds=self.drain_propagation_seconds),
            replace_backoff_seconds=self.replace_backoff_seconds,
            load_poll_seconds=self.load_poll_seconds,
            min_ready_seconds=self.min_ready_seconds,
        )


def parse_settings(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Settings:
    """Flags first, then the environment, then the defaults. Raises SettingsError."""
    environment = os.environ if environment is None else environment
    parser = argparse.ArgumentParser(
        prog="python -m tidewheel.operator",
        description="Runs engine pods for ModelVersions and moves traffic as RoutingRules say.",
        epilog=f"Every flag has an environment variable: --lease-seconds is {ENVIRONMENT_PREFIX}LEASE_SECONDS.",
    )
    help_texts = _help_texts()
    for setting in fields(Settings):
        default = environment.get(ENVIRONMENT_PREFIX + setting.name.upper())
        shown = f" (default: {setting.default})" if setting.default not in (None, "", ()) else ""
        parser.add_argument(
            "--" + setting.name.replace("_", "-"), default=default, help=help_texts[setting.name].rstrip(".") + shown
        )
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    hints = get_type_hints(Settings)
    values = {name: _converted(name, value, hints[name]) for name, value in given.items()}
    if not values.get("identity"):
        values["identity"] = f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
    return Settings(**values)


def _converted(name: str, value: str, kind: Any) -> Any:
    flag = "--" + name.replace("_", "-")
    try:
        if kind == tuple[str, ...]:
            return tuple(part.strip() for part in value.split(",") if part.strip())
        if kind == Path | None:
            return None if value == "in-cluster" else Path(value)
        if kind in (int, float):
            number = kind(value)
            if number < 0:
                raise ValueError(value)
            return number
    except ValueError:
        raise SettingsError(f"{flag} {value}: give a number of 0 or more") from None
    return value


def _help_texts() -> dict[str, str]:
    """The sentence under each field, read from this file, so that it is written once."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    texts: dict[str, str] = {}
    for setting in fields(Settings):
        at = next(index for index, line in enumerate(lines) if line.startswith(f"    {setting.name}: "))
        texts[setting.name] = lines[at + 1].strip().strip('"').replace("%", "%%")
    return texts
