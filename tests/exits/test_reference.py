from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sifting import MemoryExit, Sifter
from sifting.checksums import Damaged
from sifting.exits.held_out import HeldOutReference
from sifting.exits.reference import Reference, ReferenceTable
from sifting.reference import reference_losses
from sifting.selection.tokens import HardestTokens
from tests.helpers.models import Net
from tests.helpers.references import COUNT, make_data


@pytest.fixture
def data() -> TensorDataset:
    return make_data()


def losses_of(model: nn.Module, data: TensorDataset) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        found = nn.functional.cross_entropy(
            model(data.tensors[0]), data.tensors[1], reduction="none"
        )
    model.train()
    return found


def test_what_is_chosen_has_most_loss_beyond_the_references(data: TensorDataset):
    model, other = Net(), Net()
    table = reference_losses(other, DataLoader(data, batch_size=7, shuffle=True))
    assert torch.allclose(table.losses_N, losses_of(other, data), atol=1e-6)
    sifter = Sifter(model, exit="last", score="reducible", reference=table, keep=0.5)
    loader = DataLoader(data, batch_size=COUNT // 2)
    (batch, _), *_ = sifter(loader)
    beyond = losses_of(model, data) - losses_of(other, data)
    best = beyond.argsort(descending=True)[: COUNT // 2].sort().values
    assert torch.equal(batch, data.tensors[0][best])
    assert sifter.settings()["score"] == "reducible"


@pytest.mark.parametrize("exit", [1, "tuned", "input", MemoryExit])
def test_other_exits_take_it_off_too_and_audits_judge_by_it(data: TensorDataset, exit: object):
    model = Net().eval()  # as scored
    table = ReferenceTable(torch.rand(COUNT))
    made = exit() if callable(exit) else exit
    options = {"keep": 0.5, "explore": 0.0, "audit_every": 1}
    sifter = Sifter(model, exit=made, score="reducible", reference=table, **options)  # type: ignore[arg-type]
    for x, y in sifter(DataLoader(data, batch_size=8, shuffle=True)):
        nn.functional.cross_entropy(model(x), y)
    assert sifter.stats().audits == 6
    if exit is MemoryExit:
        known = losses_of(model, data)
        trained = sifter.exit.table.read(torch.arange(COUNT))[0].isfinite()  # type: ignore[attr-defined]
        passed = sifter.exit.table.read(torch.arange(COUNT))[1] == 0  # type: ignore[attr-defined]
        rows = (trained & passed).nonzero()[:, 0].tolist()
        wanted = torch.stack([known[i] - table.losses_N[i] for i in rows])
        assert rows
        assert torch.allclose(sifter.exit.score_ids(rows), wanted, atol=1e-5)


def test_an_audit_of_the_exact_score_is_perfect(data: TensorDataset):
    model = Net()
    table = ReferenceTable(3 * torch.rand(COUNT))
    sifter = Sifter(model, exit="last", score="reducible", reference=table, keep=0.5, audit_every=1)
    for _ in sifter(DataLoader(data, batch_size=8, shuffle=True)):
        pass
    stats = sifter.stats()
    assert (stats.recall, stats.rank_correlation) == (1.0, 1.0)
    assert stats.rho_approx > 1


def test_a_file_is_read_back_as_it_was_written_or_refused(tmp_path: Path, data: TensorDataset):
    path = tmp_path / "reference.json"
    table = reference_losses(Net(), DataLoader(data, batch_size=7), about="a net")
    table.save(path)
    again = ReferenceTable.load(path)
    assert torch.equal(again.losses_N, table.losses_N)
    assert again.marks_N is not None
    assert torch.equal(again.marks_N, table.marks_N)
    assert (again.about, repr(again)) == ("a net", repr(table))
    Sifter(Net(), exit="last", score="reducible", reference=path, keep=0.5)
    whole = path.read_text()
    path.write_text(whole.replace('"samples": 48', '"samples": 47'))
    with pytest.raises(Damaged, match="its checksum differs"):
        ReferenceTable.load(path)
    path.write_text(whole[: len(whole) // 2])
    with pytest.raises(Damaged, match="is damaged"):
        Sifter(Net(), exit="last", score="reducible", reference=str(path), keep=0.5)
    path.write_text(json.dumps({"format": 1}))
    with pytest.raises(Damaged, match="no checksum"):
        ReferenceTable.load(path)


def test_a_table_is_held_against_scores_that_are_weighed_alike(tmp_path: Path, data: TensorDataset):
    path = tmp_path / "reference.json"
    loader = DataLoader(data, batch_size=8)
    given: dict[str, Any] = {"exit": "last", "score": "reducible", "keep": 0.5}
    ReferenceTable(torch.ones(48), tokens="HardestTokens(portion=0.1)").save(path)
    Sifter(Net(), reference=path, tokens="hardest", **given)
    with pytest.raises(ValueError, match=r"by HardestTokens\(.*0.1\), and this sifter by Mean"):
        Sifter(Net(), reference=path, **given)
    with pytest.raises(ValueError, match=r"portion=0.1.*portion=0.2.*--tokens hardest"):
        Sifter(Net(), reference=path, tokens=HardestTokens(0.2), **given)
    table = reference_losses(Net(), loader)
    assert table.tokens == "MeanOfTokens()"
    with pytest.raises(ValueError, match="make it again with the same tokens="):
        Sifter(Net(), reference=table, tokens="sum", **given)
    Sifter(Net(), reference=ReferenceTable(torch.ones(48)), tokens="sum", **given)  # not known


def test_other_data_is_refused(data: TensorDataset):
    table = reference_losses(Net(), DataLoader(data, batch_size=8))
    fewer = TensorDataset(data.tensors[0][:40], data.tensors[1][:40])
    sifter = Sifter(Net(), exit="last", score="reducible", reference=table, keep=0.5)
    with pytest.raises(
        ValueError, match="of 48 samples, and the data set has 40: it is of other data"
    ):
        next(iter(sifter(DataLoader(fewer, batch_size=8))))
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(1))
    moved = TensorDataset(data.tensors[0][order], data.tensors[1][order])
    with pytest.raises(ValueError, match=r"of other data: sample .* has other labels"):
        next(iter(sifter(DataLoader(moved, batch_size=8))))


@pytest.mark.parametrize("exit", ["last", "memory"])
def test_a_few_other_labels_are_found_within_an_epoch(data: TensorDataset, exit: str):
    """The first batch has none of them."""
    table = reference_losses(Net(), DataLoader(data, batch_size=8))
    labels = data.tensors[1].clone()
    labels[40:] = (labels[40:] + 1) % 5
    other = TensorDataset(data.tensors[0], labels)
    options = {"score": "reducible", "reference": table, "keep": 0.5, "explore": 0.5}
    given = MemoryExit() if exit == "memory" else exit
    sifter = Sifter(Net(), exit=given, **options)
    steps = 0
    with pytest.raises(ValueError, match=r"of other data: sample 4\d has other labels than when"):
        for _ in range(3):
            for _ in sifter(DataLoader(other, batch_size=4)):
                steps += 1
    assert steps > 0
    # each sample is looked at once, and the right ones pass
    table = reference_losses(Net(), DataLoader(data, batch_size=8))
    sifter = Sifter(Net(), exit="last", **{**options, "reference": table})
    for _ in range(3):
        for _ in sifter(DataLoader(data, batch_size=4)):
            pass
    assert bool(table._checked_N.all())


def test_one_other_label_is_found_when_its_sample_is_drawn(data: TensorDataset):
    table = reference_losses(Net(), DataLoader(data, batch_size=8))
    labels = data.tensors[1].clone()
    labels[47] = (labels[47] + 1) % 5  # the last of the second batch of candidates
    sifter = Sifter(Net(), exit="last", score="reducible", reference=table, keep=0.5)
    batches = iter(sifter(DataLoader(TensorDataset(data.tensors[0], labels), batch_size=12)))
    next(batches)
    with pytest.raises(ValueError, match=r"sample 47 has other labels .* as have 1 of 24 that"):
        next(batches)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"score": "reducible"}, "pass reference=, a file that sift reference wrote"),
        ({"score": "loss", "reference": "x"}, "and score='loss': leave one of them out"),
        ({"score": "reducible", "keep": "auto", "reference": "x"}, "goes with a fixed keep="),
        (
            {"score": "reducible", "policy": "proportional", "reference": "x"},
            "needs scores of at least 0",
        ),
        (
            {"score": "reducible", "exit": MemoryExit(), "reference": HeldOutReference([])},
            "has to see them: make a ReferenceTable",
        ),
    ],
)
def test_what_does_not_go_together(arguments: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        Sifter(Net(), **{"exit": "last", "keep": 0.5, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (ReferenceTable(torch.zeros(24)), "a reference table has to know which sample is which"),
        (HeldOutReference([]), "held_out= holds no batch"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_the_first_batch_not_when_warm_up_ends(
    reference: Reference, message: str
):
    stream = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(3)]
    options = {"score": "reducible", "reference": reference, "keep": 0.5, "warmup_steps": 99}
    sifter = Sifter(nn.Linear(4, 3), exit="last", **options)
    with pytest.raises(ValueError, match=message):
        next(iter(sifter(stream)))


def test_a_table_that_was_used_before_is_held_against_other_data_anew():
    torch.manual_seed(0)
    x, y = torch.randn(24, 4), torch.randint(3, (24,))
    table = reference_losses(nn.Linear(4, 3), DataLoader(TensorDataset(x, y), 8))

    def run(labels: torch.Tensor) -> None:
        options = {"score": "reducible", "reference": table, "keep": 0.5}
        sifter = Sifter(nn.Linear(4, 3), exit="last", **options)
        for _ in sifter(DataLoader(TensorDataset(x, labels), 8)):
            pass

    run(y)
    with pytest.raises(ValueError, match="the reference is of other data"):
        run((y + 1) % 3)
