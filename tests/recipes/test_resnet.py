from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from sifting.cli import train as cli
from sifting.recipes import resnet
from sifting.recipes.images.reading import read_images
from sifting.recipes.resnet import RECIPE
from sifting.training.arms import ARMS
from sifting.training.recipe import train
from sifting.training.run_folder import read_run
from sifting.training.run_writer import RunFolder

pytestmark = pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")

TINY = replace(resnet.PRESETS["smoke"], side=8, epochs=1, batch=40, evaluations=2)


@pytest.fixture(scope="module")
def digits() -> Any:
    return read_images("digits", side=8)


@pytest.mark.parametrize(
    "arm", [name for name, arm in ARMS.items() if arm.share == 1 and name != "reducible"]
)
def test_every_arm_runs_end_to_end_and_makes_the_same_updates(
    arm: str, digits: Any, tmp_path: Path
) -> None:
    config = replace(TINY, arm=arm, updates=14)
    assert train(RECIPE, config, tmp_path / "run", data=digits) == "finished"
    run = read_run(tmp_path / "run")
    assert run.config["arm"] == arm
    assert run.summary["updates"] == 14
    sifting, keep = run.summary["sifting"], ARMS[arm].keep
    if keep in (0.5, 1.0):  # the same all along
        assert sifting["samples_trained"] == 14 * 40
        assert sifting["candidates_seen"] == 14 * 40 / keep
    elif keep == "auto":
        assert sifting["samples_trained"] == 14 * 40 <= sifting["candidates_seen"]
    else:
        assert 0.9 * 14 * 40 < sifting["samples_trained"] < sifting["candidates_seen"]
    assert 0 <= run.summary["final"]["accuracy"] <= 1


def test_the_paper_preset_is_as_published() -> None:
    config = resnet.PRESETS["paper"]
    assert (config.batch, config.weight_decay, config.epochs) == (125, 5e-4, 100)
    with torch.device("meta"):
        model = resnet.build_model(config.shape, 100, seed=0)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(23.7e6, rel=0.01)
    stage = model.get_submodule("resnet.encoder.stages.1")
    assert {m.out_channels for m in stage.modules() if getattr(m, "kernel_size", 0) == (3, 3)} == {
        128
    }


def test_the_baseline_has_the_same_network_as_the_others(digits: Any) -> None:
    model = resnet.problem(TINY, digits).model
    assert any("sift_exit" in name for name, _ in model.named_parameters())


def stop_after(step: int) -> Any:
    """Ends a run as a crash would, later than some step: its checkpoint is written after its record."""

    def stop(record: Any) -> None:
        if record["step"] > step:
            raise KeyboardInterrupt

    return stop


@pytest.mark.parametrize("arm", ["default", "memory-mixed"])
def test_a_run_resumes_to_the_same_end(arm: str, digits: Any, tmp_path: Path) -> None:
    config = replace(TINY, arm=arm)
    train(RECIPE, config, tmp_path / "whole", data=digits)
    with pytest.raises(KeyboardInterrupt):
        train(RECIPE, replace(config), tmp_path / "cut", data=digits, watch=stop_after(17))
    assert RunFolder(tmp_path / "cut").checkpoints.latest() == 17  # in the middle of an epoch
    assert train(RECIPE, config, tmp_path / "cut", data=digits, resume=True) == "finished"
    assert (
        train(RECIPE, config, tmp_path / "cut", data=digits, resume=True) == "finished"
    )  # as it is
    ends = [RunFolder(tmp_path / name).checkpoints.load(35)["model"] for name in ("whole", "cut")]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_the_command_runs_and_complains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--epochs", "1", "--evaluations", "1", "--out", str(tmp_path / "run")]
    assert cli.main(["resnet", "smoke", *options]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("baseline  step 28/28  loss")
    assert printed[1].startswith("finished after 28 updates")
    assert cli.main(["resnet", "smoke", *options]) == 2
    assert "holds a run already: resume it" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["resnet", "smoke", "--arm", "nonsense", "--out", str(tmp_path / "x")])
    assert "arm='nonsense' is unknown" in capsys.readouterr().err
    assert (
        cli.main(["resnet", "smoke", "--data", str(tmp_path / "no"), "--out", str(tmp_path / "y")])
        == 2
    )
    assert "cannot read images from" in capsys.readouterr().err
    assert cli.main(["alexnet"]) == 2
    assert "recipe='alexnet' is unknown" in capsys.readouterr().err


def test_recalibration_is_measured_on_a_copy_and_changes_nothing(
    digits: Any, tmp_path: Path
) -> None:
    config = replace(TINY, arm="default", updates=9, recalibrate=5)
    train(RECIPE, config, tmp_path / "with", data=digits)
    train(RECIPE, replace(config, recalibrate=0), tmp_path / "without", data=digits)
    states = [RunFolder(tmp_path / name).checkpoints.load(9) for name in ("with", "without")]
    assert states[0]["model"].keys() == states[1]["model"].keys()
    for name, value in states[0]["model"].items():
        assert torch.equal(value, states[1]["model"][name]), name
    streams = [state["ranks"][0]["streams"] for state in states]
    assert torch.equal(streams[0]["torch"], streams[1]["torch"])
    logs = [
        [line for line in read_run(tmp_path / name).metrics if line["kind"] == "eval"]
        for name in ("with", "without")
    ]
    added = {"accuracy_recalibrated", "test_loss_recalibrated"}
    assert [set(a) - set(b) for a, b in zip(*logs, strict=True)] == [set(), set(), added]
    assert logs[0][-1]["accuracy"] == logs[1][-1]["accuracy"]
    assert 0 <= logs[0][-1]["accuracy_recalibrated"] <= 1


def test_recalibration_averages_over_the_batches_it_is_given() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm2d(3))
    model[0].running_mean.fill_(7.0)
    batches = [{"pixel_values": torch.full((4, 3, 2, 2), value)} for value in (1.0, 2.0)]
    found = resnet.recalibrated(model, batches)
    assert found[0].running_mean.tolist() == [1.5] * 3
    assert model[0].running_mean.tolist() == [7.0] * 3
    assert model.training


@pytest.mark.parametrize("arm", ["sift", "memory"])
def test_large_pictures_train_resume_and_evaluate_on_workers(tmp_path: Path, arm: str) -> None:
    for split, count in (("train", 12), ("test", 5)):
        for name in ("apple_pie", "waffles"):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(count):
                image = Image.new("RGB", (80 + 9 * i, 120 - 3 * i), (10 * i, 0, 200))
                image.save(tmp_path / split / name / f"{i}.jpg")
    config = replace(
        TINY, data=str(tmp_path), side=72, batch=4, arm=arm, evaluations=3, recalibrate=1
    )
    config = replace(config, shape=replace(config.shape, stem="large"))
    assert resnet.PRESETS["paper"].shape.stem == "large"

    def final(name: str, workers: int, *, resume: bool = False) -> dict[str, torch.Tensor]:
        out = tmp_path / name
        status = train(RECIPE, replace(config, workers=workers), out, resume=resume)
        assert status == "finished"
        run = read_run(out)
        assert run.summary is not None
        assert run.summary["updates"] == 6
        assert 0 <= run.summary["final"]["accuracy_recalibrated"] <= 1
        found: dict[str, torch.Tensor] = RunFolder(out).checkpoints.load(6)["model"]
        return found

    whole, other = final("whole", 1), final("other", 2 if arm == "memory" else 0)
    # what a memory chooses, it chooses before workers read it: the more of them, the longer before
    assert all(torch.equal(whole[name], other[name]) for name in whole) == (arm != "memory")
    with pytest.raises(KeyboardInterrupt):
        train(RECIPE, replace(config, workers=1), tmp_path / "cut", watch=stop_after(2))
    assert RunFolder(tmp_path / "cut").checkpoints.latest() == 2  # in the middle of an epoch
    resumed = final("cut", 1, resume=True)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_data_that_is_too_small_leaves_the_folder_to_the_next_try(
    digits: Any, tmp_path: Path
) -> None:
    config = replace(TINY, arm="sift", batch=1600)
    with pytest.raises(ValueError, match="batches of 1600 on 1 ranks from 1400 images"):
        train(RECIPE, config, tmp_path / "run", data=digits)
    RunFolder.check(tmp_path / "run")  # raises where there is a run
