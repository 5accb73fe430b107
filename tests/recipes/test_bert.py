from __future__ import annotations

import multiprocessing
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sifting.cli import train as cli
from sifting.recipes import bert
from sifting.recipes.bert import PRESETS, RECIPE
from sifting.recipes.text.data import TextData, read_text
from sifting.recipes.text.masking import IGNORED
from sifting.training.arms import ARMS, find_arm
from sifting.training.recipe import train
from sifting.training.run_folder import read_run
from sifting.training.run_writer import RunFolder
from tests.helpers.text import prose

pytestmark = pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")

TINY = replace(
    PRESETS["smoke"],
    vocabulary_size=200,
    dev_share=0.3,
    length=16,
    batch=4,
    updates=12,
    evaluations=3,
    dev_sequences=16,
    layers=3,
    hidden=16,
    inner=16,
    audit_every=3,
)
LEARN = replace(  # as small as TINY
    PRESETS["learn"],
    vocabulary_size=200,
    dev_share=0.3,
    length=16,
    window=4,
    layers=3,
    hidden=32,
    heads=2,
    inner=32,
    dev_sequences=400,
)
METRICS = {"accuracy", "hidden_accuracy", "hidden_commonest", "dev_loss", "masked_loss"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    (folder / "text").mkdir()
    for i in range(40):
        (folder / "text" / f"{i}.txt").write_text(prose(i))
    return folder


@pytest.fixture(scope="module")
def data(folder: Path) -> TextData:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIFT_CACHE", str(folder / "cache"))
        return read_text(replace(TINY, data=str(folder / "text")), "wordpiece")


# of those with another share of the budget, a single run shows nothing; an exit before the model cannot reach
# a head that predicts at every position
# nor have recipes held-out samples for a reference
WHOLE = [
    name
    for name, arm in ARMS.items()
    if arm.share == 1 and arm.exit != "input" and name != "reducible"
]


@pytest.mark.parametrize("arm", [*WHOLE, "sift@2", "sift-entropy@3"])
def test_every_arm_runs_end_to_end_and_makes_the_same_updates(
    arm: str, data: TextData, tmp_path: Path
) -> None:
    assert (
        train(RECIPE, replace(TINY, arm=arm, warmup=0.0), tmp_path / "run", data=data) == "finished"
    )
    run = read_run(tmp_path / "run")
    assert (run.config["recipe"], run.config["arm"]) == ("bert", arm)
    assert run.summary is not None
    assert run.summary["updates"] == 12
    sifting = run.summary["sifting"]
    keep = find_arm(arm).keep
    if keep in (0.5, 1.0):  # the same all along
        assert sifting["samples_trained"] == 12 * 4
        assert sifting["candidates_seen"] == 12 * 4 / keep
    elif keep == "auto":  # too short a run to have anything to go by
        assert sifting["samples_trained"] == sifting["candidates_seen"] == 12 * 4
    else:
        assert 12 * 4 <= sifting["samples_trained"] < sifting["candidates_seen"]
    final = run.summary["final"]
    assert set(final) == {*METRICS, "next_accuracy"}
    assert 0 <= final["accuracy"] <= 1
    assert final["masked_loss"] < final["dev_loss"]


@pytest.mark.parametrize("arm", ["baseline", "sift@2", "default", "memory"])
def test_the_preset_that_learns_runs_with_every_kind_of_arm(
    arm: str, data: TextData, tmp_path: Path
) -> None:
    config = replace(LEARN, arm=arm, updates=6, evaluations=1, warmup=0.0, audit_every=3)
    assert train(RECIPE, config, tmp_path / "run", data=data) == "finished"
    run = read_run(tmp_path / "run")
    assert run.summary is not None
    assert set(run.summary["final"]) == METRICS
    assert run.summary["sifting"]["samples_trained"] == 6 * config.batch
    assert bert.problem(config, data).metric == "hidden_accuracy"


def test_nothing_is_selected_in_the_warm_up(data: TextData, tmp_path: Path) -> None:
    config = replace(TINY, arm="sift", warmup=0.5)
    train(RECIPE, config, tmp_path / "run", data=data)
    sifting = read_run(tmp_path / "run").summary["sifting"]  # type: ignore[index]
    assert (sifting["selections"], sifting["samples_trained"]) == (6, 48)
    assert sifting["candidates_seen"] == 6 * 4 + 6 * 8


def test_the_paper_preset_is_as_published() -> None:
    config = PRESETS["paper"]
    assert (config.layers, config.hidden, config.length, config.batch) == (12, 768, 512, 32)
    assert (config.lr, config.weight_decay, config.lr_warmup) == (1e-4, 0.01, 0.002)
    assert (config.dropout, config.masked, config.updates) == (0.1, 0.15, 800_000)
    assert config.warmup * 800_000 == pytest.approx(20_000)
    assert config.vocabulary == "bert-base-uncased"
    assert "bookcorpus" in config.data
    assert "wikipedia" in config.data
    assert ARMS["sift"].keep == 0.5  # 64 drawn for 32 trained
    with torch.device("meta"):
        model = bert.build_model(config, 30522)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(110e6, rel=0.005)
    assert model.config.hidden_act == "gelu"
    optimizer = bert.text_problem(replace(config, device="meta"), model, [], dict).optimizer
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.999)


def test_presets_differ_only_in_numbers_and_text() -> None:
    words = {"data", "vocabulary"}
    for name in ("small", "smoke"):
        for field in PRESETS["paper"].__dataclass_fields__:
            mine, paper = (getattr(PRESETS[n], field) for n in (name, "paper"))
            number = isinstance(mine, int | float) and not isinstance(mine, bool)
            assert field in words or number or mine == paper, field


@pytest.mark.parametrize("config", [TINY, LEARN], ids=["bert", "modernbert"])
def test_the_evaluation_is_the_models_own_loss_on_fixed_masks(
    config: bert.Config, data: TextData
) -> None:
    dev = bert.examples(config, data, data.dev)
    model = bert.build_model(config, len(data.vocabulary)).eval()
    figures = bert.evaluate(model, dev, count=10_000, batch=5)
    batch = dev.batch(np.arange(len(dev)), seed=bert.FIXED)
    batch.pop("index")
    with torch.no_grad():
        out = model(**batch)
    assert figures["dev_loss"] == pytest.approx(float(out.loss), rel=1e-5)
    chosen = batch["labels"] != IGNORED
    logits = out.prediction_logits if config.shape == "bert" else out.logits
    right = (logits.argmax(-1) == batch["labels"]) & chosen
    hidden = chosen & (batch["input_ids"] == data.vocabulary.id("[MASK]"))
    assert figures["accuracy"] == pytest.approx(int(right.sum()) / int(chosen.sum()))
    assert figures["hidden_accuracy"] == pytest.approx(
        int((right & hidden).sum()) / int(hidden.sum())
    )
    labels = batch["labels"][hidden]
    commonest = max(int((labels == token).sum()) for token in labels.unique())
    assert figures["hidden_commonest"] == pytest.approx(commonest / len(labels))
    if config.shape == "bert":
        follows = out.seq_relationship_logits.argmax(-1) == batch["next_sentence_label"]
        assert figures["next_accuracy"] == pytest.approx(float(follows.float().mean()))
    assert bert.evaluate(model, dev, count=10_000, batch=64) == pytest.approx(figures)


@pytest.mark.parametrize("config", [TINY, LEARN], ids=["bert", "modernbert"])
def test_losses_of_single_samples_are_the_models_own(config: bert.Config, data: TextData) -> None:
    problem = bert.problem(config, data)
    assert problem.losses is not None
    batch = bert.examples(config, data, data.dev).batch(np.arange(3), seed=0)
    model = problem.model.eval()
    one_by_one = [
        problem.loss(model, {k: v[i : i + 1] for k, v in batch.items()}) for i in range(3)
    ]
    torch.testing.assert_close(problem.losses(model, batch), torch.stack(one_by_one))


def test_only_held_out_documents_are_evaluated_and_only_others_trained(data: TextData) -> None:
    problem = bert.problem(TINY, data)
    loader: Any = problem.batches(4)
    assert set(loader.dataset.examples.documents) == set(data.train)
    assert not set(data.train) & set(data.dev)
    assert len(loader) == len(loader.dataset) // 4


def test_masked_tokens_are_learned(data: TextData, tmp_path: Path) -> None:
    config = replace(
        TINY,
        updates=60,
        batch=16,
        layers=2,
        hidden=32,
        inner=32,
        lr=3e-3,
        init=0.1,
        dropout=0.0,
        evaluations=1,
        dev_sequences=400,
    )
    train(RECIPE, config, tmp_path / "run", data=data)
    dev = bert.examples(config, data, data.dev)
    labels = dev.batch(np.arange(len(dev)), seed=bert.FIXED)["labels"]
    labels = labels[labels != IGNORED]
    majority = float(labels.bincount().max()) / len(labels)
    final = read_run(tmp_path / "run").summary["final"]  # type: ignore[index]
    assert final["accuracy"] > majority + 0.05


def test_the_preset_that_learns_leaves_the_frequencies_of_tokens(
    data: TextData, tmp_path: Path
) -> None:
    config = replace(LEARN, updates=80, lr=1e-2, init=0.1, evaluations=1)
    train(RECIPE, config, tmp_path / "run", data=data)
    final = read_run(tmp_path / "run").summary["final"]  # type: ignore[index]
    assert final["hidden_accuracy"] > final["hidden_commonest"] + 0.1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"shape": "electra"}, "shape='electra': choose 'bert' or 'modernbert'"),
        ({"metric": "loss"}, "metric='loss': choose 'accuracy' or 'hidden_accuracy'"),
        ({"window": 5}, "window=5: give an even number"),
    ],
)
def test_settings_that_mean_nothing_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(LEARN, **wrong)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # that it has threads
def test_a_killed_run_is_resumed_to_the_same_weights(data: TextData, tmp_path: Path) -> None:
    config = replace(TINY, arm="default", warmup=0.1, updates=30, evaluations=10)
    run = tmp_path / "run"

    def first() -> None:
        train(RECIPE, config, run, data=data, watch=lambda record: time.sleep(0.05))

    process = multiprocessing.get_context("fork").Process(target=first)
    process.start()
    deadline = time.monotonic() + 60
    while (RunFolder(run).checkpoints.latest() or 0) < 6 and time.monotonic() < deadline:
        time.sleep(0.005)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL, "it ended before it could be killed"
    assert 6 <= (RunFolder(run).checkpoints.latest() or 0) < 30
    assert train(RECIPE, config, run, data=data, resume=True) == "finished"
    assert train(RECIPE, config, tmp_path / "whole", data=data) == "finished"
    ends = [RunFolder(tmp_path / name).checkpoints.load(30)["model"] for name in ("whole", "run")]
    for name, value in ends[0].items():
        assert torch.equal(value, ends[1][name]), name
    logs = [
        [
            {k: v for k, v in line.items() if k not in ("seconds", "load")}
            for line in read_run(tmp_path / name).metrics
        ]
        for name in ("whole", "run")
    ]
    assert logs[0] == logs[1]


def test_the_command_runs_and_complains(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SIFT_CACHE", str(tmp_path / "cache"))
    small = ["--updates", "4", "--evaluations", "1", "--layers", "2", "--dev-sequences", "8"]
    options = ["--data", "python", "--megabytes", "0.1", *small]
    assert cli.main(["bert", "smoke", *options, "--out", str(tmp_path / "run")]) == 0
    assert "finished after 4 updates" in capsys.readouterr().out
    missing = ["--data", str(tmp_path / "no"), "--out", str(tmp_path / "x")]
    assert cli.main(["bert", "smoke", *missing]) == 2
    assert "is not a file or folder here" in capsys.readouterr().err
    one = folder / "text" / "0.txt"
    assert cli.main(["bert", "smoke", "--data", str(one), "--out", str(tmp_path / "y")]) == 2
    assert "of 1 documents" in capsys.readouterr().err
