"""Maximum class separation for any PyTorch classifier, in one fixed matrix and O(C) time."""

import os
import signal
import sys
import warnings

# the program, also as `python -m maxsep`: importing torch takes seconds, and Ctrl-C is no error of it
is_program = os.path.basename(sys.argv[0]) == "maxsep" or (sys.argv[0] == "-m" and "maxsep" in sys.orig_argv)  # noqa: PTH119
if is_program and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    interrupted = b"maxsep: interrupted; the same command resumes\n"
    signal.signal(signal.SIGINT, lambda *_: (os.write(2, interrupted), os._exit(130)))
del is_program

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Failed to initialize NumPy")  # torch's, where numpy is missing: it is not needed
    from maxsep import analysis as analysis
    from maxsep import detect as detect
    from maxsep import losses as losses
    from maxsep.heads import MaxSeparation, MaxSeparationHead
    from maxsep.ops import separate
    from maxsep.simplex import simplex
    from maxsep.surgery import attach, fold, grow, load, save

__version__ = "0.2.0"

__all__ = ["MaxSeparation", "MaxSeparationHead", "attach", "fold", "grow", "load", "save", "separate", "simplex"]
