"""Celery over warren://, as programs use it: a prefork worker, its tasks and results, canvas, remote control, kills.

Method: one worker of two processes for most of it, in a node of the module; kills have workers of their own.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import TimeoutError as GetTimedOut
from celery.result import ResultSet

import warren

from support.celery_client import client, named
from support.celery_worker import Beat, Worker
from support.real_node import RealNode
from support.waiting import kill, patience, wait_until

pytestmark = pytest.mark.integration
WAIT_S = 60.0
#: how long a task runs that ends on request
HELD_S = 600.0


@pytest.fixture(scope="module")
def url(directory: Path) -> str:
    return f"warren:///{directory}"


@pytest.fixture(scope="module")
def worker(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with Worker(tmp_path_factory.mktemp("worker"), url, "--concurrency", "2") as running:
        yield running


@pytest.fixture
def app(url: str) -> Iterator[Any]:
    with client(url) as made:
        yield made


def test_a_task_runs_and_its_result_comes_to_every_process_that_asks(app: Any, worker: Worker, url: str) -> None:
    result = named(app, "add", 1, 2).delay()
    assert result.get(timeout=WAIT_S) == 3
    with client(url) as other:
        again = other.AsyncResult(result.id)
        assert (again.state, again.get(timeout=WAIT_S), again.name) == ("SUCCESS", 3, "support.celery_tasks.add")


def test_a_result_that_is_larger_than_a_record_comes_in_one_piece(app: Any, worker: Worker, url: str) -> None:
    size = 5 << 20
    result = named(app, "big", size).delay()
    assert result.get(timeout=WAIT_S) == "x" * size
    with client(url) as other:
        assert len(other.AsyncResult(result.id).get(timeout=WAIT_S)) == size


def test_a_failure_comes_with_its_exception(app: Any, worker: Worker) -> None:
    with pytest.raises(ValueError, match="on purpose"):
        named(app, "fail", "on purpose").delay().get(timeout=WAIT_S)


def test_a_retry_waits_for_its_countdown_in_the_node(app: Any, worker: Worker) -> None:
    assert named(app, "flaky", 2).delay().get(timeout=WAIT_S) == 2


def test_canvas(app: Any, worker: Worker) -> None:
    add, total = (lambda x, y: named(app, "add", x, y)), named(app, "total")
    assert chain(add(1, 2), named(app, "add", 3))().get(timeout=WAIT_S) == 6
    assert ResultSet([add(1, 1).delay(), add(2, 2).delay()], app=app).get(timeout=WAIT_S) == [2, 4]
    members = group([add(n, n) for n in range(20)], app=app)()
    assert members.get(timeout=WAIT_S) == [2 * n for n in range(20)]
    members.save()
    assert app.GroupResult.restore(members.id).get(timeout=WAIT_S) == [2 * n for n in range(20)]
    members.delete()
    assert app.GroupResult.restore(members.id) is None
    assert chord([add(n, n) for n in range(20)], app=app)(total).get(timeout=WAIT_S) == 380
    alone = lambda x, y: add(x, y).set(immutable=True)  # noqa: E731
    inner = chain(alone(1, 200), group(alone(1, 1000), alone(1, 2000)))  # it ends in a group: with the other 3 parts
    nested = chain(alone(1, 0), group(alone(1, 100), inner), alone(1, 10), app=app)
    assert nested.delay().get(timeout=WAIT_S) == 11
    with pytest.raises(Exception, match="broken part"):
        chord([add(1, 1), named(app, "fail", "broken part")], app=app)(total).get(timeout=WAIT_S)


def test_results_of_tasks_that_sent_groups(app: Any, worker: Worker) -> None:
    """What is given out makes Celery ask for more, in the thread that gives it out."""
    members = group([named(app, "fan", 2) for _ in range(4)], app=app)()
    assert members.get(timeout=WAIT_S) == [2] * 4
    assert chord([named(app, "fan", 3), named(app, "fan", 4)], app=app)(named(app, "total")).get(timeout=WAIT_S) == 7


def test_a_program_waits_for_results_while_it_is_told_of_one(app: Any, worker: Worker) -> None:
    """In the same thread, and in another one that it waits for, from each hook that Celery has."""
    told: list[tuple[str, int]] = []
    asking = threading.Lock()

    def ask(hook: str) -> None:
        def other() -> None:
            told.append((hook, named(app, "add", 2, 2).delay().get(timeout=WAIT_S, disable_sync_subtasks=False)))

        if asking.acquire(blocking=False):  # not for what it asks for itself
            with contextlib.ExitStack() as stack:
                stack.callback(asking.release)
                other()
                thread = threading.Thread(target=other)
                thread.start()
                thread.join()

    hooks = {
        "then": lambda result: result.then(lambda _result: ask("then")),
        "callback": lambda result: ResultSet([result], app=app).get(
            callback=lambda _id, _value: ask("callback"), timeout=WAIT_S
        ),
        "on_message": lambda result: result.get(on_message=lambda _meta: ask("on_message"), timeout=WAIT_S),
    }
    for hook, use in hooks.items():
        told.clear()
        while not told:  # a result that is there before anybody waits comes without a message
            result = named(app, "add", 1, 2).delay()
            use(result)
            result.get(timeout=WAIT_S)
        assert set(told) == {(hook, 4)}
        assert len(told) >= 2, hook


def test_a_frozen_chord_that_is_applied_again_calls_its_body_again(app: Any, worker: Worker) -> None:
    """And a part of it that comes once more does not."""
    counted = [named(app, "add", n, n) for n in range(3)]
    frozen = chord(counted, named(app, "mark_it", "round"), app=app)
    frozen.freeze()
    marks = lambda: worker.marks.read_text().split() if worker.marks.exists() else []  # noqa: E731
    before = len(marks())
    for turn in range(1, 4):
        frozen.apply_async()
        wait_until(lambda turn=turn: len(marks()) >= before + turn, WAIT_S, what="the body of the chord")  # type: ignore[misc]
    assert marks()[before:] == ["round"] * 3


def test_each_task_that_ends_a_member_of_a_chord_is_a_part(app: Any) -> None:
    """Else the chord is joined before they have ended, and a pool of one process waits for itself."""
    one, two, three = (app.AsyncResult(name) for name in ("one", "two", "three"))
    saved = app.GroupResult("outer", [one, app.GroupResult("inner", [two, three])])
    saved.save()
    assert app.backend._size_of("outer") == (3, 2)
    saved.delete()


def test_a_result_is_forgotten_and_another_one_is_not(app: Any, worker: Worker) -> None:
    kept, gone = named(app, "add", 1, 1).delay(), named(app, "add", 2, 2).delay()
    assert (kept.get(timeout=WAIT_S), gone.get(timeout=WAIT_S)) == (2, 4)
    gone.forget()
    assert app.AsyncResult(gone.id).state == "PENDING"
    assert app.AsyncResult(kept.id).state == "SUCCESS"
    ignored = named(app, "add", 3, 3).apply_async(ignore_result=True)
    named(app, "add", 3, 3).delay().get(timeout=WAIT_S)
    assert app.AsyncResult(ignored.id).state == "PENDING"


def test_a_task_with_an_eta_waits_in_the_node_and_not_in_a_worker(app: Any, worker: Worker, directory: Path) -> None:
    named(app, "told").apply_async(countdown=3600, queue="far")
    with warren.attach(directory) as node:
        assert node.queue("far", create=False).stats()["delayed"] == 1
        node.delete_queue("far")
    sent = time.time()
    told = named(app, "told").apply_async(countdown=0.5).get(timeout=WAIT_S)
    assert told["time"] >= sent + 0.5
    assert told["eta"] is not None


def test_a_task_knows_its_message(app: Any, worker: Worker) -> None:
    told = named(app, "told").apply_async(priority=7).get(timeout=WAIT_S)
    assert told["info"]["priority"] == 7
    assert told["info"]["redelivered"] is False
    assert told["info"]["routing_key"] == "celery"


def test_children_of_the_pool_publish(app: Any, worker: Worker) -> None:
    ids = named(app, "spawn", 3).delay().get(timeout=WAIT_S)
    assert [app.AsyncResult(id).get(timeout=WAIT_S) for id in ids] == [1, 2, 3]


def test_remote_control_and_events(app: Any, worker: Worker) -> None:
    seen: list[dict[str, Any]] = []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": seen.append})
        with receiver.consumer_context(wakeup=False) as (own, _channel, _consumers):
            named(app, "add", 1, 2).delay().get(timeout=WAIT_S)

            def succeeded() -> bool:
                with contextlib.suppress(TimeoutError):
                    own.drain_events(timeout=0.2)
                return any(event["type"] == "task-succeeded" for event in seen)

            wait_until(succeeded, WAIT_S, what="the event of a task that succeeded")
    assert app.control.ping(destination=[worker.name], timeout=WAIT_S) == [{worker.name: {"ok": "pong"}}]
    inspect = app.control.inspect(destination=[worker.name], timeout=WAIT_S)
    assert inspect.active_queues()[worker.name][0]["name"] == "celery"
    assert app.control.add_consumer("other", destination=[worker.name], reply=True, timeout=WAIT_S)
    assert named(app, "add", 2, 3).apply_async(queue="other").get(timeout=WAIT_S) == 5
    app.control.cancel_consumer("other", destination=[worker.name], reply=True, timeout=WAIT_S)


def test_a_revoked_task_does_not_run(app: Any, worker: Worker) -> None:
    result = named(app, "add", 1, 2).apply_async(queue="later")  # the worker does not consume from it yet
    app.control.revoke(result.id, destination=[worker.name], reply=True, timeout=WAIT_S)
    app.control.add_consumer("later", destination=[worker.name], reply=True, timeout=WAIT_S)
    with pytest.raises(Exception, match="revoked"):
        result.get(timeout=WAIT_S)


def test_a_worker_that_starts_asks_the_others_what_was_revoked(
    url: str, app: Any, worker: Worker, tmp_path: Path
) -> None:
    result = named(app, "add", 1, 2).apply_async(queue="of-the-second")
    app.control.revoke(result.id, destination=[worker.name], reply=True, timeout=WAIT_S)
    with Worker(tmp_path, url, "--concurrency", "1", "-Q", "of-the-second", name="second") as second:
        assert "mingle: sync complete" in second.said()
        with pytest.raises(Exception, match="revoked"):
            result.get(timeout=WAIT_S)


# ---- kills ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def alone(url: str, app: Any, tmp_path: Path) -> Iterator[Worker]:
    """A worker whose tasks are its own, in a queue that the client sends to."""
    app.conf.task_default_queue = f"alone-{os.getpid()}-{tmp_path.name}"[:60]
    options = ("--concurrency", "2", "-Q", app.conf.task_default_queue, "--without-gossip", "--without-mingle")
    with Worker(tmp_path, url, *options, name="alone") as running:
        yield running


def begun(worker: Worker, count: int = 1) -> list[str]:
    return [line for line in worker.marked() if not line.endswith("done")][: count + 1]


@pytest.mark.crash
def test_a_killed_worker_leaves_its_task_to_another_marked_redelivered(app: Any, alone: Worker) -> None:
    results = [named(app, "hold", name, HELD_S).delay() for name in ("one", "two", "three")]
    wait_until(lambda: len(begun(alone, 2)) == 2, WAIT_S, what="two tasks at work")
    alone.kill()
    (alone.folder / "marks.go").touch()
    alone.start()
    assert [result.get(timeout=WAIT_S) for result in results[:2]] == [True, True]
    results[2].get(timeout=WAIT_S)
    runs = [line.split()[0] for line in begun(alone, 9)]
    assert sorted(runs) == ["one", "one", "three", "two", "two"]  # each that was at work once more


@pytest.mark.crash
def test_a_killed_process_of_the_pool_leaves_its_task_to_another(app: Any, alone: Worker) -> None:
    result = named(app, "hold", "one", HELD_S).delay()
    wait_until(lambda: begun(alone), WAIT_S, what="the task at work")
    (alone.folder / "marks.go").touch()
    kill(int(begun(alone)[0].split()[1]))
    assert result.get(timeout=WAIT_S) is True
    assert [line.split()[0] for line in begun(alone, 9)] == ["one", "one"]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGQUIT], ids=["warm", "cold"])
def test_nothing_is_lost_when_a_worker_is_shut_down(app: Any, alone: Worker, how: int) -> None:
    results = [named(app, "hold", str(n), HELD_S).delay() for n in range(5)]
    wait_until(lambda: len(begun(alone, 2)) == 2, WAIT_S, what="two tasks at work")
    # A cold shutdown ends only those of which the worker knows that they have begun.
    inspect = app.control.inspect(destination=[alone.name], timeout=WAIT_S)
    wait_until(lambda: [task["worker_pid"] for task in inspect.active()[alone.name] if task["worker_pid"]][1:], WAIT_S)
    go = alone.folder / "marks.go"
    if how == signal.SIGTERM:
        os.kill(alone.pid, how)
        alone.wait_for("Warm shutdown")  # from here on it begins no task, and waits for the two
        go.touch()
        alone.wait_for_end()
    else:
        alone.stop(how)
    done = [line for line in alone.marked() if line.endswith("done")]
    assert len(done) == (0 if how == signal.SIGQUIT else 2)
    go.touch()
    alone.start()
    redelivered = [result.get(timeout=WAIT_S) for result in results]
    assert redelivered.count(True) <= (5 if how == signal.SIGQUIT else 3)


@pytest.mark.crash
def test_killed_servers_are_waited_for_and_a_node_that_is_restarted_is_connected_to_again(tmp_path: Path) -> None:
    place = f"warren:///{tmp_path / 'data'}"
    with (
        RealNode(tmp_path / "data") as running,
        client(place) as app,
        Worker(tmp_path, place, "--concurrency", "2") as worker,
    ):
        for role in ("worker-0", "store", "worker-1", "topic_worker"):
            running.kill(role)
            assert named(app, "add", 1, 1).delay().get(timeout=WAIT_S) == 2
        assert "onnection to broker lost" not in worker.said()
        held = named(app, "hold", "one", HELD_S).delay()
        wait_until(lambda: begun(worker), WAIT_S, what="the task at work")
        running.stop()
        worker.wait_for("onnection to broker lost")
        running.start()
        (tmp_path / "marks.go").touch()
        assert held.get(timeout=WAIT_S) in (True, False)
        assert named(app, "add", 2, 2).delay().get(timeout=WAIT_S) == 4


@pytest.mark.crash
def test_beat_goes_on_behind_each_end_of_the_node(tmp_path: Path) -> None:
    """Stopped, killed as a whole, and server by server."""
    place = f"warren:///{tmp_path / 'data'}"
    with (
        RealNode(tmp_path / "data") as running,
        Worker(tmp_path, place, "--concurrency", "1") as worker,
        Beat(tmp_path, place, name="beat") as beat,
    ):

        def ticks(more: int) -> None:
            before = len(worker.marked())
            wait_until(lambda: len(worker.marked()) >= before + more, WAIT_S, what="ticks of beat")

        ticks(3)
        for blow in ("stop", "kill", "stop", "worker-0", "supervisor", "kill"):
            if blow == "stop":
                running.stop()
            elif blow == "kill":
                running.kill_all()
            else:
                running.kill(blow)
            if blow in ("stop", "kill"):
                wait_until(lambda: "ouldn't apply scheduled task" in beat.said(), WAIT_S, what="a tick that failed")
                running.start()
            ticks(3)


def result_of(place: str, task_id: str) -> dict[str, Any]:
    """What a process that has not waited learns."""
    with client(place) as other:
        meta: dict[str, Any] = other.backend.get_task_meta(task_id)
        return meta


@pytest.mark.crash
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_what_ends_while_the_node_is_stopped_is_stored_when_it_is_back(tmp_path: Path, pool: str) -> None:
    """And nobody hears of a failure: not who waits, nor who waits for what follows (link, chord)."""
    place = f"warren:///{tmp_path / 'data'}"
    with (
        RealNode(tmp_path / "data") as running,
        client(place) as app,
        Worker(tmp_path, place, "--concurrency", "2", "-P", pool) as worker,
    ):
        linked, failed = named(app, "mark_it", "linked"), named(app, "mark_it", "failed")
        first = named(app, "hold_early", "one", HELD_S).apply_async(link=linked, link_error=failed)
        parts = [] if pool == "solo" else [named(app, "hold_early", "two", HELD_S)]
        whole = chord(parts, app=app)(named(app, "total")) if parts else None
        wait_until(lambda: len(worker.marked()) == 1 + len(parts), WAIT_S, what="the tasks at work")
        told: list[Any] = []
        waiting = threading.Thread(target=lambda: told.append(first.get(timeout=WAIT_S, propagate=False)))
        waiting.start()
        running.stop()
        (tmp_path / "marks.go").touch()
        wait_until(lambda: sum(line.endswith("done") for line in worker.marked()) == 1 + len(parts), WAIT_S)
        wait_until(lambda: "waiting up to" in worker.said(), WAIT_S, what="the worker that waits to store")
        running.start()
        waiting.join(WAIT_S * patience())
        assert told == [1]
        assert result_of(place, first.id)["status"] == "SUCCESS"
        assert whole is None or whole.get(timeout=WAIT_S) == 1
        wait_until(lambda: "linked" in worker.marked(), WAIT_S, what="the task that was linked")
        assert "failed" not in worker.marked()


@pytest.mark.crash
def test_a_result_that_cannot_be_stored_in_time_is_no_failure_and_its_task_comes_again(tmp_path: Path) -> None:
    place = f"warren:///{tmp_path / 'data'}"
    with (
        RealNode(tmp_path / "data") as running,
        client(place) as app,
        Worker(tmp_path, place, "-c", "1", backend=f"{place}?node_timeout=0.5") as worker,
    ):
        held = named(app, "hold", "one", HELD_S).delay()
        wait_until(lambda: begun(worker), WAIT_S, what="the task at work")
        running.stop()
        (tmp_path / "marks.go").touch()
        worker.wait_for("could not be stored")
        running.start()
        assert held.get(timeout=WAIT_S) is True  # redelivered
        assert "ClosedError" not in str(result_of(place, held.id))


def test_a_wait_begins_while_there_is_no_node(tmp_path: Path) -> None:
    place = f"warren:///{tmp_path / 'data'}"
    with RealNode(tmp_path / "data") as running, client(place) as app:
        app.backend.store_result("early", 7, "SUCCESS")
        running.stop()
        with pytest.raises(GetTimedOut):
            app.AsyncResult("early").get(timeout=0.3)
        told: list[Any] = []
        waiting = threading.Thread(target=lambda: told.append(app.AsyncResult("early").get(timeout=WAIT_S)))
        waiting.start()
        running.start()
        waiting.join(WAIT_S * patience())
        assert told == [7]
