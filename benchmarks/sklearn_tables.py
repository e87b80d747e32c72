"""Is MaxSeparationClassifier with its defaults as good as a scaled MLPClassifier on the tables of scikit-learn?

Five tables, repeated stratified folds; all classifiers of a fold get the same rows and seed. `adam` is the default of
MaxSeparationClassifier, `adam, plain` the same with an ordinary last layer, `sgd` the default of maxsep 0.1. Intervals
of differences to the MLP are those of Nadeau and Bengio (Inference for the Generalization Error, Machine Learning,
2003), because folds share training rows. Rate and weight decay of Adam were chosen on other folds (split seed 1000).

    python benchmarks/sklearn_tables.py            # about 6 minutes of one core, writes results/sklearn.json
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import sklearn
import torch
from scipy import stats
from sklearn import datasets
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from sklearn.model_selection import RepeatedStratifiedKFold
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from maxsep.lab.environment import commit, hardware, versions
from maxsep.sklearn import MaxSeparationClassifier

SPLITS = 5
SGD = {"optimiser": "sgd", "learning_rate": 0.1, "weight_decay": 1e-4}
ARMS = {
    "mlp": lambda seed: make_pipeline(StandardScaler(), MLPClassifier(random_state=seed)),
    "adam": lambda seed: MaxSeparationClassifier(random_state=seed),
    "adam, plain": lambda seed: MaxSeparationClassifier(head="plain", random_state=seed),
    "sgd": lambda seed: MaxSeparationClassifier(random_state=seed, **SGD),
}


def diabetes_in_four_bins():
    x, y = datasets.load_diabetes(return_X_y=True)
    return x, np.digitize(y, np.quantile(y, [0.25, 0.5, 0.75]))


TABLES = {
    "digits": lambda: datasets.load_digits(return_X_y=True),
    "wine": lambda: datasets.load_wine(return_X_y=True),
    "breast cancer": lambda: datasets.load_breast_cancer(return_X_y=True),
    "iris": lambda: datasets.load_iris(return_X_y=True),
    "diabetes in four bins": diabetes_in_four_bins,
}


def corrected_interval(differences):
    """Return mean, low and high of a 95 % interval; every fold tests a share 1 / SPLITS of the rows."""
    count = len(differences)
    error = differences.std(ddof=1) * math.sqrt(1 / count + 1 / (SPLITS - 1))
    mean, half = differences.mean(), stats.t.ppf(0.975, count - 1) * error
    return [round(float(number), 5) for number in (mean, mean - half, mean + half)]


def rows_of(table, repeats):
    """Return a row for every classifier: mean log-loss and accuracy, differences to the MLP, seconds per fit."""
    x, y = TABLES[table]()
    scores, seconds = {arm: [] for arm in ARMS}, dict.fromkeys(ARMS, 0.0)
    folds = RepeatedStratifiedKFold(n_splits=SPLITS, n_repeats=repeats, random_state=0)
    for seed, (train, test) in enumerate(folds.split(x, y)):
        for arm, build in ARMS.items():
            start = time.process_time()
            probabilities = build(seed).fit(x[train], y[train]).predict_proba(x[test])
            seconds[arm] += time.process_time() - start
            scores[arm].append((log_loss(y[test], probabilities), (probabilities.argmax(1) == y[test]).mean()))
    rows = []
    for arm, values in scores.items():
        loss, accuracy = np.array(values).T
        baseline = np.array(scores["mlp"]).T
        means = {"log_loss": round(float(loss.mean()), 5), "accuracy": round(float(accuracy.mean()), 5)}
        row = {"table": table, "classifier": arm} | means
        row["log_loss_minus_mlp"] = corrected_interval(loss - baseline[0]) if arm != "mlp" else None
        row["accuracy_minus_mlp"] = corrected_interval(accuracy - baseline[1]) if arm != "mlp" else None
        rows.append(row | {"cpu_seconds_per_fit": round(seconds[arm] / len(values), 3)})
        print(rows[-1], flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--out", type=Path, default=Path("results/sklearn.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    threadpool_limits(1)  # of numpy, which the MLP uses
    warnings.simplefilter("ignore", ConvergenceWarning)  # MLPClassifier ends at its 200 iterations on all tables
    started = time.process_time()
    rows = [row for table in options.tables for row in rows_of(table, options.repeats)]
    about = {
        "command": " ".join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(Path(__file__).parent),
        "versions": versions() | {"scikit-learn": sklearn.__version__},
        "hardware": hardware(torch.device("cpu")),
        "cpu_seconds": round(time.process_time() - started),
    }
    settings = {
        "folds": f"{SPLITS} stratified folds, {options.repeats} times",
        "interval": "mean, low, high of the paired difference; 95 %, corrected for the overlap of training folds",
        "defaults": {name: str(value) for name, value in MaxSeparationClassifier().get_params().items()},
        "sgd": SGD,
    }
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    head = json.dumps({"about": about, "settings": settings}, indent=1)[:-2]
    options.out.write_text(f'{head},\n "rows": [\n{lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
