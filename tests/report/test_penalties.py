"""Penalties against loops that follow the paper's sentence, gradients against the loss itself."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forerank.errors import InputError
from forerank.losses import PNPLoss
from forerank.metrics import ranking_gradients, ranking_penalties
from forerank.report import derivative, rank_query, ranking_figure, ranking_svg

BY_HAND = {
    "O": lambda r, p: 1.0,
    "Iu": lambda r, p: 1 + np.log(1 + r),
    "Iu_exact": lambda r, p: np.log(1 + r),
    "Ib": lambda r, p: r / (1 + 2 * r),
    "Ds": lambda r, p: 1 / (1 + r),
    "Dq": lambda r, p: 4 / (1 + r) ** 5,
    "Smooth-AP": lambda r, p: (1 + p) / (1 + p + r) ** 2,
}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(-8, 8), st.booleans()), min_size=1, max_size=14),
    st.sampled_from(sorted(BY_HAND)),
    st.sampled_from([None, 0.05, 0.5]),
)
def test_a_negative_pays_what_the_positives_after_it_charge(items, variant, temperature):
    similarity = np.array([value / 8 for value, _ in items])
    positive = np.array([flag for _, flag in items])
    n = len(items)

    def before(j, i):
        if temperature is None:  # on a tie: negatives first, then positives as they are given
            return float((-similarity[j], positive[j], j) < (-similarity[i], positive[i], i))
        return sigmoid((similarity[j] - similarity[i]) / temperature)

    expected = np.zeros(n)
    for j in range(n):
        for i in range(n):
            if not positive[j] and positive[i]:
                negatives = sum(before(o, i) for o in range(n) if not positive[o])
                positives = sum(before(o, i) for o in range(n) if positive[o] and o != i)
                expected[j] += before(j, i) * BY_HAND[variant](negatives, positives)
    penalties = ranking_penalties(similarity, positive, derivative(variant), temperature=temperature)
    np.testing.assert_allclose(penalties, expected, atol=1e-12)


@pytest.mark.parametrize("variant", [v for v in BY_HAND if v != "Smooth-AP"])
def test_gradients_are_those_of_the_loss(variant):
    generator = torch.Generator().manual_seed(3)
    gallery = torch.nn.functional.normalize(
        torch.randn(9, 4, generator=generator, dtype=torch.float64), dim=1
    )
    query = torch.nn.functional.normalize(torch.randn(1, 4, generator=generator, dtype=torch.float64), dim=1)
    positive = np.array([1, 0, 0, 1, 0, 1, 0, 0, 0], dtype=bool)
    similarity = (gallery @ query[0]).numpy()
    # The loss's gradient in the query: the sum over items of dL/ds_j times the item, along the sphere.
    asking = query.clone().requires_grad_()
    loss = PNPLoss(variant, temperature=0.1)(
        asking, torch.tensor([1]), ref_emb=gallery, ref_labels=torch.tensor(positive.astype(int))
    )
    loss.backward()
    slope = ranking_gradients(similarity, positive, derivative(variant), temperature=0.1)
    # Each pull on a negative is matched by one on the positives it stands before.
    step = 1e-6
    for i in np.flatnonzero(positive):

        def value(shift, i=i):
            moved = similarity.copy()
            moved[i] += shift
            counts = [
                sum(sigmoid((moved[j] - moved[p]) / 0.1) for j in np.flatnonzero(~positive))
                for p in np.flatnonzero(positive)
            ]
            return PNPLoss(variant).curve.value(torch.tensor(counts, dtype=torch.float64)).mean().item()

        slope[i] = (value(step) - value(-step)) / (2 * step)
    whole = slope @ gallery.numpy()
    tangent = whole - (whole @ query[0].numpy()) * query[0].numpy()
    np.testing.assert_allclose(asking.grad[0].numpy(), tangent, rtol=1e-4, atol=1e-7)


def test_soft_penalties_become_the_hard_ones_when_the_temperature_falls():
    similarity, positive = [0.9, 0.7, 0.5, 0.3], [False, True, False, True]
    hard = ranking_penalties(similarity, positive, derivative("Ds"))
    soft = ranking_penalties(similarity, positive, derivative("Ds"), temperature=1e-3)
    np.testing.assert_allclose(soft, hard, atol=1e-12)


def test_lists_without_positives_or_without_negatives_cost_nothing():
    assert not ranking_penalties([0.2, 0.1], [False, False], derivative("O")).any()
    assert not ranking_penalties([0.2, 0.1], [True, True], derivative("O")).any()
    assert not ranking_gradients([0.2, 0.1], [False, False], derivative("O")).any()


def test_penalties_of_a_query_count_positives_beyond_the_shown_part(run):
    whole = rank_query(run.before, run.table.label, 0, derivative("O"), shown=47)
    head = rank_query(run.before, run.table.label, 0, derivative("O"), shown=4)
    assert head.penalties.tolist() == whole.penalties[:4].tolist()
    assert head.hidden_positives == 7 - head.is_positive.sum()


def test_the_figure_is_written_as_png_and_svg_and_twice_the_same(run, tmp_path):
    ranking = rank_query(run.before, run.table.label, 3, derivative("Dq"))
    files = ranking_figure(
        ranking, tmp_path / "a" / "rank.png", run.table.files, run.table.label, "$x$ & <y>"
    )
    assert [file.suffix for file in files] == [".png", ".svg"]
    assert files[0].read_bytes().startswith(b"\x89PNG")
    again = ranking_figure(ranking, tmp_path / "b" / "rank", run.table.files, run.table.label, "$x$ & <y>")
    assert files[1].read_bytes() == again[1].read_bytes()


def test_the_fragment_draws_an_arrow_for_every_negative_before_a_positive(run):
    ranking = rank_query(run.before, run.table.label, 3, derivative("Dq"))
    flags = ranking.is_positive
    arrows = sum(int((~flags[:i]).sum()) for i in np.flatnonzero(flags))
    text = ranking_svg(ranking, lambda row: None, run.table.label)
    assert text.count('class="charge"') == arrows > 0
    assert text.count('class="bar"') == (~flags).sum()


def test_bad_input_is_refused_in_a_sentence(run):
    with pytest.raises(InputError, match="did you mean 'PNP-Dq'"):
        derivative("PNP-Dqq")
    with pytest.raises(InputError, match="same length"):
        ranking_penalties([0.1, 0.2], [True], derivative("O"))
    with pytest.raises(InputError, match="above zero"):
        ranking_penalties([0.1, 0.2], [True, False], derivative("O"), temperature=0)
    with pytest.raises(InputError, match="query 99 does not exist"):
        rank_query(run.before, run.table.label, 99, derivative("O"))
