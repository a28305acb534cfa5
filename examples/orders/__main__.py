"""Run the demo: `python examples/orders`, or `python -m examples.orders` from the project."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

# The modules here import each other by plain names, as the modules beside any definition file do:
# a `call` is looked up from the folder of the file that says it. The second way to start the demo
# does not put that folder on the path.
HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)

sys.exit(importlib.import_module("demo").main())
