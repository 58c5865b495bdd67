from __future__ import annotations

import pickle
from typing import Any

import pytest

from gpu_admission.guards import classify


def error_of(module: str, name: str, *bases: type, text: str = "") -> BaseException:
    """An exception as ``module`` would raise it."""
    kind: Any = type(name.rpartition(".")[2], bases or (Exception,), {"__module__": module})
    kind.__qualname__ = name
    error: BaseException = kind(text)
    return error


OOM = [
    MemoryError(),
    error_of("numpy._core._exceptions", "_ArrayMemoryError", MemoryError),
    error_of("torch", "OutOfMemoryError", RuntimeError, text="anything"),
    error_of("torch.cuda", "OutOfMemoryError", RuntimeError, text="anything"),
    RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 23.69 GiB total capacity)"),
    RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("XPU out of memory. Tried to allocate 64.00 GiB."),
    RuntimeError("MPS backend out of memory (MPS allocated: 18.02 GB, other allocations: 80.00 MB)"),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    error_of("torch", "AcceleratorError", RuntimeError, text="CUDA error: out of memory"),
    RuntimeError("CUDA driver error: out of memory"),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you"
    ),
    RuntimeError(
        "[enforce fail at CPUAllocator.cpp:76] data. DefaultCPUAllocator: not enough memory: you tried"
    ),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cublas runtime error : resource allocation failed at /pytorch/aten/THCGeneral.cpp:216"),
    error_of(
        "jaxlib.xla_extension",
        "XlaRuntimeError",
        RuntimeError,
        text="RESOURCE_EXHAUSTED: Out of memory while trying to allocate 68719476736 bytes.",
    ),
    error_of("jax.errors", "JaxRuntimeError", RuntimeError, text="RESOURCE_EXHAUSTED: Attempting to reserve"),
    error_of(
        "onnxruntime.capi.onnxruntime_pybind11_state",
        "RuntimeException",
        text="[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while "
        "running Conv node. Status Message: bfc_arena.cc:368 void* "
        "onnxruntime::BFCArena::AllocateRawInternal(size_t, bool) "
        "Failed to allocate memory for requested buffer of size 536870912",
    ),
    error_of(
        "onnxruntime.capi.onnxruntime_pybind11_state",
        "Fail",
        text="CUDA failure 2: out of memory ; GPU=0 ; expr=cudaMalloc((void**)&p, size);",
    ),
    error_of(
        "tensorflow.python.framework.errors_impl",
        "ResourceExhaustedError",
        text="OOM when allocating tensor with shape[64,512] and type float",
    ),
    error_of(
        "cupy.cuda.memory",
        "OutOfMemoryError",
        MemoryError,
        text="Out of memory allocating 8,589,934,592 bytes",
    ),
    error_of(
        "cupy_backends.cuda.api.runtime",
        "CUDARuntimeError",
        RuntimeError,
        text="cudaErrorMemoryAllocation: out",
    ),
    error_of(
        "numba.cuda.cudadrv.driver",
        "CudaAPIError",
        text="[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY",
    ),
]

FAULTS = [
    RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be"),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: unspecified launch failure"),
    RuntimeError("CUDA error: uncorrectable ECC error encountered"),
    RuntimeError("CUDA error: unknown error"),
    RuntimeError("HIP error: an illegal memory access was encountered"),
    error_of("torch", "AcceleratorError", RuntimeError, text="CUDA error: misaligned address"),
    error_of(
        "jaxlib._jax",
        "XlaRuntimeError",
        RuntimeError,
        text="INTERNAL: Failed to synchronize: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was",
    ),
    error_of(
        "onnxruntime.capi.onnxruntime_pybind11_state",
        "Fail",
        text="CUDA failure 700: an illegal memory access was encountered ; GPU=0",
    ),
    error_of(
        "cupy_backends.cuda.api.runtime",
        "CUDARuntimeError",
        RuntimeError,
        text="cudaErrorAssert: device-side assert triggered",
    ),
]

NEITHER = [
    ValueError("the user wrote: CUDA out of memory. Tried to allocate 20 GiB"),
    RuntimeError("bad prompt: 'CUDA out of memory. Tried to allocate'"),
    RuntimeError("no answer: CUDA error: device-side assert triggered, said the user"),
    KeyError("out of memory"),
    RuntimeError("CUDA error: invalid device ordinal"),
    RuntimeError("CUDA error: no kernel image is available for execution on the device"),
    RuntimeError("Expected all tensors to be on the same device"),
    error_of("jaxlib.xla_extension", "XlaRuntimeError", RuntimeError, text="INVALID_ARGUMENT: Shapes"),
    error_of("onnxruntime.capi.onnxruntime_pybind11_state", "InvalidArgument", text="Got invalid dimensions"),
    TimeoutError(),
    KeyboardInterrupt(),
    # C4: what a client wrote, in the text of a library's error
    *(
        error_of("onnxruntime.capi.onnxruntime_pybind11_state", "InvalidArgument", text=text)
        for text in (
            "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Invalid input name: CUDA_ERROR_ILLEGAL_ADDRESS",
            "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got 'CUDA failure 2: out of memory'",
        )
    ),
    error_of(
        "onnxruntime.capi.onnxruntime_pybind11_state",
        "RuntimeException",
        text="[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running "
        "Tokenizer node. Name:'t' Status Message: no token for 'CUDA failure 700: an illegal memory access "
        "was encountered'",
    ),
    error_of(
        "tensorflow.python.framework.errors_impl",
        "InvalidArgumentError",
        text="no such key: RESOURCE_EXHAUSTED: CUDA_ERROR_ASSERT",
    ),
    error_of(
        "jaxlib.xla_extension",
        "XlaRuntimeError",
        RuntimeError,
        text="INVALID_ARGUMENT: 'Failed to x: CUDA_ERROR_ASSERT'",
    ),
    error_of("cupy.cuda.compiler", "CompileException", text="<source>: cudaErrorAssert: device-side assert"),
    error_of("numba.core.errors", "TypingError", text="name 'CUDA_ERROR_OUT_OF_MEMORY' is not defined"),
]


def ids(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__name__}"


@pytest.mark.parametrize("error", OOM, ids=ids)
def test_running_out_of_memory_is_known_in_every_librarys_words(error: BaseException) -> None:
    assert classify(error) == "oom"


@pytest.mark.parametrize("error", FAULTS, ids=ids)
def test_a_poisoned_context_is_a_fault(error: BaseException) -> None:
    assert classify(error) == "fault"


@pytest.mark.parametrize("error", NEITHER, ids=ids)
def test_other_errors_and_users_words_are_neither(error: BaseException) -> None:
    assert classify(error) is None


def raised(error: BaseException, cause: BaseException, *, quietly: bool = False) -> BaseException:
    """``error``, as it is after it was raised while ``cause`` was handled."""
    try:
        try:
            raise cause
        except BaseException as first:
            if quietly:
                raise error from None
            raise error from first
    except BaseException as second:
        return second


def test_what_an_exception_wraps_counts() -> None:
    oom = RuntimeError("CUDA out of memory. Tried")
    assert classify(raised(ValueError("generation failed"), oom)) == "oom"
    assert classify(raised(TypeError("x"), raised(KeyError("y"), oom))) == "oom"


def test_what_was_being_handled_counts_unless_it_was_hidden() -> None:
    handling = ValueError("clean-up failed")
    handling.__context__ = MemoryError()
    assert classify(handling) == "oom"
    assert classify(raised(ValueError("handled"), MemoryError(), quietly=True)) is None


def test_members_of_groups_count() -> None:
    group = ExceptionGroup("two", [ValueError("x"), ExceptionGroup("inner", [MemoryError()])])
    assert classify(group) == "oom"
    assert classify(BaseExceptionGroup("one", [KeyboardInterrupt()])) is None


def test_a_fault_wins_over_out_of_memory() -> None:
    fault = RuntimeError("CUDA error: device-side assert triggered")
    assert classify(raised(MemoryError(), fault)) == "fault"
    assert classify(ExceptionGroup("both", [MemoryError(), fault])) == "fault"


def test_a_ring_of_causes_ends() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert classify(first) is None


def test_an_endless_chain_is_followed_only_so_far() -> None:
    error: BaseException = MemoryError()
    for _ in range(200):
        outer = ValueError("x")
        outer.__cause__ = error
        error = outer
    assert classify(error) is None


def test_an_exception_without_a_text_is_no_crash() -> None:
    class Mute(RuntimeError):
        def __str__(self) -> str:
            raise TypeError("no text")

    assert classify(Mute()) is None


def test_the_real_torch_on_cpu() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert classify(caught.value) == "oom"
    with pytest.raises(RuntimeError) as caught:
        torch.zeros(2) @ torch.zeros(3)
    assert classify(caught.value) is None
    assert classify(torch.OutOfMemoryError("x")) == "oom"


def test_the_real_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(MemoryError) as caught:
        numpy.empty(2**58)
    assert classify(pickle.loads(pickle.dumps(MemoryError(str(caught.value))))) == "oom"
    assert classify(caught.value) == "oom"


@pytest.mark.gpu
def test_the_real_torch_on_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**45, dtype=torch.uint8, device="cuda")
    assert classify(caught.value) == "oom"


_ORT = "onnxruntime.capi.onnxruntime_pybind11_state"
_SAID = "CUDA error: an illegal memory access was encountered"


@pytest.mark.parametrize(
    "error",
    [
        error_of(
            _ORT,
            "RuntimeException",
            text="[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running "
            "BertTokenizer node. Name:'a' Status Message: bert_tokenizer.cc:3 bad input CUDA failure 700: an "
            "illegal memory access was encountered",
        ),
        error_of(
            "jaxlib.xla_extension",
            "XlaRuntimeError",
            RuntimeError,
            text="INTERNAL: Failed to parse prompt text: CUDA_ERROR_ILLEGAL_ADDRESS",
        ),
        error_of("cupy.cuda.compiler", "CompileException", text="CUDA_ERROR_ILLEGAL_ADDRESS"),
        NotImplementedError(_SAID),
        RecursionError(_SAID),
        error_of("httpx", "RemoteProtocolError", RuntimeError, text=_SAID),
        error_of("tritonclient.utils", "InferenceServerException", text=_SAID),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_an_error_of_another_kind_quotes_closes_no_device(error: BaseException) -> None:
    assert classify(error) is None


@pytest.mark.parametrize(
    "error",
    [
        error_of(
            _ORT,
            "Fail",
            text="[ONNXRuntimeError] : 1 : FAIL : "
            "/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_call.cc:121 "
            "std::conditional_t<THRW, void, Status> onnxruntime::CudaCall(ERRTYPE) CUDA failure 700: "
            "an illegal memory access was encountered ; GPU=0",
        ),
        error_of(
            "jaxlib.xla_extension",
            "XlaRuntimeError",
            RuntimeError,
            text="INTERNAL: Failed to launch CUDA graph: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal access",
        ),
        error_of(
            "jaxlib.xla_extension",
            "XlaRuntimeError",
            RuntimeError,
            text="INTERNAL: Could not synchronize on CUDA context: CUDA_ERROR_ILLEGAL_ADDRESS",
        ),
    ],
    ids=["onnxruntime", "graph", "synchronize"],
)
def test_what_such_libraries_say_of_the_driver_itself_does(error: BaseException) -> None:
    assert classify(error) == "fault"
