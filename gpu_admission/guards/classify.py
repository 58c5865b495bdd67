"""What an exception says about the device: out of memory, a sticky fault, or nothing.

Owns the known forms, by type and by how the library's own text begins or, for types that
only such a library raises, what it holds. No library is imported: types are told by name.
An exception that quotes a user's words is neither. What follows from it is for guards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["oom", "fault"] | None

MOST_LINKS = 64
"""Exceptions looked at in one chain or group."""

_OOM_TYPES = frozenset(
    {
        "MemoryError",
        "torch.OutOfMemoryError",
        "torch.cuda.OutOfMemoryError",
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError",
    }
)
_DRIVER_LIBRARIES = (
    "jaxlib.",
    "jax.",
    "onnxruntime.",
    "tensorflow.",
    "cupy",
    "numba.",
    "pycuda.",
    "pyopencl.",
)
"""Where every exception's text is the library's own: it may hold a known form anywhere."""

_OOM_START = re.compile(
    r"(CUDA|HIP|XPU|MPS backend) out of memory[. (]"
    r"|(CUDA|HIP|XPU)( driver| runtime)? error: (\w+: )?out of memory"
    r"|\[enforce fail at [^\]]*\].{0,40}DefaultCPUAllocator: (can't allocate|not enough) memory"
    r"|((CUDA|HIP) error|cuDNN error|cuBLAS error|hipBLAS error|MIOpen error): \w+_STATUS_ALLOC_FAILED\b"
    r"|cublas runtime error : (resource allocation failed|out of memory)",
    re.IGNORECASE,
)
_OOM_ANYWHERE = re.compile(
    r"RESOURCE_EXHAUSTED|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|CUDA failure 2: "
    r"|hipErrorOutOfMemory|BFCArena::AllocateRawInternal|Failed to allocate memory for requested buffer"
    r"|\w+_STATUS_ALLOC_FAILED|OOM when allocating"
)
_STICKY = (
    r"an illegal memory access was encountered|device-side assert triggered|unspecified launch failure"
    r"|misaligned address|an illegal instruction was encountered|invalid program counter|hardware stack error"
    r"|uncorrectable (ECC|NVLink) error( \w+)*|the launch timed out and was terminated"
    r"|operation not supported on global/shared address space|unknown error"
)
_FAULT_START = re.compile(rf"(CUDA|HIP|XPU)( driver| runtime)? error: (\w+: )?({_STICKY})", re.IGNORECASE)
_FAULT_ANYWHERE = re.compile(
    rf"(CUDA_ERROR|cudaError|hipError|CUDA failure \d+)[^\n]{{0,60}}({_STICKY})"
    r"|CUDA_ERROR_(ILLEGAL_ADDRESS|ASSERT|LAUNCH_FAILED|ECC_UNCORRECTABLE|MISALIGNED_ADDRESS|LAUNCH_TIMEOUT"
    r"|ILLEGAL_INSTRUCTION|INVALID_PC|HARDWARE_STACK_ERROR|INVALID_ADDRESS_SPACE|NVLINK_UNCORRECTABLE)",
)


def classify(error: BaseException) -> Verdict:
    """``"fault"``, ``"oom"`` or ``None`` for ``error``, what it wraps, and the members of groups.

    A fault anywhere wins: it is what the process will not recover from.
    """
    verdicts = {_verdict(link) for link in _links(error)}
    if "fault" in verdicts:
        return "fault"
    return "oom" if "oom" in verdicts else None


def _links(error: BaseException) -> Iterator[BaseException]:
    """``error``, its causes, contexts and members; each once."""
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < MOST_LINKS:
        link = waiting.pop()
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        if isinstance(link, BaseExceptionGroup):
            waiting += link.exceptions
        hidden = None if link.__suppress_context__ else link.__context__
        waiting += [other for other in (link.__cause__, hidden) if other is not None]


def _verdict(error: BaseException) -> Verdict:
    names = [_name(kind) for kind in type(error).__mro__]
    if any(name in _OOM_TYPES for name in names):
        return "oom"
    text = _text(error)
    if names[0].startswith(_DRIVER_LIBRARIES):
        if _FAULT_ANYWHERE.search(text):
            return "fault"
        return "oom" if _OOM_ANYWHERE.search(text) else None
    if not isinstance(error, RuntimeError):
        return None
    if _FAULT_START.match(text):
        return "fault"
    return "oom" if _OOM_START.match(text) else None


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _text(error: BaseException) -> str:
    """At most the first 4,000 characters; an exception whose text can't be made has none."""
    try:
        return str(error)[:4000]
    except Exception:
        return ""
