"""Environments that grade one answer and are done."""

from collections.abc import Sequence

from nemo_rl.environments.grader_pool import GraderPool
from nemo_rl.environments.interfaces import EnvironmentInput, EnvironmentOutput
from nemo_rl.environments.settings import EnvironmentSettings


class GradedEnvironment:
    """Grades in child processes: for any grader that may be slow, hang or crash."""

    def __init__(self, grader: str, settings: EnvironmentSettings) -> None:
        self._pool = GraderPool(grader, settings.num_workers, settings.timeout_s)

    def step(self, batch: Sequence[EnvironmentInput]) -> list[EnvironmentOutput]:
        reports = self._pool.grade((item.response, item.metadata) for item in batch)
        return [
            EnvironmentOutput(
                reward=report.reward,
                metadata=item.metadata,
                status=report.status,
                answer=report.answer,
                error=report.error,
            )
            for item, report in zip(batch, reports, strict=True)
        ]

    def close(self) -> None:
        self._pool.close()


class ExactMatchEnvironment:
    """1.0 for a response that equals the ground truth but for surrounding white space. Needs no processes."""

    def __init__(self, settings: EnvironmentSettings) -> None:
        del settings

    def step(self, batch: Sequence[EnvironmentInput]) -> list[EnvironmentOutput]:
        return [self._grade(item) for item in batch]

    def _grade(self, item: EnvironmentInput) -> EnvironmentOutput:
        answer = item.response.strip()
        reward = float(answer == item.metadata["ground_truth"])
        return EnvironmentOutput(reward=reward, metadata=item.metadata, answer=answer)

    def close(self) -> None: ...
