"""Corpora: files of texts through an entry's graph, on Ray Data.

    storage    files and folders, here or behind a URL
    corpus     which files a job reads, and whether they have the columns
    reading    their rows, cut into parts
    answers    a part's rows with what the entry answers
    parts      a part on its way into the output folder, and those that are there
    record     job.json: whose the folder is, and whether the job is done
    engine     Ray Data: readers, one actor for each group of cores
    job        the whole way

A job is cut into parts in one way, which depends on its input and on nothing else. Each becomes one Parquet
file, written beside and renamed into place. So a part is whole or absent, writing it twice changes nothing,
and a job that is started again leaves out those that are there. Ray Data's own checkpoints keep the ids of
rows in memory, name their files at random and know nothing of the job that wrote them.

Needs the extra `batch` and an ONNX Runtime. Importing this package imports none of them.
"""

PART_ROWS = 1024
"""How many rows a part has at most, unless a job says it: few, so that workers end together."""

EXTRAS = "batch,cpu"
"""What of this package's extras a job needs."""
