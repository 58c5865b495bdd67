"""What an exception says about the device: out of memory, a sticky fault, or nothing.

Owns the known forms, first by type and then by how the library's own text *begins*. A match
anywhere in a text would let a client close the device: many errors quote what they were given.
No library is imported: types are known by name. What follows from it is for guards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec

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
_STICKY = (
    r"(an illegal memory access was encountered|device-side assert triggered|unspecified launch failure"
    r"|misaligned address|an illegal instruction was encountered|invalid program counter|hardware stack error"
    r"|uncorrectable (ECC|NVLink) error( \w+)*|the launch timed out and was terminated"
    r"|operation not supported on global/shared address space|unknown error)"
)
_FAULT_CODE = (
    r"CUDA_ERROR_(ILLEGAL_ADDRESS|ASSERT|LAUNCH_FAILED|ECC_UNCORRECTABLE|MISALIGNED_ADDRESS|LAUNCH_TIMEOUT"
    r"|ILLEGAL_INSTRUCTION|INVALID_PC|HARDWARE_STACK_ERROR|INVALID_ADDRESS_SPACE|NVLINK_UNCORRECTABLE)\b"
)
_OOM_CODE = r"(CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory)\b"
_ONNX = (
    r"(\[ONNXRuntimeError\] : (1 : FAIL|6 : RUNTIME_EXCEPTION|11 : EP_FAIL) : )?"
    r"(Non-zero status code returned while running \w+ node\. (Name:'[^'\n]{0,300}' )?Status Message: )?"
    r"([\w./\\-]{0,200}(cuda|rocm|hip|bfc_arena|allocator)\w{0,40}\.(cc|cu|h|cpp|cuh):\d+ [^'\"\n]{0,400}?)?"
)
"""The layers around a driver's error: a code of the runtime, the node, and the line of its source.

Only for the files that call the driver: an operator's own error (a tokenizer's) may quote its input.
"""
_XLA_STEPS = (
    r"(execute|launch|load|unload|enqueue|synchronize|allocate|copy|memcpy|memset|record|create|destroy|complete"
    r"|capture|instantiate|begin|end|query|wait|initialize|get|set|update|add)"
)


class _Library(msgspec.Struct, frozen=True):
    """How one library's errors begin."""

    modules: tuple[str, ...]
    """Module of its exceptions; empty: a plain ``RuntimeError``, as torch raises, or one of torch's own."""
    out_of_memory: re.Pattern[str]
    fault: re.Pattern[str]


def _library(*modules: str, out_of_memory: str, fault: str, flags: int = 0) -> _Library:
    return _Library(modules, re.compile(out_of_memory, flags), re.compile(fault, flags))


_LIBRARIES = (
    _library(
        "onnxruntime.",
        out_of_memory=rf"{_ONNX}(CUDA failure 2: |Failed to allocate memory for requested buffer"
        rf"|(void\* )?onnxruntime::BFCArena::AllocateRawInternal|\w+_STATUS_ALLOC_FAILED\b|{_OOM_CODE})",
        fault=rf"{_ONNX}(CUDA failure \d+: {_STICKY}|CUDA error \w+: {_STICKY}|{_FAULT_CODE})",
    ),
    _library(
        *("jaxlib.", "jax.", "tensorflow."),
        out_of_memory=rf"RESOURCE_EXHAUSTED: |OOM when allocating |{_OOM_CODE}",
        fault=r"((INTERNAL|UNKNOWN|ABORTED): )?"
        rf"(([Ff]ailed to|[Cc]ould not) {_XLA_STEPS}\b[\w -]{{0,80}}: )?{_FAULT_CODE}",
    ),
    _library(
        *(
            "cupy_backends.",
            "cupy.cuda.memory.",
            "cupy.cuda.runtime.",
            "cupy.cuda.driver.",
            "cupy.cuda.device.",
        ),
        *("numba.", "pycuda.", "pyopencl."),
        out_of_memory=rf"(\[\d+\] Call to \w+ results in )?{_OOM_CODE}|\w+ failed: out of memory\b"
        r"|\w+_STATUS_ALLOC_FAILED\b",
        fault=rf"(\[\d+\] Call to \w+ results in )?{_FAULT_CODE}|(cuda|hip)Error\w+: {_STICKY}"
        rf"|\w+ failed: {_STICKY}",
    ),
    _library(
        out_of_memory=r"(CUDA|HIP|XPU|MPS backend) out of memory[. (]"
        r"|(CUDA|HIP|XPU)( driver| runtime)? error: (\w+: )?out of memory"
        r"|\[enforce fail at [^\]]*\].{0,40}DefaultCPUAllocator: (can't allocate|not enough) memory"
        r"|((CUDA|HIP) error|cuDNN error|cuBLAS error|hipBLAS error|MIOpen error): \w+_STATUS_ALLOC_FAILED\b"
        r"|cublas runtime error : (resource allocation failed|out of memory)",
        fault=rf"(CUDA|HIP|XPU)( driver| runtime)? error: (\w+: )?{_STICKY}",
        flags=re.IGNORECASE,
    ),
)


def classify(error: BaseException) -> Verdict:
    """``"fault"``, ``"oom"`` or ``None`` for ``error``, including what it wraps and members of groups.

    A fault anywhere wins: the process will not recover from it.
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
    library = _library_of(names[0], error)
    if library is None:
        return None
    text = _text(error)
    if library.fault.match(text):
        return "fault"
    return "oom" if library.out_of_memory.match(text) else None


def _library_of(name: str, error: BaseException) -> _Library | None:
    for library in _LIBRARIES:
        if name.startswith(library.modules) if library.modules else _may_be_torchs(name, error):
            return library
    return None


def _may_be_torchs(name: str, error: BaseException) -> bool:
    """Whether it is a plain ``RuntimeError`` or torch's own, and no subclass made by someone else."""
    return name == "RuntimeError" or (name.startswith("torch.") and isinstance(error, RuntimeError))


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _text(error: BaseException) -> str:
    """At most the first 4,000 characters; an exception whose text can't be made has none."""
    try:
        return str(error)[:4000]
    except Exception:
        return ""
