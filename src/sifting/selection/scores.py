"""How much a sample is worth training on, from its logits: pure functions, one value per row.

Shapes: N rows (samples, or labelled token positions), C classes, B samples of T positions.
All scores are at least 0 and grow with how much there is to learn.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

RowScore = Callable[[Tensor, Tensor | None], Tensor]


def loss(logits_NC: Tensor, labels_N: Tensor | None) -> Tensor:
    """Cross-entropy of each row: the paper's loss-based criterion.

    >>> loss(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
    tensor([0.6931])

    Labels may also be probabilities, one row of C each (soft labels, mixup).
    """
    assert labels_N is not None
    return F.cross_entropy(logits_NC.float(), labels_N, reduction="none")


def entropy(logits_NC: Tensor, labels_N: Tensor | None = None) -> Tensor:
    """Entropy of each row's prediction, in nats: the paper's entropy-based criterion.

    >>> entropy(torch.tensor([[0.0, 0.0], [2.0, 0.0]]))
    tensor([0.6931, 0.3653])

    One log-softmax, then one product: H = −Σ p·log p.
    """
    # a probability of 0 has a logarithm of −inf and must count 0, not NaN
    logp_NC = F.log_softmax(logits_NC.float(), dim=-1).clamp_min(-1e30)
    negative_N: Tensor = torch.linalg.vecdot(logp_NC.exp(), logp_NC)
    return negative_N.abs()


def margin(logits_NC: Tensor, labels_N: Tensor | None = None) -> Tensor:
    """One minus the gap between the two most probable classes: 1 is undecided, 0 is sure.

    >>> margin(torch.tensor([[0.0, 0.0, -99.0], [50.0, 0.0, 0.0]]))
    tensor([1., 0.])
    """
    z_NC = logits_NC.float()
    if z_NC.shape[-1] < 2:
        raise ValueError(
            f"score='margin' needs at least 2 classes; the logits have {z_NC.shape[-1]}"
        )
    top_N2 = z_NC.topk(2, dim=-1).values
    p_N2 = (top_N2 - z_NC.logsumexp(dim=-1, keepdim=True)).exp()
    return (1 - (p_N2[:, 0] - p_N2[:, 1])).clamp(0, 1)


def grad_norm(logits_NC: Tensor, labels_N: Tensor | None) -> Tensor:
    """Norm of the loss's gradient at the logits, ‖softmax(z) − onehot(y)‖₂.

    >>> grad_norm(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
    tensor([0.7071])

    Up to a factor common to all samples it bounds the norm of the whole gradient
    (Katharopoulos and Fleuret, 2018).
    """
    assert labels_N is not None
    p_NC = logits_NC.float().softmax(dim=-1)
    if labels_N.is_floating_point():
        return (p_NC - labels_N).square().sum(dim=-1).sqrt()
    # 1 − p_label is the sum of the others: subtracting would lose what small values there are
    others_NC = p_NC.scatter_(-1, labels_N.unsqueeze(-1), 0)
    squares_N: Tensor = torch.linalg.vecdot(others_NC, others_NC)
    return (squares_N + others_NC.sum(dim=-1).square()).sqrt()


BY_NAME: dict[str, RowScore] = {
    "loss": loss,
    "entropy": entropy,
    "margin": margin,
    "grad_norm": grad_norm,
}
NEEDS_LABELS = frozenset({"loss", "grad_norm"})


def mean_where(
    scores_N: Tensor,
    mask_BT: Tensor,
    documents_BT: Tensor | None = None,
    *,
    count: int | None = None,
) -> Tensor:
    """Mean of each sample's row scores; a sample without rows scores 0, the lowest there is.

    >>> mean_where(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([[1, 1], [0, 0], [0, 1]]).bool())
    tensor([2., 0., 5.])
    >>> mean_where(torch.tensor([1.0, 3.0, 5.0]), torch.ones(1, 3).bool(), torch.tensor([[0, 0, 1]]))
    tensor([2., 5.])

    Args:
        scores_N: one score for each true entry of the mask, in row-major order.
        mask_BT: which positions of which sample were scored.
        documents_BT: the sample of each position, where a row holds several; −1 for none.
        count: how many samples those are, where it is known.
    """
    # a dense sum instead of index_add_, whose order of addition varies on CUDA
    scores_BT = scores_N.new_zeros(mask_BT.shape).masked_scatter_(mask_BT, scores_N)
    if documents_BT is None:
        return scores_BT.sum(dim=1) / mask_BT.sum(dim=1).clamp_min(1)
    count = int(documents_BT.max()) + 1 if count is None else count
    numbers_D = torch.arange(count, device=documents_BT.device)
    theirs_DN = (documents_BT.flatten() == numbers_D[:, None]) & mask_BT.flatten()
    return (theirs_DN * scores_BT.flatten()).sum(dim=1) / theirs_DN.sum(dim=1).clamp_min(1)
