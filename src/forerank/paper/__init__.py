"""The paper's experiments, each beside the published numbers."""

from forerank.paper.experiments import EXPERIMENTS, Experiment, experiment

__all__ = ["EXPERIMENTS", "Experiment", "experiment"]
