"""Several searches in one command: side by side over the workers, or one after another."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from sktune.cluster.model_list import read_models
from sktune.cluster.side_by_side import search_all
from sktune.core.errors import BadInputError, InterruptedSearchError
from sktune.core.events.base import Event
from sktune.tuning.request import Request
from tests.builders import checked, one_line_error, sktune_command

LIST = """
version: 1
models:
  - {model: llama, batch: 1, trials: 3}
  - {model: llama, batch: 2, trials: 4, study: two}
  - {model: llama, trials: 2, study: three}
"""
TRIALS = {"llama-tiny-sim-cpu": 3, "two": 4, "three": 2}


def base(runs: Path, workers: int | None = None) -> Request:
    """Return the options of the command."""
    return Request("llama", backend="sim", scale="tiny", runs=runs, strategy="random", workers=workers)


def listed(folder: Path, text: str = LIST) -> Path:
    """Return the file of a list."""
    path = folder / "list.yaml"
    path.write_text(text)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("workers", [None, 2])
def test_each_study_gets_its_trials(tmp_path: Path, workers: int | None) -> None:
    """With its own options; a die never works for two of them at the same time, and the results do not depend on it."""
    held: dict[str, str] = {}
    studies: set[str] = set()

    def listen(study: str, event: Event) -> None:
        studies.add(study)
        if event.event == "worker_joined":
            assert held.get(event.to_dict()["worker"], study) == study
            held[event.to_dict()["worker"]] = study
        elif event.event in ("study_finished", "worker_lost"):
            for die in [die for die, owner in held.items() if owner == study]:
                del held[die]

    answers = search_all(read_models(listed(tmp_path), base(tmp_path, workers)), listen)
    assert {answer.request.study: len(answer.result.trials) for answer in answers if answer.result} == TRIALS
    assert studies == TRIALS.keys()


@pytest.mark.slow
def test_the_command_ends_with_a_table_and_an_event(tmp_path: Path) -> None:
    """A search that fails does not stop the others; it makes the exit code."""
    text = LIST.replace("study: three", "study: three, space: none.yaml")
    run = sktune_command(
        "search", "--models", str(listed(tmp_path, text)), "--backend", "sim", "--scale", "tiny", "--runs",
        str(tmp_path), "--json",
    )  # fmt: skip
    assert run.returncode == 2, run.stderr
    assert "three: failed: " in run.stderr
    events = checked(run.stdout)
    assert {event["study"] for event in events if event["event"] == "trial_finished"} == TRIALS.keys() - {"three"}
    assert events[-1]["event"] == "models_finished"
    assert [row["study"] for row in events[-1]["studies"]] == list(TRIALS)
    assert [row["failure"] is None for row in events[-1]["studies"]] == [True, True, False]


@pytest.mark.slow
def test_ctrl_c_stops_all_after_the_trials_that_run(tmp_path: Path) -> None:
    """The same command continues."""
    requests = read_models(listed(tmp_path), base(tmp_path, 2))

    asked: list[Event] = []

    def stop_once(study: str, event: Event) -> None:
        del study
        if not asked and event.event == "trial_finished":
            asked.append(event)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(InterruptedSearchError, match="stopped after 0 of 3 studies; run the same command"):
        search_all([replace(request, trials=40) for request in requests], stop_once)
    answers = search_all(requests)
    assert all(answer.result and answer.result.verdict for answer in answers)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("  []\n", r"list.yaml:2: models must not be empty"),
        ("  - {model: llama, trial: 3}\n", r"list.yaml:3: unknown key '.*trial'"),
        ("  - {trials: 3}\n", "list.yaml:3: key 'model' is missing; add it"),
        ("  - {model: llama, trials: 0}\n", r"model 1 \(llama\): --trials must be at least 1"),
        ("  - {model: llama}\n  - {model: llama}\n", "models 1 and 2 have the same study .*`study:`"),
        ("  - {model: llama}\n  - {model: qwen3, backend: inductor}\n", "write a list for each"),
    ],
)  # fmt: skip
def test_a_wrong_list_gets_one_line(tmp_path: Path, text: str, message: str) -> None:
    """With the file and the mend."""
    with one_line_error(BadInputError, message):
        read_models(listed(tmp_path, f"version: 1\nmodels:\n{text}"), base(tmp_path, 2))
