"""Progress on standard error: a bar in a terminal or notebook, otherwise an occasional plain line."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypedDict

from querywright.errors import QuerywrightError
from querywright.models.usage import Ledger, metered

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table

Progress = Callable[[str, int, int], None]
"""A function that is called with the current step, the amount done, and the total."""

TICK_SECONDS = 0.25
FIRST_SECONDS, EVERY_SECONDS = 2.0, 15.0
"""Without a terminal: seconds until the first line, and the minimum number of seconds between lines."""

PACE_SECONDS, LEAST_PACE_SECONDS = 60.0, 10.0
"""The time left is estimated from the pace of the last 10 to 60 seconds, because cached answers are faster."""

PAGE = '<pre style="font-family: monospace">{code}</pre>'
"""The HTML of a notebook's output."""

LEADING = ("running", "done")
"""States in which an arm may count as the best so far. Arms that ended early were scored on few questions."""

LONGEST_LINE, LONGEST_WHAT, LONGEST_NAME = 120, 40, 24
"""Maximum lengths of a line, of its current step, and of the best arm's name. Facts that do not fit are left out."""

MOST_DRAWN = 12
"""Maximum number of arms in the table. If there are more, the table shows the running arms and the best arms."""


class LiveArm(TypedDict):
    """An arm in a run: its answered questions, how many of them have no score, all its questions, and its score.

    The score so far (0 to 1) and its interval are None if there is no score. The state is ``waiting``, ``running``, or
    ``done``; a trial may also be ``pruned`` or ``failed``.
    """

    name: str
    state: str
    done: int
    unscored: int
    total: int
    mean: float | None
    low: float | None
    high: float | None


def part(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Return a progress function for part of a task of which ``before`` is done; None if ``progress`` is None."""
    return None if progress is None else lambda what, done, _: progress(what, before + done, total)


@contextlib.contextmanager
def shown(progress: Progress | bool | None, what: str) -> Iterator[Progress | None]:
    """Report progress inside the ``with`` block: True draws a bar, a callable is called, and None reports nothing."""
    if progress is True:
        with Bar(what) as bar:
            yield bar
    else:
        yield progress or None


class Bar:
    """A ``Progress`` that draws the current step, the time left, the score of every arm, LM calls, and cost.

    If an error or Ctrl-C ends the work, the arms' scores so far are printed.

    Args:
        what: The first step.
        console: The console to draw on. Default: standard error.
    """

    def __init__(self, what: str, *, console: Console | None = None) -> None:
        from rich.console import Console

        self.console = console or Console(stderr=True)
        self.what, self.done, self.total, self.said = what, 0, 0, ""
        self.metric, self.arms = "", list[LiveArm]()
        self._standing: Callable[[], tuple[str, list[LiveArm]]] = lambda: (self.metric, self.arms)
        self._spending: Callable[[], str] | None = None
        self.spent = Ledger()
        self._began, self._told, self._looked = time.monotonic(), 0.0, -math.inf
        self._pace: deque[tuple[float, int]] = deque()
        self._stop, self._opened = threading.Event(), ExitStack()
        self._draw: Callable[[], object] = self._line_now_and_then

    def __enter__(self) -> Bar:
        """Start drawing."""
        self._opened.enter_context(metered(self.spent))
        if self.console.is_jupyter:
            import IPython.display

            display: Any = IPython.display.display
            handle = display(self._page(), raw=True, display_id=True)
            self._draw = lambda: handle.update(self._page(), raw=True)
        elif self.console.is_terminal:
            from rich.live import Live

            given: dict[str, Any] = {"auto_refresh": False, "transient": True}
            live = self._opened.enter_context(Live(self, console=self.console, **given))
            self._draw = live.refresh
        thread = threading.Thread(target=self._tick, daemon=True, name="querywright-progress")
        self._opened.callback(thread.join, 2)
        self._opened.callback(self._stop.set)
        thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Remove the bar. If an error ended the work, print the arms' scores."""
        self._opened.close()
        self._look(running=False)
        if self.console.is_jupyter:
            self._draw()
        if kind is not None and any(arm["done"] for arm in self.arms):
            self.console.print(f"results so far, {self.metric} in percent:", self.table(), markup=False)

    def __call__(self, what: str, done: int, total: int, said: str | None = None) -> None:
        """Update the step, the amount done, and the total; ``said`` is shown instead of the cost."""
        if total != self.total or done < self.done:
            self._pace.clear()
        ends = done == total and (done, total) != (self.done, self.total)
        self.what, self.done, self.total, self.said = what, done, total, self.said if said is None else said
        now = time.monotonic()
        if not self._pace or now - self._pace[-1][0] > 1 or ends:
            self._pace.append((now, done))
            while now - self._pace[0][0] > PACE_SECONDS:
                self._pace.popleft()
        if ends and self._draw == self._line_now_and_then:
            self._line()

    def stand(self, told: Callable[[], tuple[str, list[LiveArm]]], spent: Callable[[], str] | None = None) -> None:
        """Show the arms' scores and the cost over all processes. Both functions are called once a second."""
        self._standing, self._spending = told, spent

    def _tick(self) -> None:
        while not self._stop.wait(TICK_SECONDS):
            if time.monotonic() - self._looked >= 1:
                self._look()
            self._draw()

    def _look(self, *, running: bool = True) -> None:
        self.metric, self.arms = self._standing()
        if self._spending is not None and running:
            with contextlib.suppress(QuerywrightError):  # the run itself reports this error
                self.said = self._spending()
        self._looked = time.monotonic()

    def _line_now_and_then(self) -> None:
        since, wait = (self._told, EVERY_SECONDS) if self._told else (self._began, FIRST_SECONDS)
        if time.monotonic() - since >= wait:
            self._line()

    def _line(self) -> None:
        self._told = time.monotonic()
        line = _short(self._now(), LONGEST_WHAT) + (f": {self.done} of {self.total}" if self.total else "")
        for fact in filter(None, [self._left(), *self._facts()]):
            line += f"; {fact}" if len(line) + 2 + len(fact) <= LONGEST_LINE else ""
        self.console.print(line, soft_wrap=True, markup=False, highlight=False)

    def _now(self) -> str:
        """Return the current step or, if a model is loading, that model, because everything else waits for it."""
        what = f"loading {self.spent.loading}" if self.spent.loading else self.what
        return " ".join("".join(one if one.isprintable() else " " for one in what).split())

    def _left(self) -> str:
        if len(self._pace) < 2 or self.done >= self.total:
            return ""
        (since, before), (now, done) = self._pace[0], self._pace[-1]
        if done <= before or now - since < LEAST_PACE_SECONDS:
            return ""
        seconds = (self.total - done) * (now - since) / (done - before)
        minutes = seconds / 60
        return f"{minutes / 60:.1f} h left" if minutes > 90 else f"{minutes:.0f} min left" if minutes > 2 else (
            f"{seconds:.0f} s left"
        )  # fmt: skip

    def _facts(self) -> list[str]:
        """Return the best arm's score, and the cost."""
        scored = [(arm["mean"], arm) for arm in self.arms if arm["mean"] is not None and arm["state"] in LEADING]
        best = max(scored, key=lambda one: one[0])[1] if scored else None
        leader = "" if best is None else f"{self.metric} {_score(best)}"
        if best is not None and len(self.arms) > 1:
            leader = f"best so far {_short(best['name'], LONGEST_NAME)}, {leader}"
        if self.said:
            return [one for one in (leader, self.said) if one]
        total = self.spent.total
        cached = f" ({total.saved} cached)" if total.saved else ""
        calls = f"LM calls: {total.calls}{cached}" if total.asked else ""
        return [one for one in (leader, calls, f"${total.dollars:.4f}" if total.dollars else "") if one]

    def table(self) -> Table:
        """Return the table of arms with their scores."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
        room = self.console.width - 26 - max(15, *map(len, map(_score, self.arms)))
        table.add_column("arm", no_wrap=True, overflow="ellipsis", max_width=max(16, room))
        for name, least in (("questions", 9), (self.metric, 14)):
            table.add_column(Text(name), no_wrap=True, justify="right", min_width=max(least, len(name)))
        table.add_column("state", no_wrap=True, min_width=7)
        drawn = self.arms
        if len(drawn) > MOST_DRAWN:
            best = sorted(drawn, key=lambda arm: -(arm["mean"] if arm["mean"] is not None else -math.inf))
            kept = [arm["name"] for arm in best if arm["state"] == "running"] + [arm["name"] for arm in best]
            drawn = [arm for arm in best if arm["name"] in kept[:MOST_DRAWN]]
        for arm in drawn:
            cells = arm["name"], f"{arm['done']}/{arm['total']}", _score(arm), arm["state"]
            table.add_row(*map(Text, cells))
        return table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        """Yield the table of arms, the bar, and a line of facts."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        if len(self.arms) > 1:
            yield self.table()
        seconds = int(time.monotonic() - self._began)
        drawn = Table.grid(padding=(0, 1))
        room = 54 if self.total else 30  # the width of the other columns
        drawn.add_column(no_wrap=True, overflow="ellipsis", max_width=max(16, console.width - room))
        for _column in range(4):
            drawn.add_column(no_wrap=True)
        waits = not self.total or bool(self.spent.loading)
        drawn.add_row(
            Text(self._now()), ProgressBar(total=self.total or 1, completed=self.done, width=20, pulse=waits),
            f"{self.done}/{self.total}" if self.total else "", f"{seconds // 60}:{seconds % 60:02d}", self._left(),
        )  # fmt: skip
        yield drawn
        if facts := self._facts():
            yield Text("; ".join(facts), style="dim")

    def _page(self) -> dict[str, str]:
        """Return the bar for a notebook."""
        import io

        from rich.console import Console

        page = Console(file=io.StringIO(), record=True, width=100, force_jupyter=False)
        page.print(self)
        html = page.export_html(inline_styles=True, code_format=PAGE, clear=False)
        return {"text/plain": page.export_text(), "text/html": html}


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _score(arm: LiveArm) -> str:
    if arm["mean"] is None:
        return "-"
    low, high = arm["low"], arm["high"]
    between = "" if low is None or high is None else f" [{100 * low:.0f}, {100 * high:.0f}]"
    unscored = arm.get("unscored", 0)  # an earlier version may have started the study
    return f"{100 * arm['mean']:.1f}{between}" + (f" ({unscored} unscored)" if unscored else "")
