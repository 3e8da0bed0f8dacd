"""Runs fuzz targets under libFuzzer and says what came of it. Nothing here is needed at run time of Warren.

New inputs are kept in `build/fuzz/work/<target>`, which the next run begins with, beside the corpus of the repository.
A crash is kept in `build/fuzz/crashes/<target>`, with the command that repeats it. Exit code 1: something crashed.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from warren.tools.c_core import ROOT, BuildError
from warren.tools.fuzz.build import HERE, WORK, build, targets

CORPUS_BYTES_MAX = 200_000
CORPUS = HERE / "corpus"
STATUS = re.compile(r"^#(\d+)\s.*?cov: (\d+) ft: (\d+)")
SANITIZERS = {
    "ASAN_OPTIONS": "detect_leaks=1:quarantine_size_mb=32:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def setup_says() -> str:
    """What is missing on this machine, in one line; empty when all is there."""
    if shutil.which("clang") is None:
        return "There is no clang here: apt-get install clang"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "x.c")
        source.write_text("int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d && n ? 0 : 0; }\n")
        done = subprocess.run(
            ["clang", "-fsanitize=address,undefined,fuzzer", str(source), "-o", f"{folder}/x"],
            capture_output=True,
            check=False,
        )
    if done.returncode:
        version = subprocess.run(["clang", "-dumpversion"], capture_output=True, text=True, check=True)
        major = version.stdout.split(".")[0]
        return f"This clang has no libFuzzer: apt-get install libclang-rt-{major}-dev"
    return ""


def number(n: int) -> str:
    return f"{n:,}"


class Run:
    """One target under libFuzzer, in as many processes as wanted."""

    def __init__(self, name: str, program: Path, seconds: int, jobs: int, length: int) -> None:
        self.name = name
        self.corpus = WORK / "work" / name
        self.crashes = WORK / "crashes" / name
        for folder in (self.corpus, self.crashes, CORPUS / name):
            folder.mkdir(parents=True, exist_ok=True)
        self.before = set(self.crashes.iterdir())
        self.program = program
        self.logs = [self.crashes / f"log-{os.getpid()}-{job}.txt" for job in range(jobs)]
        command = [str(program), f"-max_total_time={seconds}", f"-max_len={length}", "-len_control=20", "-reload=5"]
        command += ["-timeout=60", "-rss_limit_mb=2048", "-print_final_stats=1", "-use_value_profile=1"]
        command += [f"-artifact_prefix={self.crashes}/", str(self.corpus), str(CORPUS / name)]
        self.began = time.monotonic()
        self.processes = []
        for job, log in enumerate(self.logs):
            with log.open("wb") as output:
                self.processes.append(
                    subprocess.Popen(
                        [*command, f"-seed={int.from_bytes(os.urandom(3), 'big') + job + 1}"],
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        env={**os.environ, **SANITIZERS},
                        cwd=WORK,
                    )
                )

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            process.wait()

    def result(self) -> int:
        """Wait, report, return the number of crashes."""
        for process in self.processes:
            process.wait()
        seconds = time.monotonic() - self.began
        executions, edges, features = 0, 0, 0
        for log in self.logs:
            done = 0
            for line in log.read_text(errors="replace").splitlines():
                if found := STATUS.match(line):
                    done = max(done, int(found[1]))
                    edges, features = max(edges, int(found[2])), max(features, int(found[3]))
                elif line.startswith("stat::number_of_executed_units:"):
                    done = max(done, int(line.split(":")[-1]))
            executions += done
        crashes = [
            path for path in sorted(set(self.crashes.iterdir()) - self.before) if not path.name.startswith("log-")
        ]
        kept = list(self.corpus.iterdir())
        size = sum(path.stat().st_size for path in kept)
        click.echo(
            f"{self.name}: {number(executions)} executions in {seconds:.0f} s, {number(edges)} edges, "
            f"{number(features)} features, corpus {number(len(kept))} inputs ({size // 1024} KiB), "
            f"{len(crashes)} crashes"
        )
        for path in crashes:
            repeat = f"{self.program.relative_to(ROOT)} {path.relative_to(ROOT)}"
            path.with_name(path.name + ".how").write_text(f"scripts/fuzz {self.name} --seconds 1, then: {repeat}\n")
            click.echo(f"  repeat: {repeat}")
        failed = [process.returncode for process in self.processes if process.returncode]
        for process, log in zip(self.processes, self.logs, strict=True):
            if process.returncode:
                click.echo(f"  its words: {log.relative_to(ROOT)}")
            else:
                log.unlink()
        return max(len(crashes), len(failed))


def keep(name: str, program: Path, most: int) -> None:
    """Put a small set of inputs with all the edges found so far into the repository's corpus of a target."""
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        out = Path(folder, "out")
        out.mkdir()
        sources = [str(CORPUS / name), str(WORK / "work" / name)]
        command = [str(program), "-merge=1", "-use_counters=0", f"-artifact_prefix={folder}/", str(out), *sources]
        subprocess.run(command, capture_output=True, env={**os.environ, **SANITIZERS}, cwd=WORK, check=True)
        # what once crashed has a name of its own, and stays
        chosen = [path for path in (CORPUS / name).iterdir() if "-" in path.name]
        size = sum(path.stat().st_size for path in chosen)
        for path in sorted(out.iterdir(), key=lambda path: path.stat().st_size):
            if size + path.stat().st_size > most:
                break
            chosen.append(path)
            size += path.stat().st_size
        target = CORPUS / name
        for path in target.iterdir():
            if path not in chosen:
                path.unlink()
        for path in chosen:
            if path.parent != target:
                shutil.copyfile(path, target / path.name[:16])
    click.echo(f"{name}: {len(chosen)} inputs, {size // 1024} KiB kept in {target.relative_to(ROOT)}")


@click.command(help=__doc__)
@click.argument("names", nargs=-1, metavar="[TARGETS…]")
@click.option("--seconds", default=60, help="for each target")
@click.option("--jobs", default=1, help="processes for each target")
@click.option("--length", default=2048, help="longest input")
@click.option("--keep", "keeping", is_flag=True, help="put a small set of the inputs into the repository")
@click.option("--list", "listing", is_flag=True, help="only name the targets")
def main(names: tuple[str, ...], seconds: int, jobs: int, length: int, keeping: bool, listing: bool) -> None:
    if listing:
        click.echo("\n".join(targets()))
        return
    if missing := setup_says():
        raise click.ClickException(missing)
    wanted = list(names) or targets()
    if unknown := sorted(set(wanted) - set(targets())):
        raise click.ClickException(f"no such target: {', '.join(unknown)}; there are {', '.join(targets())}")
    try:
        programs = build("clang", wanted)
    except BuildError as error:
        raise click.ClickException(str(error)) from error
    crashes = 0
    for name in wanted:
        run = Run(name, programs[name], seconds, jobs, length)
        try:
            crashes += run.result()
        except KeyboardInterrupt:
            run.stop()
            crashes += run.result()
            break
    if keeping:
        for name in wanted:
            keep(name, programs[name], CORPUS_BYTES_MAX // len(targets()))
    sys.exit(1 if crashes else 0)


if __name__ == "__main__":
    main()
