from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sifting.recipes import gpt
from sifting.recipes.gpt import PRESETS, RECIPE
from sifting.recipes.text.data import TextData, read_text
from sifting.training.arms import ARMS, find_arm
from sifting.training.recipe import train
from sifting.training.run_folder import read_run
from sifting.training.run_writer import RunFolder
from tests.helpers.text import prose

pytestmark = pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")

TINY = replace(
    PRESETS["smoke"],
    vocabulary_size=400,
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
    warmup=0.0,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TextData:
    folder = tmp_path_factory.mktemp("gpt")
    (folder / "text").mkdir()
    for i in range(40):
        (folder / "text" / f"{i}.txt").write_text(prose(i))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIFT_CACHE", str(folder / "cache"))
        return read_text(replace(TINY, data=str(folder / "text")), "bpe")


# nor have recipes held-out samples for a reference
WHOLE = [
    name
    for name, arm in ARMS.items()
    if arm.share == 1 and arm.exit != "input" and name != "reducible"
]


@pytest.mark.parametrize(
    ("shape", "arm"),
    [*(("gpt2", arm) for arm in WHOLE), ("llama", "sift@2"), ("llama", "default")],
)
def test_every_arm_runs_end_to_end_and_makes_the_same_updates(
    shape: Any, arm: str, data: TextData, tmp_path: Path
) -> None:
    config = replace(TINY, arm=arm, shape=shape)
    assert train(RECIPE, config, tmp_path / "run", data=data) == "finished"
    run = read_run(tmp_path / "run")
    assert run.summary is not None
    sifting = run.summary["sifting"]
    keep = find_arm(arm).keep
    if keep in (0.5, 1.0):  # the same all along
        assert sifting["samples_trained"] == 12 * 4
        assert sifting["candidates_seen"] == 12 * 4 / keep
    elif keep == "auto":  # too short a run to have anything to go by
        assert sifting["samples_trained"] == sifting["candidates_seen"] == 12 * 4
    else:
        assert 12 * 4 <= sifting["samples_trained"] < sifting["candidates_seen"]
    figures = {"accuracy", "dev_loss", "nats_per_byte", "frequency_nats_per_byte"}
    assert set(run.summary["final"]) == figures


@pytest.mark.parametrize("shape", ["gpt2", "llama"])
def test_the_evaluation_is_the_models_own_loss(shape: Any, data: TextData) -> None:
    blocks = gpt.blocks(TINY, data, data.dev)
    end = data.vocabulary.end
    model = gpt.build_model(replace(TINY, shape=shape), len(data.vocabulary), end).eval()
    figures = gpt.evaluate(model, blocks, data.vocabulary.bytes_V, count=10_000, batch=3)
    batch = blocks.batch(np.arange(len(blocks)), seed=0)
    batch.pop("index")
    with torch.no_grad():
        out = model(**batch)
    assert model.loss_type == "ForCausalLM"  # else transformers complains
    assert figures["dev_loss"] == pytest.approx(float(out.loss), rel=1e-5)
    right = out.logits[:, :-1].argmax(-1) == batch["input_ids"][:, 1:]
    assert figures["accuracy"] == pytest.approx(float(right.float().mean()))
    predicted = batch["input_ids"][:, 1:]
    text = data.vocabulary.tokenizer.decode(predicted.flatten().tolist())  # no special tokens
    nats = float(out.loss) * predicted.numel()
    assert figures["nats_per_byte"] == pytest.approx(nats / len(text.encode()), rel=1e-5)
    shares = predicted.flatten().bincount() / predicted.numel()
    entropy = float(torch.special.entr(shares).sum()) * predicted.numel()
    assert figures["frequency_nats_per_byte"] == pytest.approx(entropy / len(text.encode()))


def test_losses_of_single_samples_are_the_models_own(data: TextData) -> None:
    problem = gpt.problem(TINY, data)
    assert problem.losses is not None
    batch = gpt.blocks(TINY, data, data.dev).batch(np.arange(3), seed=0)
    model = problem.model.eval()
    one_by_one = [
        problem.loss(model, {k: v[i : i + 1] for k, v in batch.items()}) for i in range(3)
    ]
    torch.testing.assert_close(problem.losses(model, batch), torch.stack(one_by_one))


@pytest.mark.parametrize(("shape", "size"), [("gpt2", 124e6), ("llama", 152e6)])
def test_the_paper_preset_has_the_size_of_the_small_published_ones(shape: Any, size: float) -> None:
    with torch.device("meta"):
        model = gpt.build_model(replace(PRESETS["paper"], shape=shape), 50257, 50256)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(size, rel=0.01)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # that it has threads
def test_a_cut_run_resumes_to_the_same_end(data: TextData, tmp_path: Path) -> None:
    config = replace(TINY, arm="sift-mixed", updates=30, workers=1, warmup=0.1, accumulate=2)
    train(RECIPE, replace(config, workers=0), tmp_path / "whole", data=data)

    def stop(record: Any) -> None:
        if record["kind"] == "eval" and record["step"] == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(RECIPE, config, tmp_path / "cut", data=data, watch=stop)
    assert RunFolder(tmp_path / "cut").checkpoints.latest() == 10
    assert train(RECIPE, config, tmp_path / "cut", data=data, resume=True) == "finished"
    ends = [RunFolder(tmp_path / name).checkpoints.load(30)["model"] for name in ("whole", "cut")]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    audits = [(tmp_path / name / "audits.jsonl").read_text() for name in ("whole", "cut")]
    assert audits[0] == audits[1] != ""


def test_one_pass_is_the_length_of_a_run_that_names_none(data: TextData) -> None:
    blocks = gpt.blocks(TINY, data, data.train)
    assert RECIPE.updates(TINY, data) == len(blocks) // 4


def test_the_preset_that_learns_counts_the_loss_by_byte(data: TextData, tmp_path: Path) -> None:
    config = replace(
        PRESETS["learn"],
        **{name: getattr(TINY, name) for name in ("length", "hidden", "inner", "dev_sequences")},
        updates=4,
        evaluations=1,
    )
    problem = gpt.problem(config, data)
    assert (problem.metric, problem.lower_is_better) == ("nats_per_byte", True)
    assert train(RECIPE, config, tmp_path / "run", data=data) == "finished"
    with pytest.raises(ValueError, match="metric='bits': choose 'accuracy' or 'nats_per_byte'"):
        replace(config, metric="bits")  # type: ignore[arg-type]


def test_an_unknown_shape_is_named() -> None:
    with pytest.raises(ValueError, match="shape='mamba'"):
        replace(TINY, shape="mamba")  # type: ignore[arg-type]
