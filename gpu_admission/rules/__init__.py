"""Which requests are metered, and by what; ready classifiers for the settings ``lane`` and ``flow``."""

from gpu_admission.rules.classifiers import by_path, by_tokens

__all__ = ["by_path", "by_tokens"]
