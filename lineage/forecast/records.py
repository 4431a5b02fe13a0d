"""The forecast of a study: seconds, memory and disk of each stage."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class StageForecast:
    """The seconds, memory and disk of one stage."""

    seconds: float
    memory_bytes: int  # the most that its process holds at any time
    disk_bytes: int  # of its outputs


@dataclass(frozen=True)
class StudyForecast:
    """The forecasts of all stages of a study, for the machine that ran the rehearsal."""

    stages: Mapping[str, StageForecast]  # by the names of dvc.yaml: pretrain@gpt-0
    lacks_gpu: bool = False  # the study computes on a GPU, and was rehearsed on a CPU
