"""Every limit and duration of the gateway, each with its unit and what it is for.

Fields become command-line flags of the same name (``connect_timeout`` is ``--connect-timeout``).
"""

import argparse
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Final, Self, get_type_hints

_DESCRIPTION: Final = "Tidewheel's data plane: an OpenAI-style API in front of engine replicas."


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an operator may set. Durations in seconds, sizes in bytes."""

    host: Annotated[str, "address that the data and admin ports listen on"] = "0.0.0.0"
    port: Annotated[int, "data port; 0 picks a free one"] = 8080
    admin_port: Annotated[int, "port of /metrics and /routing; 0 picks a free one"] = 9090
    namespace: Annotated[str, "namespace of models that are named without one"] = "default"
    serving_namespaces: Annotated[str, "namespaces whose models are served, comma-separated; default: --namespace"] = ""
    engine_token_file: Annotated[Path | None, "file with the bearer token that engines ask for"] = None
    state_dir: Annotated[Path | None, "folder for the last known good routing"] = None
    workers: Annotated[int, "worker processes; above 1 they share the data port by SO_REUSEPORT"] = 1
    kubeconfig: Annotated[Path | None, "kubeconfig file; default: $KUBECONFIG, the pod's account, ~/.kube/config"] = (
        None
    )
    static: Annotated[Path | None, "JSON file with tables and endpoints; no Kubernetes then"] = None
    log_level: Annotated[str, "debug, info, warning or error"] = "info"
    access_log: Annotated[bool, "one log line per finished request"] = True

    key_file: Annotated[
        Path | None, "JSON file of API keys, read again when it changes; without it no key is asked"
    ] = None
    key_poll_seconds: Annotated[float, "how often the --key-file is looked at"] = 5.0
    anonymous_tier: Annotated[str, "tier of everybody where there is no --key-file: paid, free or background"] = "free"
    gateways: Annotated[int, "gateway processes that share the replicas; each may fill its equal share of them"] = 1
    load_poll_seconds: Annotated[float, "how often each replica is asked for its load; 0 never asks"] = 0.4
    load_stale_seconds: Annotated[float, "age at which what a replica reported of its load no longer counts"] = 1.0
    admission_slack: Annotated[float, "share of a replica's slots let in beyond them, to wait at the engine"] = 0.05
    paid_wait_limit: Annotated[float, "a paid request that would wait longer is refused; tiers may say otherwise"] = (
        20.0
    )
    free_wait_limit: Annotated[float, "the same for the free lane"] = 60.0
    background_wait_limit: Annotated[float, "the same for the background lane"] = 600.0
    lane_depth: Annotated[int, "requests that may wait in one lane of one version"] = 2000
    queue_notice_seconds: Annotated[float, "a stream that waits this long is told its position"] = 0.5
    queue_update_seconds: Annotated[float, "and again this often"] = 2.0
    pause_retry_seconds: Annotated[float, "Retry-After of a lane that the ladder has paused or shed"] = 60.0
    placement: Annotated[str, "how a replica is chosen: affinity, least-loaded or random (for comparison)"] = "affinity"
    affinity_allowance_tokens: Annotated[float, "tokens in flight up to which a replica keeps its prefixes anyway"] = (
        8192.0
    )
    affinity_positions: Annotated[int, "prefix positions remembered; 256 bytes of a prompt each"] = 65_536
    affinity_seconds: Annotated[float, "a replica that got nothing of a prefix for this time is no longer its home"] = (
        300.0
    )
    ramp_seconds: Annotated[float, "a replica that joins others gets its full share after this time"] = 30.0
    quota_lease_share: Annotated[float, "share of a shared quota that a gateway takes ahead"] = 0.02
    quota_lease_seconds: Annotated[float, "what was taken ahead and not used in this time is forgotten"] = 30.0

    trace_endpoint: Annotated[
        str, "OTLP/HTTP address that traces are sent to, e.g. http://collector:4318/v1/traces; none: no traces"
    ] = ""
    trace_ratio: Annotated[float, "share of requests traced whose client does not say whether to"] = 1.0
    trace_timeout: Annotated[float, "the collector must take spans in this time, or they are dropped"] = 10.0
    trace_flush_seconds: Annotated[float, "spans of this time are sent together"] = 5.0
    region: Annotated[str, "name of this region, as peers know it"] = "here"
    peers: Annotated[
        str, "gateways of other regions that take what would wait long here: region=http://host:port, ..."
    ] = ""
    peer_key_file: Annotated[Path | None, "file with the key by which gateways of all regions know each other"] = None
    peer_poll_seconds: Annotated[float, "how often each peer is asked for its queues"] = 0.5
    peer_stale_seconds: Annotated[float, "age at which what a peer said of its queues no longer counts"] = 2.0
    peer_timeout: Annotated[float, "a peer must tell them in this time"] = 1.0
    spill_penalty: Annotated[float, "what the way to another region costs, beside its queue"] = 0.1
    spill_prefill_rate: Annotated[float, "tokens per second at which a prompt that is warm here is computed there"] = (
        5000.0
    )

    cors_origins: Annotated[
        str, "origins whose web pages may use the API, comma-separated, e.g. https://chat.example.org; * is any"
    ] = ""
    cors_max_age: Annotated[float, "browsers may remember for this time that a page may"] = 600.0
    max_header_bytes: Annotated[int, "longest request line plus headers"] = 64 * 1024
    max_headers: Annotated[int, "most header lines of a request"] = 100
    max_body_bytes: Annotated[int, "longest request body"] = 8 * 1024 * 1024
    max_reply_bytes: Annotated[int, "longest reply that is not streamed"] = 64 * 1024 * 1024
    max_event_bytes: Annotated[int, "longest event of a stream"] = 1024 * 1024
    write_buffer_bytes: Annotated[
        int, "unsent bytes of one client, here or in its socket, above which its engine is no longer read"
    ] = 64 * 1024

    header_timeout: Annotated[float, "a request's headers must be complete in this time"] = 10.0
    body_timeout: Annotated[float, "grace for a body, on top of its bytes at --min-body-rate"] = 10.0
    min_body_rate: Annotated[float, "bytes per second that a body must keep up on average"] = 1024.0
    keep_alive_timeout: Annotated[float, "an idle client connection is closed after this time"] = 75.0
    stalled_reader_timeout: Annotated[float, "a client that takes no byte for this time is dropped"] = 10.0

    connect_timeout: Annotated[float, "connecting to a replica"] = 1.0
    first_byte_timeout: Annotated[float, "from sending a request to the first byte of the replica's answer"] = 600.0
    idle_timeout: Annotated[float, "silence of a replica inside an answer"] = 120.0
    heartbeat_interval: Annotated[float, "silence of a stream after which the client gets a comment line"] = 10.0
    stall_seconds: Annotated[float, "pause inside a stream that counts as a stall"] = 2.0
    pool_idle_timeout: Annotated[float, "an idle engine connection is closed after this time; uvicorn closes at 5"] = (
        4.0
    )
    user_timeout: Annotated[float, "unacknowledged data or keepalives after which a replica's connection is dead"] = (
        10.0
    )

    suspect_seconds: Annotated[float, "silence after a token that is a fault, if there is a second sign of one"] = 2.0
    probe_share: Annotated[float, "share of --suspect-seconds after which the silent replica is probed"] = 0.6
    probe_timeout: Annotated[float, "a probe of a silent replica must be answered in this time"] = 0.5
    lone_silence: Annotated[float, "silence after a token that is a fault without a second sign"] = 30.0
    max_continuations: Annotated[int, "times one reply may be carried on by another replica"] = 3
    continuations_at_once: Annotated[int, "continuations that may wait for their first token at the same time"] = 32
    continuation_wait: Annotated[float, "a lost reply waits so long for another ready replica of its version"] = 15.0

    listener_timeout: Annotated[float, "a resumable reply that nobody listens to is cancelled after this time"] = 30.0
    max_lag_bytes: Annotated[int, "a reader of a resumable reply that is further behind is dropped; it may resume"] = (
        256 * 1024
    )
    reply_retention: Annotated[float, "a finished reply's events can be shown again for this time"] = 600.0
    final_retention: Annotated[float, "a finished reply's text and its idempotency key are known for this time"] = (
        86_400.0
    )
    kept_reply_bytes: Annotated[int, "memory for finished replies; the oldest go first"] = 64 * 1024 * 1024
    resend_seconds: Annotated[float, "an SDK's retry of a finished request attaches to its answer for this time"] = 5.0

    redis_url: Annotated[
        str, "redis://... of the Redis or Valkey that gateways share replies through; none: memory"
    ] = ""
    redis_url_file: Annotated[Path | None, "file with that address, as a Secret mounts it"] = None
    reply_key_file: Annotated[Path | None, "file with the key that seals replies in the store"] = None
    store_timeout: Annotated[float, "the store is away when it does not answer in this time"] = 1.0
    log_window: Annotated[float, "events of this time are written to the store together"] = 0.008
    mirror_seconds: Annotated[float, "how often a reply that another gateway writes is looked at"] = 0.03
    lease_seconds: Annotated[float, "a gateway that gives no sign for this time loses its replies to others"] = 1.0

    replica_wait: Annotated[float, "a request for a version without a ready replica waits so long for one"] = 5.0
    max_attempts: Annotated[int, "replicas tried for one request before its first byte"] = 3
    retry_ratio: Annotated[float, "retries allowed per request, averaged"] = 0.1
    retry_burst: Annotated[float, "retries allowed at once"] = 20.0
    back_pressure_seconds: Annotated[float, "longest avoidance of a replica that said 429 or 503"] = 1.0
    suspension_seconds: Annotated[float, "first avoidance of an unreachable replica; doubles up to 16 times"] = 0.5

    first_list_timeout: Annotated[float, "wait for the API server before the last known good routing is used"] = 3.0
    watch_silence: Annotated[float, "silence of a watch after which it is cut and listed again"] = 20.0
    relist_seconds: Annotated[float, "period of the full list that prunes what watches missed"] = 300.0
    api_retry_seconds: Annotated[float, "longest pause between two tries to reach the API server"] = 5.0
    coalesce_seconds: Annotated[float, "changes of routing inside this time are applied together"] = 0.01
    static_poll_seconds: Annotated[float, "how often the --static file is looked at"] = 0.25

    accept_after_sigterm: Annotated[float, "new connections are taken this long after SIGTERM, unready"] = 3.0
    drain_timeout: Annotated[float, "open requests get this long after SIGTERM"] = 600.0
    worker_silence: Annotated[float, "a worker that says nothing for this time is killed and replaced"] = 30.0
    worker_restart_seconds: Annotated[float, "least time between two starts of the same worker"] = 0.5

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces watched."""
        named = [part.strip() for part in self.serving_namespaces.split(",") if part.strip()]
        return tuple(dict.fromkeys(named)) or (self.namespace,)

    @classmethod
    def from_arguments(cls, arguments: list[str] | None = None) -> Self:
        """Parse a command line; argparse ends the program with a sentence when it is wrong."""
        parser = argparse.ArgumentParser(prog="python -m tidewheel.gateway", description=_DESCRIPTION)
        hints = get_type_hints(cls, include_extras=True)
        for item in fields(cls):
            _add_flag(parser, item.name, default=item.default, text=hints[item.name].__metadata__[0])
        return cls(**vars(parser.parse_args(arguments)))

    def to_arguments(self) -> list[str]:
        """The command line that gives a worker process the same settings."""
        arguments: list[str] = []
        for item in fields(self):
            value, flag = getattr(self, item.name), "--" + item.name.replace("_", "-")
            if isinstance(value, bool):
                arguments.append(flag if value else "--no-" + flag[2:])
            elif value is not None:
                arguments += [flag, str(value)]
        return arguments


def _add_flag(parser: argparse.ArgumentParser, name: str, *, default: Any, text: str) -> None:
    flag, shown = "--" + name.replace("_", "-"), f"{text} (default: {default})"
    if isinstance(default, bool):
        parser.add_argument(flag, default=default, action=argparse.BooleanOptionalAction, help=shown)
    elif default is None:
        parser.add_argument(flag, default=None, type=Path, metavar="PATH", help=text)
    else:
        kind = type(default)
        parser.add_argument(flag, default=default, type=kind, metavar=kind.__name__.upper(), help=shown)
