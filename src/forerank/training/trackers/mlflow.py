"""MLflow: a run in the store that MLFLOW_TRACKING_URI names, by default a folder `mlruns` beside the run."""

import os
import time
from collections.abc import Iterable

from forerank.errors import require
from forerank.files import write_atomically
from forerank.training.trackers import Begin

# Before it is imported: it would tell its makers' server about that.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
require("mlflow")

TITLE = "MLflow"
RUN_ID = "mlflow-run-id.txt"  # in the run folder, so that a resumed run goes on in the same MLflow run
PARAMETERS_AT_ONCE = 100  # MLflow's own limit


class MLflowRun:
    """One MLflow run."""

    def __init__(self, begin: Begin) -> None:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # training waits meanwhile
        store = os.environ.get("MLFLOW_TRACKING_URI") or (begin.run.absolute().parent / "mlruns").as_uri()
        if store.startswith("file:"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._client = MlflowClient(tracking_uri=store)
        known = begin.run / RUN_ID
        if begin.step and known.is_file():
            self._id = known.read_text(encoding="utf-8").strip()
            self._client.update_run(self._id, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "forerank")
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        self._id = self._client.create_run(number, run_name=begin.run.name).info.run_id
        write_atomically(known, self._id + "\n")
        parameters = [Param(key, str(value)[:500]) for key, value in begin.values.items()]
        for start in range(0, len(parameters), PARAMETERS_AT_ONCE):
            self._client.log_batch(self._id, params=parameters[start : start + PARAMETERS_AT_ONCE])

    def add(self, scalars: Iterable[tuple[str, float]], step: int) -> None:
        """Numbers with their names, at a step."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        # MLflow allows no @ in names: recall@1 becomes recall_at_1.
        metrics = [Metric(name.replace("@", "_at_"), value, now, step) for name, value in scalars]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self) -> None:
        """Mark the run as ended; a resumed one is opened again."""
        self._client.set_terminated(self._id)


begin = MLflowRun  # what `TRACKERS` asks of a module
