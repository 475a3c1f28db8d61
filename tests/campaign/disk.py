"""A full disk at every write: one message that names a file, nothing lost, and the same end once there is room."""

import subprocess

from common import Tally, remove
from kills import jobs


def campaign(bench, at_most):
    tallies = [simulated(bench, job, at_most) for job in jobs(bench)]
    tallies.append(mounted(bench))
    return tallies


def check(bench, job, tally, out, outcome, where):
    """The message of a failed command, and what comes after it when there is room again."""
    if outcome.crashed:
        tally.fail(f"{where}: {outcome!r}")
    elif outcome.code == 0:
        tally.count("side work left out")
    elif "error:" not in outcome.err or not any(word in outcome.err for word in ("space", "storage", "full")):
        tally.fail(f"{where}: not said what is wrong: {outcome!r}")


def simulated(bench, job, at_most):
    """Each write of a job in turn fails, and all later ones, as `HADAL_FAULT=full:N` has it."""
    tally = Tally(f"full disk at each write: {job.name}")
    reference = bench.fresh("full-reference")
    bench.must(*job.start(reference))
    expected = job.result(reference)
    # Beyond this many the writes are those of more steps of the same kind.
    for number in range(1, at_most + 1):
        out = bench.fresh("full-out")
        outcome = bench.run(*job.start(out), fault=f"full:{number}")
        if outcome.code == 0 and job.result(out) == expected and "warning" not in outcome.err:
            break
        tally.count("writes")
        check(bench, job, tally, out, outcome, f"write {number}")
        if outcome.code != 0 and not job.is_done(out):
            again = bench.run(*job.again(out))
            if again.code != 0:
                tally.fail(f"write {number}: with room again {again!r}")
                continue
        if job.result(out) != expected:
            tally.fail(f"write {number}: another end")
        leftovers = list(out.parent.glob("full-out.*"))
        if leftovers:
            tally.fail(f"write {number}: left over: {leftovers}")
            for path in leftovers:
                remove(path)
        if len(tally.failures) > 5:
            break
    return tally


def mounted(bench):
    """A real small disk, a little larger each time."""
    tally = Tally("full disk, small tmpfs: train")
    job = jobs(bench)[1]
    reference = bench.fresh("full-reference")
    bench.must(*job.start(reference))
    expected = job.result(reference)
    disk = bench.root / "disk"
    disk.mkdir(exist_ok=True)
    size = 64
    while True:
        mount = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(disk)], capture_output=True)
        if mount.returncode != 0:
            tally.count("skipped (mounting needs root)")
            return tally
        try:
            out = disk / "run"
            outcome = bench.run(*job.start(out))
            tally.count("disks")
            if outcome.code != 0:
                check(bench, job, tally, out, outcome, f"{size} KiB")
                subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
                again = bench.run(*job.again(out))
                if again.code != 0:
                    tally.fail(f"{size} KiB: with room again {again!r}")
                elif job.result(out) != expected:
                    tally.fail(f"{size} KiB: another end")
            elif job.result(out) != expected and "warning" not in outcome.err:
                tally.fail(f"{size} KiB: another end without a word")
            elif "warning" not in outcome.err:
                return tally
        finally:
            subprocess.run(["umount", str(disk)], check=True)
        size += 32
        if size > 16_384:
            tally.fail("never enough")
            return tally
