from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting import Sifter, checksums, files
from sifting.exits.scoring import Scorer
from sifting.training.checkpoints import Found
from sifting.training.engine import Diverged, Engine
from sifting.training.problem import Pace
from sifting.training.run_folder import RunError, read_run
from sifting.training.run_writer import RunFolder
from tests.helpers import killed_run
from tests.helpers.engines import ARMS, KILLED, PACE, build
from tests.helpers.processes import Started


def reopened(path: Path, *, pace: Pace, arm: dict[str, Any]) -> Engine:
    found = RunFolder(path).checkpoints.newest()
    engine = build(RunFolder.reopen(path, config={}, found=found), pace=pace, arm=arm)
    engine.resume(found)
    return engine


# random labels are learned by heart here, and the library says so
pytestmark = pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")


def weights(engine: Engine) -> list[Tensor]:
    return [p.detach().clone() for p in engine.task.model.state_dict().values()]


@pytest.mark.parametrize("arm", ARMS, ids=["baseline", "sift", "tuned"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_resumed_run_ends_bit_for_bit_like_an_uninterrupted_one(
    arm: dict[str, Any], accumulate: int, tmp_path: Path
) -> None:
    pace = Pace(
        updates=40, log_every=5, evaluate_every=10, checkpoint_every=7, accumulate=accumulate
    )
    whole = build(RunFolder.create(tmp_path / "whole", config={}), pace=pace, arm=arm)
    assert whole.run() == "finished"

    broken = build(RunFolder.create(tmp_path / "broken", config={}), pace=pace, arm=arm)
    original = broken.task.loss

    def fails(model: nn.Module, batch: Any) -> Tensor:
        if broken.update == 18:
            raise KeyboardInterrupt
        return original(model, batch)

    object.__setattr__(broken.task, "loss", fails)
    with pytest.raises(KeyboardInterrupt):
        broken.run()
    found = broken.folder.checkpoints.newest()
    assert found.step == 14
    folder = RunFolder.reopen(tmp_path / "broken", config={}, found=found)
    again = build(folder, pace=pace, arm=arm)
    torch.manual_seed(12345)
    again.resume(found)
    assert again.run() == "finished"
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(again), strict=True))

    def figures(path: Path) -> list[Any]:
        return [
            {k: v for k, v in line.items() if k not in ("seconds", "load")}
            for line in read_run(path).metrics
        ]

    assert figures(tmp_path / "whole") == figures(tmp_path / "broken")


def test_runs_that_take_turns_end_like_runs_of_their_own(tmp_path: Path) -> None:
    whole, parts = (
        [
            build(RunFolder.create(tmp_path / f"{kind}-{i}", config={}), pace=PACE, arm=arm)
            for i, arm in enumerate(ARMS)
        ]
        for kind in ("whole", "parts")
    )
    for engine in whole:
        torch.manual_seed(9)
        engine.run()
    for engine in parts:
        torch.manual_seed(9)
        engine.advance(1)
    while not all(engine.done for engine in parts):
        for size, engine in enumerate(parts, start=3):
            engine.advance(size)
    assert [engine.finish() for engine in parts] == ["finished"] * 3
    for one, other in zip(whole, parts, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


def test_waiting_for_a_turn_is_not_charged_to_the_step(tmp_path: Path) -> None:
    engine = build(RunFolder.create(tmp_path / "run", config={}), pace=PACE, arm=ARMS[1])
    begin = time.perf_counter()
    engine.advance(20)
    time.sleep(1.0)
    engine.advance(20)
    engine.finish()
    assert 0 < engine.sifter.stats().seconds_between < time.perf_counter() - begin - 1.0


def test_time_by_the_table_is_recorded_beside_the_time_that_passed(tmp_path: Path) -> None:
    engine = build(RunFolder.create(tmp_path / "run", config={}), pace=PACE, arm=ARMS[1])
    engine.reference = {"data": 0.5, "scoring": 3.0, "forward": 1.0}
    engine.run()
    last = read_run(tmp_path / "run").metrics[-1]
    counts = engine.sifter.stats()
    assert last["reference"]["data"] == 0.5 * counts.candidates_seen
    assert last["reference"]["scoring"] == 3.0 * counts.selections
    assert last["reference"]["forward"] == 40.0
    assert last["load"] >= 0


def test_the_log_has_what_reports_need(tmp_path: Path) -> None:
    engine = build(RunFolder.create(tmp_path / "run", config={}), pace=PACE, arm=ARMS[1])
    engine.run()
    run = read_run(tmp_path / "run")
    kinds = [line["kind"] for line in run.metrics]
    assert kinds.count("train") == 8
    assert kinds.count("eval") == 4
    last = run.metrics[-1]
    assert last["accuracy"] == run.summary["final"]["accuracy"]
    assert set(last["seconds"]) >= {
        "data",
        "scoring",
        "forward",
        "backward",
        "optimizer",
        "evaluation",
    }
    assert last["samples_trained"] == 40 * 8
    train = next(line for line in run.metrics if line["kind"] == "train")
    assert set(train["selection"]) >= {"recall", "rho_approx"}


def test_a_loss_that_is_not_finite_stops_and_names_the_checkpoint(tmp_path: Path) -> None:
    engine = build(RunFolder.create(tmp_path / "run", config={}), pace=PACE, arm=ARMS[0])
    original = engine.task.loss
    object.__setattr__(
        engine.task,
        "loss",
        lambda m, b: original(m, b) * (float("nan") if engine.update == 9 else 1),
    )
    with pytest.raises(Diverged, match=r"update 10 is nan; the last good checkpoint is .*00000007"):
        engine.run()
    assert read_run(tmp_path / "run").status == "failed"


def test_weights_that_are_not_finite_are_no_checkpoint(tmp_path: Path) -> None:
    engine = build(RunFolder.create(tmp_path / "run", config={}), pace=PACE, arm=ARMS[0])
    original = engine.task.loss

    def steep(model: nn.Module, batch: Any) -> Tensor:
        value = original(model, batch)
        if engine.update == 13:  # the loss is sound, its gradient is not
            value = value + (0 * model.head.weight).sqrt().sum()
        return value

    object.__setattr__(engine.task, "loss", steep)
    with pytest.raises(Diverged, match=r"after update 14, .* checkpoint is .*00000007"):
        engine.run()
    assert engine.folder.checkpoints.latest() == 7
    assert read_run(tmp_path / "run").status == "failed"


def test_losses_of_a_checkpoint_are_put_where_those_to_come_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build(RunFolder.create(tmp_path / "run", config={}), pace=PACE, arm=ARMS[0])
    engine.advance(7)
    again = build(engine.folder, pace=PACE, arm=ARMS[0])
    monkeypatch.setattr(Sifter, "device", torch.device("meta"))
    again.resume(engine.folder.checkpoints.newest())
    assert [loss.device.type for loss in again.progress.losses] == ["meta"] * 2


def test_scores_that_are_not_finite_are_a_run_that_diverged(tmp_path: Path) -> None:
    engine = build(RunFolder.create(tmp_path / "run", config={}), pace=PACE, arm=ARMS[1])
    engine.advance(9)
    with torch.no_grad():
        engine.task.model.head.weight.fill_(float("nan"))
    with pytest.raises(Diverged, match=r"before update 10, the scores of 16 of 16 .*00000007"):
        engine.advance(1)
    assert read_run(tmp_path / "run").status == "failed"


def test_a_run_that_is_asked_to_stop_saves_first(tmp_path: Path) -> None:
    engine = build(RunFolder.create(tmp_path / "run", config={}), pace=PACE, arm=ARMS[0])
    engine.advance(9)
    engine.ask("supper")
    engine.advance(9)
    assert engine.finish() == "stopped"
    assert read_run(tmp_path / "run").summary["stopped_by"] == "supper"
    assert RunFolder(tmp_path / "run").checkpoints.latest() == 10


def test_the_summary_counts_what_all_ranks_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build(RunFolder.create(tmp_path / "run", config={}), pace=PACE, arm=ARMS[0])
    engine.advance(40)
    own = engine.sifter.stats
    everyones = {"samples_trained": 2 * own().samples_trained}
    monkeypatch.setattr(engine.sifter, "stats", lambda reduce=False: everyones if reduce else own())
    engine.finish()
    assert read_run(tmp_path / "run").summary["sifting"] == {"samples_trained": 2 * 40 * 16}


def test_an_empty_loader_is_reported(tmp_path: Path) -> None:
    engine = build(RunFolder.create(tmp_path / "run", config={}), pace=PACE, arm=ARMS[0])
    object.__setattr__(engine.task, "loader", [])
    with pytest.raises(RunError, match="the loader gave no batch"):
        engine.run()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"updates": 0}, "updates=0"),
        ({"clip": 0.0}, "clip=0.0"),
        ({"autocast": "int8"}, "autocast='int8'"),
    ],
)
def test_bad_settings_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Pace(**{"updates": 10, **options})


def test_bf16_autocast_trains_and_scores_in_bf16(tmp_path: Path) -> None:
    pace = Pace(updates=6, autocast="bf16")
    engine = build(RunFolder.create(tmp_path / "run", config={}), pace=pace, arm=ARMS[1])
    seen: list[torch.dtype] = []
    engine.task.model.head.register_forward_hook(lambda m, a, out: seen.append(out.dtype))
    assert engine.run() == "finished"
    assert torch.bfloat16 in seen


def launch(folder: Path, pause: float) -> Started:
    return Started([killed_run.__file__, folder, pause])


def wait_for(folder: Path, step: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (RunFolder(folder).checkpoints.latest() or 0) >= step:
            return
        time.sleep(0.02)
    raise AssertionError("no checkpoint within a minute")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_a_killed_process_is_resumed_to_the_same_weights(
    number: signal.Signals, tmp_path: Path
) -> None:
    first = launch(tmp_path / "run", pause=0.2)
    wait_for(tmp_path / "run", 6)
    first.send_signal(number)
    out = first.wait().stdout
    if number == signal.SIGTERM:
        assert (first.returncode, out.strip()) == (0, "stopped")
        assert read_run(tmp_path / "run").summary["stopped_by"] == "SIGTERM"
    else:
        assert first.returncode == -signal.SIGKILL
    again = launch(tmp_path / "run", pause=0.0)
    assert again.wait().stdout.strip() == "finished"
    whole = build(RunFolder.create(tmp_path / "whole", config={}), pace=KILLED, arm=ARMS[2])
    whole.run()
    saved = RunFolder(tmp_path / "run").checkpoints.load(40)["model"]
    for name, value in whole.task.model.state_dict().items():
        assert torch.equal(value, saved[name]), name


def test_the_sifter_is_told_the_losses_of_the_batch_that_is_trained(tmp_path: Path) -> None:
    pace = Pace(updates=6, accumulate=2)
    arm = {"exit": 1, "score": "loss", "explore": 0.5, "audit_every": 0}
    engine = build(RunFolder.create(tmp_path / "run", config={}), pace=pace, arm=arm)
    trained: list[float] = []
    observed: list[float] = []
    original = engine.task.loss

    def read(scorer: Scorer, output: Any, batch: Any) -> Tensor | None:
        losses_B = Scorer.losses(scorer, output, batch)
        assert losses_B is not None
        observed.append(float(losses_B.mean()))
        return losses_B

    def noted(model: nn.Module, batch: Any) -> Tensor:
        value = original(model, batch)
        trained.append(float(value.detach()))
        return value

    object.__setattr__(engine.task, "loss", noted)
    scorer = engine.sifter.observer.scorer
    scorer.losses = lambda output, batch: read(scorer, output, batch)  # type: ignore[method-assign]
    engine.run()
    assert len(observed) == 12
    assert observed == pytest.approx(trained)


def test_checkpoints_by_time_change_nothing_of_the_run(tmp_path: Path) -> None:
    whole = build(RunFolder.create(tmp_path / "whole", config={}), pace=PACE, arm=ARMS[2])
    whole.run()
    timed = Pace(
        updates=40, log_every=5, evaluate_every=10, checkpoint_every=40, checkpoint_seconds=1e4
    )
    timed = replace(timed, clip=1.0)
    engine = build(RunFolder.create(tmp_path / "timed", config={}), pace=timed, arm=ARMS[2])
    engine.advance(12)
    assert engine.folder.checkpoints.latest() is None
    engine._saved -= 1e4  # as if so much time had passed
    engine.advance(1)
    assert engine.folder.checkpoints.latest() == 13
    engine.advance(1)
    assert engine.folder.checkpoints.latest() == 13
    again = reopened(tmp_path / "timed", pace=timed, arm=ARMS[2])
    assert again.run() == "finished"
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(again), strict=True))


def test_a_full_disk_ends_the_run_with_a_message_and_it_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build(RunFolder.create(tmp_path / "run", config={}), pace=PACE, arm=ARMS[0])
    engine.advance(9)

    def full(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(checksums, "write_state", full)
        with pytest.raises(RunError, match=r"No space left on device; the last good .*00000007"):
            engine.advance(9)
    run = read_run(tmp_path / "run")
    assert run.status == "stopped"
    assert "No space left" in run.summary["stopped_by"]
    again = reopened(tmp_path / "run", pace=PACE, arm=ARMS[0])
    assert again.run() == "finished"


def test_a_run_that_fills_the_disk_to_the_last_byte_can_still_say_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build(RunFolder.create(tmp_path / "run", config={}), pace=PACE, arm=ARMS[0])
    engine.advance(9)
    room, write = tmp_path / "run" / ".room", files.Sink.write
    assert room.stat().st_size >= 2**15

    def full_until_some_is_given_back(sink: Any, data: Any) -> int:
        if room.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(sink, data)

    with monkeypatch.context() as patch:
        patch.setattr(files.Sink, "write", full_until_some_is_given_back)
        with pytest.raises(RunError, match="No space left on device"):
            engine.advance(9)
    assert read_run(tmp_path / "run").status == "stopped"
    again = reopened(tmp_path / "run", pace=PACE, arm=ARMS[0])
    assert room.exists()
    assert again.run() == "finished"
    assert not room.exists()


def test_a_folder_deleted_under_the_run_is_named(tmp_path: Path) -> None:
    engine = build(RunFolder.create(tmp_path / "run", config={}), pace=PACE, arm=ARMS[0])
    engine.advance(3)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(
        RunError, match="is gone: it was deleted or moved while the run wrote to it"
    ):
        engine.advance(9)


def test_what_a_users_own_files_raise_is_not_put_down_to_the_folder(tmp_path: Path) -> None:
    engine = build(RunFolder.create(tmp_path / "run", config={}), pace=PACE, arm=ARMS[0])

    def missing(model: nn.Module, batch: Any) -> Tensor:
        raise FileNotFoundError(errno.ENOENT, "no such shard", "/data/shard-7")

    object.__setattr__(engine.task, "loss", missing)
    with pytest.raises(FileNotFoundError, match="no such shard"):
        engine.advance(1)


def test_warnings_of_the_run_are_in_its_folder_once(tmp_path: Path) -> None:
    """Also those that a filter keeps from being shown, as here; a run that goes on adds none twice."""
    folder = RunFolder.create(tmp_path / "run", config={})
    pace = Pace(updates=4, log_every=2, evaluate_every=2, checkpoint_every=2)
    weight = torch.tensor([0.1, 1.0, 5.0, 0.2, 1.0])

    def weighted(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], weight=weight)

    for step in (None, 2):
        found = Found() if step is None else Found(step, folder.checkpoints.load(step))
        if step is not None:
            folder = RunFolder.reopen(folder.path, config={}, found=found)
        engine = build(folder, pace=pace, arm={"exit": 1, "audit_every": 0})
        engine.task = replace(engine.task, loss=weighted)
        engine.resume(found)
        engine.run()
        run = read_run(folder.path)
        (warned,) = (record for record in run.metrics if record["kind"] == "warning")
        assert "pass loss_fn= with the loss of your training step" in warned["message"]
        assert warned["step"] == 1
        assert run.summary is not None
        assert run.summary["warnings"] == [warned["message"]]


@pytest.mark.parametrize("arm", ARMS)
def test_a_label_of_no_class_is_named_by_row_and_value(tmp_path: Path, arm: dict[str, Any]) -> None:
    folder = RunFolder.create(tmp_path / "run", config={})
    engine = build(folder, pace=PACE, arm=arm)
    engine.task.loader.dataset.tensors[1][:] = -3  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"labels\[0\] is -3, and logits of shape .* from 0 to 4"):
        engine.run()


def test_what_is_read_of_a_forward_is_not_charged_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sifter that takes long to read losses makes no forward longer."""

    def slow(scorer: Scorer, output: Any, batch: Any) -> Tensor | None:
        time.sleep(0.05)
        return None

    monkeypatch.setattr(Scorer, "losses", slow)
    arm = {"exit": 1, "score": "loss", "explore": 0.5, "audit_every": 0}
    engine = build(RunFolder.create(tmp_path / "run", config={}), pace=Pace(updates=4), arm=arm)
    engine.run()
    assert engine.sifter.stats().seconds_observing >= 4 * 0.05
    assert engine.seconds["forward"] < 4 * 0.05
    assert engine.sifter.stats().losses_read == 0, "none came"
