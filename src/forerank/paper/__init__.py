"""The paper's experiments, each beside the published numbers."""

from forerank.paper.experiments import EXPERIMENTS, Experiment

__all__ = ["EXPERIMENTS", "Experiment"]
