"""The random state that is compared between replicas and goes from a donor to a joiner."""

import torch

from trainer.checkpoint import rng

CPU = torch.device("cpu")


def test_one_number_drawn_is_seen_and_a_joiner_draws_what_its_donor_would_have() -> None:
    torch.manual_seed(7)
    donor = rng.drawn(CPU)
    wanted = torch.rand(8)
    assert not torch.equal(rng.drawn(CPU), donor), "it has moved"
    torch.manual_seed(99)
    rng.draw_from(donor, CPU)
    assert torch.equal(rng.drawn(CPU), donor)
    assert torch.equal(torch.rand(8), wanted)


def test_it_is_of_one_size_so_that_it_fits_into_a_joiners_tensor() -> None:
    sizes = set()
    for draws in (0, 1, 1000):
        torch.rand(draws)
        sizes.add(rng.drawn(CPU).numel())
    assert len(sizes) == 1
