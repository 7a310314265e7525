"""Byte tokens of a text, by global sample number.

Micro-batch m of step s is a pure function of (text, seed, s, m): any replica, in any
incarnation, of any layout, gets the same tokens. That is what keeps the loss curve of
every recovery equal to the undisturbed run's.
"""

from trainer.data.samples import Corpus, load_corpus, micro_batch_samples

__all__ = ["Corpus", "load_corpus", "micro_batch_samples"]
