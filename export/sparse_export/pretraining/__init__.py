"""Pre-training: an encoder and plain texts in, an encoder with the attention that it was trained with out.

options    what can be set                    masking    which tokens are to be told, and what stands there
text       texts and documents, read          sentences  pairs of what follows and what does not
corpus     tokens on disk
models     encoders with a language model     judging    loss, perplexity and accuracies
job        what a run of it does              objectives what is minimised

The run itself, its folder and how it is resumed, is `sparse_export.training`'s.
"""

from sparse_export.pretraining.job import PretrainRecord, pretrain
from sparse_export.pretraining.options import PretrainOptions

__all__ = ["PretrainOptions", "PretrainRecord", "pretrain"]
