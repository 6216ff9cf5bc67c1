"""Transcripts of the state machine: commands, and what they print.

A file holds blocks. A block is lines of commands, a line `----`, and the expected output up to an
empty line. `#` begins a comment. Commands (`key=value` words; see `_COMMANDS`):

    node NAME [cpu=8000] [boot=b1] [store=s1] [uuid=u] [start=N] [has=JOB:running|JOB:exit=CODE …]
    offline NAME disconnected|heartbeat_lost|agent_restarting|left [lease=MS]
    submit [cpu=1000] [retries=0] [node_retries=3] [on_disconnect=fail|unknown] [node=NAME] …
    place | start JOB[#N] | exit JOB[#N] CODE | killed JOB[#N] | kill TARGET [why=…]
    early CODE             a finish for the placement that is the next entry but one
    time MS | deadlines | takeover | show [JOB …] | history JOB | orders NAME | registry

`show` prints a line per job and one per attempt: `show` alone prints all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from scheduler.core import effects, queries
from scheduler.core.results import KillAnswer, Rejected
from scheduler.protocol.ids import make_token
from scheduler.protocol.messages import Report
from scheduler.protocol.spec import Retry
from tests.unit.core.harness import INCARNATION, Core


class Transcript:
    """One run of one file."""

    def __init__(self) -> None:
        self.core = Core()
        self.starts: dict[str, int] = {}

    def run(self, text: str) -> str:
        """The file as it should read: every expected output replaced by the real one."""
        blocks = [self._block(block) for block in text.strip("\n").split("\n\n")]
        return "\n\n".join(blocks) + "\n"

    def _block(self, block: str) -> str:
        lines = block.split("\n")
        commands = lines[: lines.index("----")] if "----" in lines else lines
        told: list[str] = []
        for line in commands:
            words = line.partition("#  ")[0].split()
            if words and not line.startswith("#"):
                told += _COMMANDS[words[0]](self, *_arguments(words[1:]))
        if not told and "----" not in lines:
            return "\n".join(commands)
        return "\n".join([*commands, "----", *(told or ["ok"])])

    # ---- nodes ---------------------------------------------------------------------------------

    def node(self, words: list[str], options: dict[str, str]) -> list[str]:
        [name] = words
        start = int(options.pop("start", self.starts.get(name, 0) + 1))
        self.starts[name] = start
        items = [self._item(text) for text in options.pop("has", "").split(",") if text]
        cpu = int(options.pop("cpu", 8000))
        answer = self.core.node(name, *items, start=start, cpu=cpu, **options)
        return [f"{self._name(v.token)}: {v.verdict}" for v in answer.verdicts]

    def _item(self, text: str) -> Report:
        target, _, what = text.partition(":")
        token = self._token(target)
        if what == "running":
            return self.core.started(token)
        code = int(what.removeprefix("exit="))
        cause = "exit_nonzero" if code else "exit_zero"
        return self.core.finished(token, cause, exit_code=code, evidence="replayed")

    def offline(self, words: list[str], options: dict[str, str]) -> list[str]:
        name, reason = words
        return _refusal(self.core.offline(name, reason, lease_ms=int(options.get("lease", 0))))

    # ---- jobs ----------------------------------------------------------------------------------

    def submit(self, words: list[str], options: dict[str, str]) -> list[str]:
        retry = Retry(
            limit=int(options.pop("retries", 0)), node_limit=int(options.pop("node_retries", 3))
        )
        cpu = int(options.pop("cpu", 1000))
        return [f"job {self.core.submit(retry=retry, cpu=cpu, **options)}"]

    def place(self, words: list[str], options: dict[str, str]) -> list[str]:
        placed = self.core.place()
        return [f"{name} -> {self._node_of(name)}" for name in placed] or ["nothing placed"]

    def start(self, words: list[str], options: dict[str, str]) -> list[str]:
        return self._report(words[0], self.core.started(self._token(words[0])))

    def exit(self, words: list[str], options: dict[str, str]) -> list[str]:
        code = int(words[1])
        cause = "exit_nonzero" if code else "exit_zero"
        token = self._token(words[0])
        return self._report(words[0], self.core.finished(token, cause, exit_code=code))

    def killed(self, words: list[str], options: dict[str, str]) -> list[str]:
        token = self._token(words[0])
        report = self.core.finished(token, "killed", signal="SIGTERM", was_signalled=True)
        return self._report(words[0], report)

    def _report(self, target: str, report: Report) -> list[str]:
        node = self._node_of(self._name(report.token))
        answers = self.core.report(report, node=node)
        return [answer for answer in answers if answer != "committed"]

    def kill(self, words: list[str], options: dict[str, str]) -> list[str]:
        answer = self.core.kill(words[0], why=options.get("why", ""))
        if isinstance(answer, KillAnswer):
            return [answer.message]
        return _refusal(answer)

    def early(self, words: list[str], options: dict[str, str]) -> list[str]:
        token = make_token(INCARNATION, len(self.core.log) + 2, 0)
        code = int(words[0])
        cause = "exit_nonzero" if code else "exit_zero"
        return self.core.report(self.core.finished(token, cause, exit_code=code))

    # ---- time, and looking -----------------------------------------------------------------------

    def time(self, words: list[str], options: dict[str, str]) -> list[str]:
        self.core.pass_ms(int(words[0]))
        return []

    def deadlines(self, words: list[str], options: dict[str, str]) -> list[str]:
        left = self.core.deadlines().remaining
        return [f"{left} left"] if left else []

    def takeover(self, words: list[str], options: dict[str, str]) -> list[str]:
        self.core.take_over()
        return []

    def show(self, words: list[str], options: dict[str, str]) -> list[str]:
        jobs = [int(word) for word in words] or self.core.state.jobs.sorted_keys()
        lines = []
        for job_id in jobs:
            view = self.core.view(job_id)
            lines.append(f"job {job_id}: {view['phase']}{_end(view)}{_waits(view)}")
            for attempt in queries.attempts_view(self.core.state, str(job_id)) or []:
                lines.append(f"  #{attempt['number']} {attempt['phase']}{_end(attempt)}")
        return lines

    def history(self, words: list[str], options: dict[str, str]) -> list[str]:
        events = queries.history_view(self.core.state, words[0]) or []
        return [
            f"{event['time'][14:23]} {event['object']} {event['kind']}"
            + (f" {event['to']}" if event["to"] else "")
            + (f" {event['cause']}" if event["cause"] else "")
            for event in events
        ]

    def orders(self, words: list[str], options: dict[str, str]) -> list[str]:
        found = effects.pending_effects(self.core.state, words[0], now_ms=self.core.now_ms)
        return [f"{order.kind} {order.attempt}" for order in found] or ["none"]

    def registry(self, words: list[str], options: dict[str, str]) -> list[str]:
        view = queries.registry_view(self.core.state)
        return [f"size {view['size']}, expired {view['expired']}, refused {view['refused']}"]

    # ---- names -----------------------------------------------------------------------------------

    def _token(self, target: str) -> str:
        job, _, number = target.partition("#")
        key = (int(job), "main", 0, int(number or 1))
        placed = self.core.state.attempts[key].placed
        assert placed is not None, target
        return placed.token

    def _name(self, token: str) -> str:
        key = self.core.state.tokens[token]
        return f"{key[0]}/{key[1]}/{key[2]}#{key[3]}"

    def _node_of(self, name: str) -> str:
        attempt = queries.find_attempt(self.core.state, name)
        assert attempt is not None
        assert attempt.placed is not None
        return attempt.placed.node


def _arguments(words: list[str]) -> tuple[list[str], dict[str, str]]:
    plain = [word for word in words if "=" not in word.partition(":")[0]]
    options = dict(word.split("=", 1) for word in words if word not in plain)
    return plain, options


def _refusal(answer: Any) -> list[str]:
    return [f"refused: {answer.code}"] if isinstance(answer, Rejected) else []


def _end(view: dict[str, Any]) -> str:
    parts = [view["cause"]] if view["cause"] else []
    if view.get("evidence"):
        parts.append(f"({view['evidence']})")
    if view.get("adopts"):
        parts.append(f"adopts {view['adopts']}")
    if view.get("ending"):
        where = " unreachable" if view["ending"]["unreachable"] else ""
        parts.append(f"ending {view['ending']['to']}{where}")
    unknown = view.get("unknown")
    if isinstance(unknown, dict):
        since, until = unknown["transient_since"][14:19], unknown["deadline"][14:19]
        parts.append(f"unknown {unknown['cause']} since {since} until {until}")
    return "".join(f" {part}" for part in parts)


def _waits(view: dict[str, Any]) -> str:
    codes = [reason["code"] for reason in view["pending_reasons"]]
    return f" [{', '.join(codes)}]" if codes else ""


_COMMANDS: Final[dict[str, Callable[..., list[str]]]] = {
    name: getattr(Transcript, name)
    for name in (
        "node", "offline", "submit", "place", "start", "exit", "killed", "kill", "early", "time",
        "deadlines", "takeover", "show", "history", "orders", "registry",
    )
}  # fmt: skip
