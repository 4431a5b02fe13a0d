"""The code of MLflow's models: each model has a copy, which MLflow runs when it loads the model."""

from mlflow.models import set_model

from lineage.serving.mlflow_model import SystemModel

set_model(SystemModel())
