"""Several tasks on one encoder, trained together (PAL).

task_file   the tasks and their rows, from YAML      plan        the task of each step
options     what can be set                          objectives  what a step minimises
rows        the rows of all tasks, read              judging     each task's figures, and the score
job         what a run of it does                    freezing    what stays as it is

The run itself, its folder and how it is resumed, is `sparse_export.training`'s.
"""

from sparse_export.multitask.job import MultitaskRecord, finetune_tasks
from sparse_export.multitask.options import MultitaskOptions
from sparse_export.multitask.task_file import TaskFile, read_task_file

__all__ = ["MultitaskOptions", "MultitaskRecord", "TaskFile", "finetune_tasks", "read_task_file"]
