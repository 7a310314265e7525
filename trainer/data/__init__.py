"""Tokens of a text or an indexed dataset, by global sample number.

Micro-batch m of step s is a pure function of (data, seed, s, m): any replica, in any
incarnation, of any layout, gets the same tokens. That is what keeps the loss curve of
every recovery equal to the undisturbed run's.
"""

from trainer.data.samples import Corpus, load_corpus, micro_batch_samples

__all__ = ["Corpus", "load_corpus", "micro_batch_samples"]
