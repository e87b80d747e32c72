"""What importing the estimator says where something is missing."""

import subprocess
import sys


def test_a_missing_scikit_learn_is_named():
    code = "import sys; sys.modules['sklearn'] = None; import maxsep; import maxsep.sklearn"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert told.returncode == 1
    assert told.stderr.splitlines()[-1] == (
        "ImportError: maxsep.sklearn needs scikit-learn 1.6 or later, which is missing: "
        'pip install --upgrade "maxsep[sklearn]"'
    )


def test_another_failure_to_import_is_not_blamed_on_scikit_learn():
    code = "import sys; sys.modules['maxsep.detect'] = None; import maxsep.sklearn"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "maxsep.detect" in told.stderr.splitlines()[-1]
    assert "scikit" not in told.stderr.splitlines()[-1]
