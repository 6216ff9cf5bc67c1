"""What the API gets: writes, reads, events, logs, and errors that say what is known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from replication.errors import Overloaded
from scheduler.controller import watch
from scheduler.controller.errors import Lagged, NotLeaderHere, ServiceError, from_proposal
from scheduler.controller.watch import EventHub
from scheduler.protocol.framing import encode_frame
from scheduler.protocol.messages import (
    BulkData,
    BulkEnd,
    BulkHello,
    CloseBulk,
    Message,
    OpenBulk,
    StreamFacts,
    encode_message,
)
from tests.unit.controller.world import PlayedAgent, World, job_spec, play, run_virtual

# ---- writes ------------------------------------------------------------------------------------


def test_one_key_gives_one_job_and_another_body_is_refused() -> None:
    async def scenario(world: World) -> None:
        specs = [job_spec()]
        first, index = await world.service.submit(specs, user="ana", key="k", body_digest="d")
        again, _ = await world.service.submit(specs, user="ana", key="k", body_digest="d")
        assert first.job_ids == again.job_ids
        assert again.is_known
        assert index <= world.log.applied_index
        with pytest.raises(ServiceError) as raised:
            await world.service.submit(specs, user="ana", key="k", body_digest="other")
        assert (raised.value.code, raised.value.kind) == ("key_reused", "conflict")

    play(scenario)


def test_a_write_on_a_follower_names_the_leader() -> None:
    async def scenario(world: World) -> None:
        world.log.set_leader("c2")
        with pytest.raises(NotLeaderHere) as raised:
            await world.submit()
        assert (raised.value.leader, raised.value.http) == ("c2", "http://127.0.0.2:7003")
        assert world.service.leader_http() == "http://127.0.0.2:7003"
        assert not world.service.is_leader
        world.log.set_leader(None)
        with pytest.raises(NotLeaderHere) as raised:
            await world.submit()
        assert (raised.value.code, raised.value.http) == ("no_leader", None)

    play(scenario, leads=False)


def test_a_write_during_a_takeover_waits_for_it() -> None:
    async def scenario(world: World) -> None:
        world.log.hold()
        world.log.set_leader("c1")
        submitting = asyncio.ensure_future(world.submit())
        await world.wait(0.5)
        assert not submitting.done()
        world.log.release()
        assert await submitting == 1

    play(scenario, leads=False)


def test_unknown_targets_and_moved_versions_are_told_apart() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(ServiceError) as raised:
            await world.service.kill("999", user="u", why="", if_version=None)
        assert raised.value.kind == "not_found"
        job = await world.submit()
        with pytest.raises(ServiceError) as raised:
            await world.service.kill(str(job), user="u", why="", if_version=1)
        assert raised.value.kind == "version"

    play(scenario)


def test_settings_are_changed_together_or_not_at_all() -> None:
    async def scenario(world: World) -> None:
        changes = {"heartbeat_interval": "1s", "heartbeat_timeout": 4000}
        await world.service.configure(changes, user="u")
        assert world.service.settings()["heartbeat_timeout"] == 4000
        with pytest.raises(ServiceError, match="three times"):
            await world.service.configure({"heartbeat_interval": "3s"}, user="u")
        with pytest.raises(ServiceError, match="no setting"):
            await world.service.configure({"rejoin_grace": "9s", "x": "1"}, user="u")
        assert world.service.settings()["rejoin_grace"] == 60_000

    play(scenario)


def test_a_cordoned_node_gets_no_work_until_it_is_uncordoned() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        await world.service.change_node("a1", unschedulable=True, why="disk", user="u")
        assert world.node("a1")["unschedulable_reason"] == "disk"
        job = await world.submit()
        await world.wait(1)
        assert not agent.received
        await world.service.change_node("a1", unschedulable=False, why="", user="u")
        await world.until(lambda: agent.received)
        assert world.phase(job) == "Pending"

    play(scenario)


def test_an_overload_says_when_to_come_back() -> None:
    error = from_proposal(Overloaded("full", retry_after_s=2.5), leader_http=None)
    assert (error.kind, error.retry_after_s, error.outcome_unknown) == ("overloaded", 2.5, False)


def test_more_than_one_entry_holds_is_refused_with_what_to_do() -> None:
    async def scenario(world: World) -> None:
        large = replace(job_spec(), labels={"x": "y" * 3_000_000})
        with pytest.raises(ServiceError, match="too much for one change") as raised:
            await world.service.submit([large], user="u", key="", body_digest="")
        assert (raised.value.kind, raised.value.outcome_unknown) == ("invalid", False)

    play(scenario)


# ---- reads -------------------------------------------------------------------------------------


def test_a_read_at_an_index_waits_for_it_and_gives_up_in_time() -> None:
    async def scenario(world: World) -> None:
        ahead = world.log.applied_index + 1
        reading = asyncio.ensure_future(world.service.read(consistency="stale", min_index=ahead))
        await world.wait(0.1)
        assert not reading.done()
        await world.submit()
        assert (await reading).index >= ahead
        with pytest.raises(ServiceError) as raised:
            await world.service.read(consistency="stale", min_index=10_000)
        assert (raised.value.code, raised.value.kind) == ("index_not_reached", "unavailable")

    play(scenario)


def test_a_stale_read_answers_without_a_leader_and_a_linearizable_one_does_not() -> None:
    async def scenario(world: World) -> None:
        world.log.set_leader(None)
        assert (await world.service.read(consistency="stale")).leader is None
        assert not world.service.is_ready()
        with pytest.raises(NotLeaderHere):
            await world.service.read()
        assert world.service.cluster_status()["quorum"] is False

    play(scenario)


def test_views_of_what_does_not_exist_are_none_and_pages_have_cursors() -> None:
    async def scenario(world: World) -> None:
        service = world.service
        assert service.job(9) is None
        assert service.attempts("9") is None
        assert service.workers("x y") is None
        assert service.history("9") is None
        assert service.node("a9") is None
        for _ in range(3):
            await world.submit()
        page, cursor = service.jobs(limit=2)
        assert ([job["id"] for job in page], cursor) == ([3, 2], "2")
        page, cursor = service.jobs(limit=2, after=cursor)
        assert ([job["id"] for job in page], cursor) == ([1], None)
        with pytest.raises(ServiceError, match="no cursor"):
            service.jobs(after="; drop")

    play(scenario)


def test_status_and_metrics_tell_what_there_is() -> None:
    async def scenario(world: World) -> None:
        await world.joined()
        await world.submit()
        status = world.service.cluster_status()
        assert (status["leader"], status["quorum"], len(status["members"])) == ("c1", True, 3)
        assert status["jobs_by_phase"]["Pending"] == 1
        assert status["nodes"] == {"known": 1, "online": 1}
        text = world.service.metrics_text()
        assert 'pertinax_jobs{phase="Pending"} 1.0' in text
        assert 'pertinax_nodes{phase="Online"} 1.0' in text
        assert 'pertinax_entries_applied_total{kind="SubmitJobs"} 1.0' in text
        assert 'pertinax_hellos_total{answer="welcome"} 1.0' in text
        assert world.service.is_ready()

    play(scenario)


# ---- events ------------------------------------------------------------------------------------


async def take(events: AsyncIterator[dict[str, object]], count: int) -> list[dict[str, object]]:
    return [await anext(events) for _ in range(count)]


def test_a_watcher_gets_events_in_order_and_resumes_by_index() -> None:
    async def scenario(world: World) -> None:
        start = world.log.applied_index
        events = world.service.watch(start)
        waiting = asyncio.ensure_future(take(events, 2))
        job = await world.submit()
        first = await waiting
        assert [event["object"] for event in first] == [str(job), f"{job}/main/0#1"]
        other = await world.submit()
        resumed = await take(world.service.watch(int(str(first[-1]["index"]))), 2)
        assert resumed[0]["object"] == str(other)

    play(scenario)


def test_a_watcher_that_falls_behind_is_told_where_to_go_on() -> None:
    async def scenario() -> None:
        hub = EventHub(events_max=3)
        hub.publish(1, [{"n": 1}])
        events = hub.watch(0)
        assert await anext(events) == {"n": 1}
        for number in range(2, 8):
            hub.publish(number, [{"n": number}])
        with pytest.raises(Lagged) as raised:
            await anext(events)
        assert raised.value.resume_index == 4
        with pytest.raises(Lagged):
            await anext(hub.watch(2))
        assert await anext(hub.watch(4)) == {"n": 5}

    run_virtual(scenario())


def test_watchers_end_with_the_controller_and_start_over_after_a_snapshot() -> None:
    async def scenario() -> None:
        hub = EventHub()
        hub.publish(1, [{"n": 1}])
        hub.restart(50)
        with pytest.raises(Lagged):
            await anext(hub.watch(10))
        waiting = asyncio.ensure_future(anext(hub.watch(50), "ended"))
        await asyncio.sleep(0.1)
        hub.close()
        assert await waiting == "ended"

    run_virtual(scenario())
    assert watch.EVENTS_MAX > 1_000


# ---- logs --------------------------------------------------------------------------------------


class BulkAgent:
    """The second connection of an agent, which carries one stream."""

    def __init__(self, world: World, request: str, *, name: str = "a1") -> None:
        self._agent = PlayedAgent(world, name)
        self.transport = self._agent.transport
        self.send(BulkHello(name=name, node_uuid=f"uuid-{name}", request=request))

    def send(self, *messages: Message) -> None:
        data = b"".join(encode_frame(encode_message(message)) for message in messages)
        self._agent.send_raw(data)


def test_output_is_streamed_from_the_node_and_closed_behind_its_reader() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        _, order = await world.running(agent)
        reading = asyncio.ensure_future(
            collect(world.service.open_log(order.token, "stdout", offset=2, follow=True))
        )
        asked = await agent.next(OpenBulk)
        assert (asked.token, asked.stream, asked.offset, asked.is_following) == (
            order.token, "stdout", 2, True,
        )  # fmt: skip
        bulk = BulkAgent(world, asked.request)
        bulk.send(BulkData(offset=2, data=b"llo"), BulkData(offset=5, data=b"!"))
        bulk.send(BulkEnd(code="complete", size_bytes=6))
        assert await reading == [(2, b"llo"), (5, b"!")]
        assert (await agent.next(CloseBulk)).request == asked.request
        assert bulk.transport.is_closing()

    play(scenario)


async def collect(chunks: AsyncIterator[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    return [chunk async for chunk in chunks]


@pytest.mark.parametrize(("code", "told"), [("missing", "log_missing"), ("error", "log_error")])
def test_output_that_the_node_does_not_have_is_an_error_with_its_reason(
    code: str, told: str
) -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        _, order = await world.running(agent)
        reading = asyncio.ensure_future(collect(world.service.open_log(order.token, "stderr")))
        asked = await agent.next(OpenBulk)
        BulkAgent(world, asked.request).send(BulkEnd(code=code, message="no such file"))
        with pytest.raises(ServiceError, match="no such file") as raised:
            await reading
        assert raised.value.code == told

    play(scenario)


@pytest.mark.parametrize(("sha256", "is_asked"), [("e3b0c442", False), ("", True)])
def test_an_attempt_that_printed_nothing_has_a_complete_and_empty_output(
    sha256: str, is_asked: bool
) -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        job, order = await world.running(agent)
        agent.report_finished(order, stdout=StreamFacts(size_bytes=0, sha256=sha256))
        await world.until(lambda: world.phase(job) == "Succeeded")
        reading = asyncio.ensure_future(collect(world.service.open_log(order.token, "stdout")))
        if is_asked:  # nobody counted it: only the node can tell
            BulkAgent(world, (await agent.next(OpenBulk)).request).send(BulkEnd(code="complete"))
        assert await reading == []

    play(scenario)


def test_a_stream_that_breaks_or_never_comes_is_interrupted_and_not_complete() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        _, order = await world.running(agent)
        reading = asyncio.ensure_future(collect(world.service.open_log(order.token, "stdout")))
        bulk = BulkAgent(world, (await agent.next(OpenBulk)).request)
        bulk.send(BulkData(offset=0, data=b"x"))
        bulk.transport.end(None)
        with pytest.raises(ServiceError) as raised:
            await reading
        assert raised.value.code == "log_interrupted"
        with pytest.raises(ServiceError, match="did not open a stream"):
            await collect(world.service.open_log(order.token, "stdout"))
        assert world.node("a1")["phase"] == "Online"

    play(scenario)


def test_a_slow_reader_stops_the_stream_and_nothing_else() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        _, order = await world.running(agent)
        chunks = world.service.open_log(order.token, "stdout")
        first = asyncio.ensure_future(anext(chunks))
        bulk = BulkAgent(world, (await agent.next(OpenBulk)).request)
        for number in range(5):
            bulk.send(BulkData(offset=number << 19, data=b"y" * (1 << 19)))
        await first
        assert bulk.transport.is_reading_paused
        assert await agent.beat_for(3)
        rest = [await anext(chunks) for _ in range(4)]
        assert len(rest) == 4
        assert not bulk.transport.is_reading_paused
        await chunks.aclose()

    play(scenario)


def test_output_on_an_unreachable_node_and_of_unknown_attempts_is_refused() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        _, order = await world.running(agent)
        with pytest.raises(ServiceError) as raised:
            await collect(world.service.open_log(order.token[:-1] + "f", "stdout"))
        assert raised.value.kind == "not_found"
        agent.die()
        await world.wait(0.1)
        with pytest.raises(ServiceError) as raised:
            await collect(world.service.open_log(order.token, "stdout"))
        assert raised.value.code == "node_unreachable"

    play(scenario)


def test_a_bulk_connection_that_nobody_asked_for_is_closed() -> None:
    async def scenario(world: World) -> None:
        await world.joined()
        assert BulkAgent(world, "guess").transport.is_closing()

    play(scenario)


def test_readers_are_sent_away_when_leadership_is_lost() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        _, order = await world.running(agent)
        reading = asyncio.ensure_future(collect(world.service.open_log(order.token, "stdout")))
        BulkAgent(world, (await agent.next(OpenBulk)).request)
        world.log.set_leader("c2")
        with pytest.raises(ServiceError, match="leader changed"):
            await reading
        with pytest.raises(NotLeaderHere):
            await collect(world.service.open_log(order.token, "stdout"))

    play(scenario)
