"""The code of MLflow's models, which MLflow runs when it loads one. It is copied into each model."""

from mlflow.models import set_model

from lineage.serving.mlflow_model import SystemModel

set_model(SystemModel())
