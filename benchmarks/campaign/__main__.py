"""``python -m benchmarks.campaign --faults 1000``: runs the campaign and writes its table."""

import argparse
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.campaign.campaign import Campaign, Verdict, numbered, run_all
from benchmarks.campaign.faults import KINDS, SUBJECTS
from benchmarks.campaign.scene import ROOT
from benchmarks.campaign.table import table

RESULTS = ROOT / "benchmarks" / "results" / "campaign.md"


def main() -> int:
    """Run the faults that the log does not have yet; return 1 if anything did not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.campaign", description=__doc__)
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", choices=KINDS, help="one kind of fault")
    parser.add_argument("--subject", choices=SUBJECTS, help="one kind of search")
    parser.add_argument("--log", type=Path, help="JSON lines, one for each fault; faults that it has are not run again")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    log = given.log or folder / "faults.jsonl"
    verdicts = [Verdict.from_json(line) for line in log.read_text().splitlines()] if log.exists() else []
    todo = dict(numbered(given.faults, given.seed, given.only, given.subject))
    if any(todo.get(verdict.index) != verdict.fault for verdict in verdicts):
        parser.error(f"{log} is of another campaign; name another --log")
    for verdict in verdicts:
        del todo[verdict.index]
    print(f"{len(todo)} faults below {folder}, log {log}", flush=True)

    def report(verdict: Verdict) -> None:
        verdicts.append(verdict)
        with log.open("a") as file:
            file.write(verdict.to_json() + "\n")
        fault = verdict.fault
        state = "FAILED" if verdict.violations else "held" if verdict.way else "not injected"
        what = f"{fault.kind} of {fault.whom}, {fault.subject} at {fault.moment:.2f}"
        print(f"{verdict.index:4} {verdict.seconds:6.1f} s  {state:12}  {what}", *verdict.violations, sep="\n     ",
              flush=True)  # fmt: skip

    with Campaign(folder) as campaign:
        run_all(campaign, iter(todo.items()), given.jobs, report)
    words = " ".join(sys.argv[1:])
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    heading = {
        "command": f"python -m benchmarks.campaign {words}",
        "commit": commit.stdout.strip(),
        "machine": f"{platform.machine()}, Linux {platform.release()}, Python {platform.python_version()}",
    }
    given.out.write_text(table(verdicts, heading), encoding="utf-8")
    return int(any(verdict.violations for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
