"""The CUDA driver by ctypes: modules, launches, tensor maps, the current context.

CuPy's launch packs every argument again at each call; here a launch is one foreign call with pointers that
were made before, and the same code serves CuPy, torch and others without importing any of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator

from mla_codegen.errors import LaunchError

DRIVER_LIBRARY = "libcuda.so.1"
_SUCCESS = 0
DEVICE_ATTRIBUTE_MAJOR = 75
DEVICE_ATTRIBUTE_MINOR = 76
_POINTER_ATTRIBUTE_DEVICE = 9
_FUNCTION_MAX_DYNAMIC_SMEM = 8
_HOST_ALLOC_PORTABLE_MAPPED = 1 | 2
_MEMORY_HOST = 1
_MEMORY_DEVICE = 2
# CUDEVICE_ATTRIBUTE_MAX_PITCH of every device since compute capability 2.0.
_MAX_PITCH_BYTES = 2**31 - 1

_Handle = ctypes.c_void_p
_Address = ctypes.c_uint64
_OutHandle = ctypes.POINTER(_Handle)
_OutAddress = ctypes.POINTER(_Address)
_OutInt = ctypes.POINTER(ctypes.c_int)
_U32 = ctypes.c_uint
_SIGNATURES: dict[str, tuple[object, ...]] = {
    "cuInit": (_U32,),
    "cuDriverGetVersion": (_OutInt,),
    "cuGetErrorName": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
    "cuDeviceGetCount": (_OutInt,),
    "cuDeviceGetAttribute": (_OutInt, ctypes.c_int, ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (_OutHandle, ctypes.c_int),
    "cuCtxGetCurrent": (_OutHandle,),
    "cuCtxGetDevice": (_OutInt,),
    "cuCtxPushCurrent_v2": (_Handle,),
    "cuCtxPopCurrent_v2": (_OutHandle,),
    "cuCtxSynchronize": (),
    "cuStreamSynchronize": (_Handle,),
    "cuModuleLoadData": (_OutHandle, ctypes.c_char_p),
    "cuModuleGetFunction": (_OutHandle, _Handle, ctypes.c_char_p),
    "cuModuleGetGlobal_v2": (_OutAddress, ctypes.POINTER(ctypes.c_size_t), _Handle, ctypes.c_char_p),
    "cuFuncSetAttribute": (_Handle, ctypes.c_int, ctypes.c_int),
    "cuMemcpyDtoHAsync_v2": (ctypes.c_void_p, _Address, ctypes.c_size_t, _Handle),
    "cuMemcpy2DAsync_v2": (ctypes.c_void_p, _Handle),
    "cuMemsetD32Async": (_Address, _U32, ctypes.c_size_t, _Handle),
    "cuMemcpyHtoD_v2": (_Address, ctypes.c_void_p, ctypes.c_size_t),
    "cuMemHostAlloc": (_OutHandle, ctypes.c_size_t, _U32),
    "cuMemHostGetDevicePointer_v2": (_OutAddress, _Handle, _U32),
    "cuTensorMapEncodeTiled": (
        *(ctypes.c_void_p, ctypes.c_int, _U32, _Address),
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
        *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int),
    ),
}


class _Memcpy2D(ctypes.Structure):
    """CUDA_MEMCPY2D of cuda.h."""

    _fields_ = (
        ("source_x_bytes", ctypes.c_size_t),
        ("source_y", ctypes.c_size_t),
        ("source_type", ctypes.c_int),
        ("source_host", ctypes.c_void_p),
        ("source_device", _Address),
        ("source_array", _Handle),
        ("source_pitch", ctypes.c_size_t),
        ("target_x_bytes", ctypes.c_size_t),
        ("target_y", ctypes.c_size_t),
        ("target_type", ctypes.c_int),
        ("target_host", ctypes.c_void_p),
        ("target_device", _Address),
        ("target_array", _Handle),
        ("target_pitch", ctypes.c_size_t),
        ("width_bytes", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


class Driver:
    """libcuda, ready for calls; every failure is a LaunchError that names the call and the driver's error.

    `launch_kernel`, `read_context` and `replace_address` give the status. They have no signatures, by which
    ctypes would convert every argument at every call: handles and addresses must be ctypes objects, made
    before; other numbers may be ints.
    """

    def __init__(self) -> None:
        """Loads and initialises the driver; LaunchError where this machine has none."""
        help_text = "run on a machine with an NVIDIA GPU and driver, or load with backend='emulator'"
        try:
            self._library = ctypes.CDLL(DRIVER_LIBRARY)
        except OSError as error:
            message = f"no CUDA driver: {DRIVER_LIBRARY} cannot be loaded"
            raise LaunchError.single("no-driver", message, help=help_text) from error
        for name, argument_types in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.argtypes = argument_types
            function.restype = ctypes.c_int
        status = self._library.cuInit(0)
        if status != _SUCCESS:
            message = f"no usable GPU: cuInit gave {self.error_name(status)}"
            raise LaunchError.single("no-device", message, help=help_text)
        self._contexts: dict[int, int] = {}
        self.encode_tiled = self._library.cuTensorMapEncodeTiled
        # A look-up by [] makes a function of its own, without the signature. A launch may wait for room in
        # the queue and must let other threads run; those that never wait keep Python's lock.
        self.launch_kernel = self._library["cuLaunchKernel"]
        holding_the_lock = ctypes.PyDLL(DRIVER_LIBRARY)
        self.read_context = holding_the_lock["cuCtxGetCurrent"]
        self.replace_address = holding_the_lock["cuTensorMapReplaceAddress"]
        self._read_pointer = holding_the_lock["cuPointerGetAttribute"]

    def error_name(self, status: int) -> str:
        text = ctypes.c_char_p()
        if self._library.cuGetErrorName(status, ctypes.byref(text)) != _SUCCESS or text.value is None:
            return f"CUresult {status}"
        return text.value.decode()

    def check(self, what: str, status: int) -> None:
        """LaunchError where `status` is not success."""
        if status != _SUCCESS:
            raise LaunchError.single("driver-failed", f"{what} gave {self.error_name(status)}")

    def device_count(self) -> int:
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def compute_capability(self, device: int) -> tuple[int, int]:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(major), DEVICE_ATTRIBUTE_MAJOR, device)
        self._call("cuDeviceGetAttribute", ctypes.byref(minor), DEVICE_ATTRIBUTE_MINOR, device)
        return major.value, minor.value

    def current_device(self) -> int:
        """The device of the calling thread's context; 0 where it has none yet."""
        if self.current_context() == 0:
            return 0
        device = ctypes.c_int()
        self._call("cuCtxGetDevice", ctypes.byref(device))
        return device.value

    def pointer_device(self, pointer: int) -> int:
        """The device on which memory was allocated."""
        device = ctypes.c_int(-1)
        status = self._read_pointer(ctypes.byref(device), _POINTER_ATTRIBUTE_DEVICE, _Address(pointer))
        if status != _SUCCESS:
            self.check("cuPointerGetAttribute", status)
        return device.value

    def current_context(self) -> int:
        """The calling thread's context; 0 where it has none."""
        context = _Handle()
        self.read_context(ctypes.byref(context))
        return context.value or 0

    def primary_context(self, device: int) -> int:
        """The context that CuPy and torch use on `device`; kept for the life of the process."""
        if device not in self._contexts:
            context = _Handle()
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            assert context.value is not None, "the driver gave a null context"
            self._contexts[device] = context.value
        return self._contexts[device]

    @contextlib.contextmanager
    def on_device(self, device: int) -> Iterator[None]:
        """Makes `device` the current one and restores what was current."""
        context = self.primary_context(device)
        if self.current_context() == context:
            yield
            return
        self._call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            # A kernel's failure stays in the context and must not hide what is being raised: no check here.
            popped = _Handle()
            self._library.cuCtxPopCurrent_v2(ctypes.byref(popped))

    def load_module(self, cubin: bytes) -> int:
        """Module handle of a cubin in the current context."""
        module = _Handle()
        status = self._library.cuModuleLoadData(ctypes.byref(module), cubin)
        if status != _SUCCESS:
            version = ctypes.c_int()
            self._call("cuDriverGetVersion", ctypes.byref(version))
            raise LaunchError.single(
                "module-refused",
                f"the driver (CUDA {version.value // 1000}.{version.value % 1000 // 10}) refuses the cubin "
                f"with {self.error_name(status)}",
                help="use a driver at least as new as the NVRTC that compiled it, or an older NVRTC",
            )
        assert module.value is not None
        return module.value

    def function(self, module: int, name: str) -> int:
        function = _Handle()
        self._call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        assert function.value is not None
        return function.value

    def allow_dynamic_smem(self, function: int, size_bytes: int) -> None:
        self._call("cuFuncSetAttribute", function, _FUNCTION_MAX_DYNAMIC_SMEM, size_bytes)

    def global_address(self, module: int, name: str) -> int:
        address, size = _Address(), ctypes.c_size_t()
        self._call("cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(size), module, name.encode())
        return address.value

    def copy_to_host(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """Queues a copy of device memory to host address `target`."""
        self._call("cuMemcpyDtoHAsync_v2", target, source, size_bytes, stream)

    def gather_to_host(
        self, target: int, source: int, item_bytes: int, stride_bytes: int, count: int, stream: int
    ) -> None:
        """Queues a copy of `count` items that lie `stride_bytes` apart; they are packed at host `target`."""
        if count == 1 or stride_bytes > _MAX_PITCH_BYTES:
            for index in range(count):
                place = target + index * item_bytes
                self.copy_to_host(place, source + index * stride_bytes, item_bytes, stream)
            return
        request = _Memcpy2D(
            source_type=_MEMORY_DEVICE,
            source_device=source,
            source_pitch=stride_bytes,
            target_type=_MEMORY_HOST,
            target_host=target,
            target_pitch=item_bytes,
            width_bytes=item_bytes,
            height=count,
        )
        self._call("cuMemcpy2DAsync_v2", ctypes.byref(request), stream)

    def clear_words(self, target: int, words: int, stream: int) -> None:
        """Queues zeros for `words` words of device memory."""
        self._call("cuMemsetD32Async", target, 0, words, stream)

    def copy_to_device(self, target: int, data: bytes) -> None:
        self._call("cuMemcpyHtoD_v2", target, ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p), len(data))

    def mapped_host_memory(self, size_bytes: int) -> tuple[int, int]:
        """Zeroed host memory that the GPU can write: its host and its device address; never freed."""
        host, device = _Handle(), _Address()
        self._call("cuMemHostAlloc", ctypes.byref(host), size_bytes, _HOST_ALLOC_PORTABLE_MAPPED)
        assert host.value is not None
        ctypes.memset(host.value, 0, size_bytes)
        self._call("cuMemHostGetDevicePointer_v2", ctypes.byref(device), host.value, 0)
        return host.value, device.value

    def synchronize_stream(self, stream: int) -> None:
        self._call("cuStreamSynchronize", stream)

    def synchronize(self) -> int:
        """Waits for the current context; gives the driver's status, which a debug build can explain."""
        status: int = self._library.cuCtxSynchronize()
        return status

    def _call(self, name: str, *arguments: object) -> None:
        self.check(name, getattr(self._library, name)(*arguments))


@functools.cache
def the_driver() -> Driver:
    """The driver of this process, loaded at the first call."""
    return Driver()
