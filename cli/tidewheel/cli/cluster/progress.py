"""Tell people what takes long: what is done, how far it is, how long it usually takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

# Silent at first: a stage that ends sooner needs no progress, and a warm `up` stays a few lines.
_QUIET_SECONDS = 2.0
_LINE_EVERY_SECONDS = 15.0


class Progress(Protocol):
    """Where stages report to: a terminal, a log, or nobody."""

    def stage(self, title: str, *, usually_seconds: float) -> Stage: ...

    def say(self, text: str) -> None: ...


class Stage:
    """One step of a longer job; use as a context manager."""

    def __init__(self, title: str, *, usually_seconds: float, console: Console) -> None:
        self._title = title
        self._usually = usually_seconds
        self._console = console
        self._detail = ""
        self._started = time.monotonic()
        self._ended = threading.Event()
        self._reporter = threading.Thread(target=self._report, daemon=True, name="progress")

    def update(self, detail: str) -> None:
        """How far it is, such as '340 of 1,412 packages'."""
        self._detail = detail

    def __enter__(self) -> Stage:
        self._started = time.monotonic()
        self._reporter.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ended.set()
        self._reporter.join()
        mark = "[green]ok[/]" if kind is None else "[red]failed[/]"
        self._console.print(
            f"  {self._title} {mark} [dim]{_duration(self._seconds)}[/]", highlight=False, soft_wrap=True
        )

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._started

    def _line(self) -> str:
        detail = f": {self._detail}" if self._detail else ""
        return f"  {self._title}{detail} ({_duration(self._seconds)} of usually {_duration(self._usually)})"

    def _report(self) -> None:
        if self._ended.wait(_QUIET_SECONDS):
            return
        if not self._console.is_terminal:
            self._report_lines()
            return
        spinner = Spinner("dots")
        with Live(spinner, console=self._console, transient=True, refresh_per_second=8):
            while not self._ended.wait(0.25):
                spinner.update(text=Text(self._line()))

    def _report_lines(self) -> None:
        while True:
            self._console.print(self._line(), highlight=False, markup=False, soft_wrap=True)
            if self._ended.wait(_LINE_EVERY_SECONDS):
                return


class ConsoleProgress:
    """Live on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)

    def stage(self, title: str, *, usually_seconds: float) -> Stage:
        return Stage(title, usually_seconds=usually_seconds, console=self._console)

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)


class QuietProgress(ConsoleProgress):
    """Says nothing, for tests that start clusters in passing."""

    def __init__(self) -> None:
        super().__init__(Console(quiet=True))


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Note how long a step took."""
    started = time.monotonic()
    yield
    seconds[name] = time.monotonic() - started


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds >= 300 else f"{seconds / 60:.1f} min"
