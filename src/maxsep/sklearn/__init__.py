"""A scikit-learn classifier: a small network and a head, for pipelines, grid searches and calibrators."""

try:
    from maxsep.sklearn.classifier import MaxSeparationClassifier
except ImportError as error:
    if (error.name or "").partition(".")[0] not in ("numpy", "sklearn"):
        raise
    hint = 'pip install -U ".[sklearn]" in the clone of maxsep'
    raise ImportError(f"maxsep.sklearn needs scikit-learn 1.6 or later: {hint}") from error

__all__ = ["MaxSeparationClassifier"]
