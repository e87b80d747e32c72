"""`python -m maxsep`, for where the package is not installed."""

from maxsep.cli import main

main()
