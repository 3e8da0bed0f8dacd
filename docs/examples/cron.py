"""A job for every tick of a clock, which any number of processes wait for, and one runs: each run puts the next one.
Run it: python docs/examples/cron.py (it makes a node in ./examples-data)"""

import multiprocessing
import time

import warren

PERIOD_S, RUNS, PROCESSES = 0.2, 5, 2


def schedule(jobs: warren.Queue, tick: int) -> None:
    """A job for a tick, once: its id drops the jobs of others for the same one."""
    delay = max(0.0, tick * PERIOD_S - time.time())
    jobs.put(b"%d" % tick, delay=delay, message_id=f"tick-{tick}")


def wait_for_jobs(directory: str) -> None:
    with warren.attach(directory) as node:
        jobs = node.queue("jobs", create=False)
        reports = node.queue("reports", create=False)

        def run(message: warren.Message) -> None:
            schedule(
                jobs, int(message.body) + 1
            )  # first: if this process dies, the job is done again, and none is lost
            reports.put(b"report of " + message.body, message_id=b"report-" + message.body)

        node.worker(jobs, run).run()  # until SIGTERM


def main() -> None:
    context = multiprocessing.get_context("spawn")
    with warren.open("examples-data") as node:
        jobs = node.queue("jobs", deduplication_window=3600)
        reports = node.queue("reports", deduplication_window=3600)
        schedule(jobs, int(time.time() / PERIOD_S) + 1)  # the others follow from it
        processes = [context.Process(target=wait_for_jobs, args=("examples-data",)) for _number in range(PROCESSES)]
        for process in processes:
            process.start()
        ticks: list[int] = []
        while len(ticks) < RUNS:
            with reports.get(timeout=60) as report:
                ticks.append(int(report.body.split()[-1]))
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
        jobs.delete()  # a real one goes on for ever
        reports.delete()
        every_one = sorted(ticks) == list(range(min(ticks), min(ticks) + RUNS))
        print(f"reports: {len(ticks)}, every tick once: {every_one}")


if __name__ == "__main__":
    main()
