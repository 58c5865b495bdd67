"""``python -m gpu_admission``: the command, where scripts are not on the path."""

from __future__ import annotations

import sys

from gpu_admission.cli import main

sys.exit(main())
