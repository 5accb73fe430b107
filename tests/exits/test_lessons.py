"""What a tuned exit can learn to predict, and what its heads are trained on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting.exits import lessons
from sifting.exits.lessons import (
    at_positions,
    check_learnable,
    check_positions,
    classes_of,
    labels_of_output,
    objective_of,
    score_rows,
    study_losses,
)
from sifting.exits.predictors import Linear, Translator
from sifting.model.parts import Part, rows_of
from sifting.model.plan import Plan
from sifting.model.sample_losses import PerSampleLoss
from sifting.model.stack import StackError
from tests.helpers.plans import Language, plan_of, text

X, Y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 4


@pytest.fixture
def plan() -> Plan:
    return plan_of(nn.Linear(3, 4), (X, Y))


def test_outputs_and_labels_are_needed_and_have_to_fit(plan: Plan) -> None:
    check_learnable(plan, (X, Y))
    with pytest.raises(ValueError, match="this model or batch gives no labels"):
        check_learnable(plan, X)
    with pytest.raises(ValueError, match="gives no logits"):
        check_learnable(replace(plan, shapes={}), (X, Y))
    with pytest.raises(ValueError, match="since they fit none of its outputs"):
        check_learnable(replace(plan, parts=()), (X, Y))
    positions = replace(plan, parts=(Part("logits", "start_positions", "classes"),))
    with pytest.raises(ValueError, match="cannot predict start_positions, whose number of classes"):
        check_learnable(positions, (X, Y))
    own = replace(plan, loss_fn=PerSampleLoss(nn.MSELoss()), shapes={"logits": (5, 4)})
    with pytest.raises(ValueError, match="one value or vector per sample"):
        check_learnable(own, (X, Y))


def test_a_head_at_every_position_has_no_vocabulary_and_a_vector_for_each(plan: Plan) -> None:
    part = Part("logits", "labels", "classes")
    assert classes_of(part, (6, 20)) == 20
    assert classes_of(Part("logits", "labels", "classes_first"), (20, 4, 4)) == 20
    wide = replace(plan, shapes={"logits": (6, lessons.MOST_CLASSES + 1)})
    with pytest.raises(StackError, match=r"one of 1025 classes at every position \(1024 at most\)"):
        check_positions(wide, part, torch.zeros(2, 6, 8), None, where="TunedExit('x')")
    hidden, labels = torch.randn(2, 6, 8), torch.zeros(2, 6).long()
    assert at_positions(part, hidden, labels, where="it").shape == (2, 6, 8)
    with pytest.raises(ValueError, match=r"it cannot predict logits at every position"):
        at_positions(part, hidden[:, :3], labels, where="it")


def test_a_head_of_its_own_is_trained_on_the_models_loss(plan: Plan) -> None:
    head = Linear(X, (4,))
    head.ready(torch.device("cpu"), 0.1)
    mean, count = objective_of(plan, "logits", head, X, Y)
    assert mean.item() == pytest.approx(F.cross_entropy(torch.zeros(8, 4), Y).item())
    assert float(count) == 8
    some = torch.where(torch.arange(8) < 3, Y, -100)
    mean, count = objective_of(plan, "logits", head, X, some)
    assert float(count) == 3, "what has no label teaches nothing"
    squares = replace(plan, parts=(Part("logits", "labels", "squares"),), shapes={"logits": (4,)})
    mean, _ = objective_of(squares, "logits", head, X, torch.ones(8, 4))
    assert mean.item() == pytest.approx(1.0)


def test_at_positions_it_learns_from_some_evenly_spaced_ones() -> None:
    model, batch = Language(), text(4)
    plan = plan_of(model, batch)
    (part,) = plan.parts
    hidden = model.table(batch["ids"]).detach()
    translator = Translator(hidden)
    translator.ready(hidden.device, 0.1)
    rows = rows_of(part, hidden, batch["labels"])
    rows = replace(rows, head=lambda x: model.head(translator(x)))
    with torch.no_grad():
        found = score_rows(plan, part, rows, "loss", translator, study=5)
        wanted = plan.losses(model(batch["ids"]), batch)
    torch.testing.assert_close(found, wanted)
    ((grads, count),) = translator.lessons
    assert count == 5
    assert any(bool(grad.any()) for grad in grads)
    with torch.no_grad():
        score_rows(plan, part, rows, "loss", translator, study=0)
    assert len(translator.lessons) == 1


def test_exact_losses_of_some_samples_teach_how_high_each_is() -> None:
    asked: list[int] = []

    def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        asked.append(len(batch[0]))
        return batch[0][:, 0]

    features = torch.randn(64, 5)
    batch = (features.clone(), torch.zeros(64).long())
    plan = plan_of(nn.Linear(5, 4), batch, losses=losses)
    head = Linear(features, (1,))
    head.ready(torch.device("cpu"), 0.05)
    asked.clear()
    for _ in range(60):
        with torch.no_grad():
            study_losses(plan, nn.Linear(5, 4), batch, head, features)
        head.step()
    assert set(asked) == {64 // lessons.EXACT_EVERY}, "a few of them"
    found = head(features).squeeze(1).detach()
    assert torch.corrcoef(torch.stack([found, features[:, 0]]))[0, 1] > 0.6


def test_labels_of_an_output_are_those_it_is_trained_on(plan: Plan) -> None:
    assert labels_of_output(plan, "logits", (X, Y)) is Y
    assert labels_of_output(plan, "another", (X, Y)) is None
    own = replace(plan, loss_fn=PerSampleLoss(F.cross_entropy))
    assert labels_of_output(own, "whatever", (X, Y)) is Y
