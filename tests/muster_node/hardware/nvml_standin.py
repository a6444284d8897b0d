"""A stand-in for NVML, and what tests do with the GPUs behind it."""

from __future__ import annotations

import queue
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml

from muster_node.hardware.nvidia.gpus import NvidiaGpus
from muster_node.hardware.seam import Fact

FIELDS = {
    pynvml.NVML_FI_DEV_MEMORY_TEMP: (pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, 71),
    pynvml.NVML_FI_DEV_POWER_INSTANT: (pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, 699500),
    pynvml.NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT: (pynvml.NVML_VALUE_TYPE_SIGNED_INT, -2),
    pynvml.NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT: (pynvml.NVML_VALUE_TYPE_SIGNED_INT, 0),
    pynvml.NVML_FI_DEV_PERF_POLICY_POWER: (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 5 * 10**9),
    pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL: (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 0),
    pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: (pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, 0),
    pynvml.NVML_FI_DEV_NVLINK_GET_SPEED: (pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, 26562),
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY: (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 7),
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY: (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 0),
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC: (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 0),
}
THROTTLED_NS = (0, 25 * 10**7, 0)
"""By the driver, by the hardware for heat, by the power brake; nvml.h numbers the fields by version."""
THROTTLE_FIELDS_FROM = {
    "570": None, "575": 251, "580.65": 251, "580.76": None, "580.82": 269, "580.95": 269, "580.126": 269, "595": 269,
}  # fmt: skip
FIELDS_SINCE = {pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: 565}
FUNCTIONS_SINCE = {
    "nvmlDeviceGetComputeRunningProcesses": 510, "nvmlDeviceGetGraphicsRunningProcesses": 510,
    "nvmlDeviceGetCurrentClocksEventReasons": 535, "nvmlSystemGetConfComputeSettings": 550,
}  # fmt: skip
"""By the first driver (NVIDIA's change log of NVML; of processes, nvitop's pull request 89): an older one answers a
field with INVALID_ARGUMENT, and has no such function."""
NOT_ON_HOPPER = (
    pynvml.NVML_FI_DEV_C2C_LINK_COUNT,
    pynvml.NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS,
    pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS,
    pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS,
)


IDENTITY = {
    "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetSerial",
    "nvmlDeviceGetPciInfo",
}  # fmt: skip


class FakeNvml:
    """NVML as a healthy 8-GPU board answers it; ``refuse`` maps a function's name to the error that it raises.

    Handles are NVML indices. Constants and error classes are the real binding's. ``before`` is called with the name and
    the arguments of every call before its answer, and may raise instead. ``lost_after`` maps a GPU to the number of
    calls that it answers before it is lost; ``only_identity`` maps one to the error with which it refuses all calls but
    those of IDENTITY, as gpud's mocks of a GPU that needs a reset do (leptonai/gpud, pull request 1133; ``nvidia-smi``
    shows "[GPU requires reset]" for 16, and "ERR!" for 999); ``fields`` goes before FIELDS; ``fabric_version`` is the
    newest fabric structure that the driver accepts (3 since driver 580); ``encrypted`` is (ccFeature, multiGpuMode).
    Events are as the comments of nvml.h define them: ``happens`` queues one for each set with which its GPU is
    registered by then, in the order of time; a wait that finds none raises TIMEOUT.
    """

    def __init__(self, count: int = 8, links: int = 2, **answers: Any) -> None:
        self.count = count
        self.links = links
        self.fabric_version = 3
        self.encrypted = 0, 0
        self.lost_after: dict[int, int] = {}
        self.fields: dict[int, tuple[int, int]] = {}
        self.links_down: set[tuple[int, int]] = set()
        self._calls: dict[int, int] = {}
        self.event_sets: dict[str, list[Any]] = {}
        self._registered: set[tuple[int, str]] = set()
        self.refuse: dict[str, int] = {}
        self.refuse_gpu: dict[int, int] = {}
        self.only_identity: dict[int, int] = {}
        self.hang: dict[str, int | None] = {}
        self.before: Callable[[str, tuple[Any, ...]], None] = lambda name, arguments: None
        self.module_ids = [8, 6, 5, 7, 4, 2, 1, 3][:count]
        self.answers: dict[str, Any] = {
            "nvmlInit": None,
            "nvmlSystemGetDriverVersion": "580.126.09",
            "nvmlSystemGetCudaDriverVersion_v2": 12080,
            "nvmlSystemGetConfComputeState": lambda: SimpleNamespace(ccFeature=self.encrypted[0]),
            "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
            "nvmlDeviceGetSerial": lambda handle: f"165000000000{handle}",
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle:04}",
            "nvmlDeviceGetVbiosVersion": "96.00.A5.00.01",
            "nvmlDeviceGetInforomImageVersion": "G520.0200.00.05",
            "nvmlDeviceValidateInforom": None,
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=81559 * 2**20),
            "nvmlDeviceGetEccMode": [1, 1],
            "nvmlDeviceGetTotalEccErrors": 3,
            "nvmlDeviceGetRemappedRows": (0, 0, 0, 1),
            "nvmlDeviceGetCurrPcieLinkGeneration": 5,
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetCurrPcieLinkWidth": 8,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetPcieReplayCounter": 4,
            "nvmlDeviceGetEnforcedPowerLimit": 700000,
            "nvmlDeviceGetMigMode": [0, 0],
            "nvmlDeviceGetPersistenceMode": 1,
            "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId=f"00000000:{0x1B + handle:02X}:00.0"),
            "nvmlDeviceGetComputeMode": 0,
            "nvmlDeviceGetPowerManagementLimitConstraints": [200000, 700000],
            "nvmlDeviceGetPowerManagementDefaultLimit": 700000,
            "nvmlDeviceGetRepairStatus": [0, 0],
            "nvmlDeviceGetUnrepairableMemoryFlag_v1": 0,
            "nvmlDeviceGetRetiredPages": [],
            "nvmlDeviceGetRetiredPagesPendingStatus": 0,
            "nvmlDeviceGetRowRemapperHistogram": SimpleNamespace(max=2558, high=2, partial=0, low=0, none=0),
            "nvmlDeviceGetApplicationsClock": 1980,
            "nvmlDeviceGetDefaultApplicationsClock": 1755,
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetTemperature": 64,
            "nvmlDeviceGetTemperatureThreshold": lambda handle, kind: {1: 89, 2: 94}[kind],
            "nvmlDeviceGetMarginTemperature": 23,
            "nvmlDeviceGetClockInfo": 1635,
            "nvmlDeviceGetPowerUsage": 699500,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=100, memory=40),
            "nvmlDeviceGetFanSpeed": 40,
            "nvmlDeviceGetCpuAffinity": [],
            "nvmlDeviceGetCurrentClocksEventReasons": pynvml.nvmlClocksEventReasonSwPowerCap,
            "nvmlDeviceGetCurrentClocksThrottleReasons": pynvml.nvmlClocksEventReasonSwPowerCap,
            "nvmlDeviceGetComputeRunningProcesses": [],
            "nvmlDeviceGetGraphicsRunningProcesses": [],
            **answers,
        }

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or name.startswith(("nvmlClocks", "nvmlEventType")):
            return getattr(pynvml, name)

        def call(*arguments: Any) -> Any:
            self.before(name, arguments)
            if name in self.hang and self.hang[name] in (None, *arguments[:1]):
                raise Hangs
            if self._driver < FUNCTIONS_SINCE.get(name, 0):
                return self._refused(name, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
            if name in self.refuse:
                return self._refused(name, self.refuse[name])
            if arguments and name.startswith("nvmlDevice") and arguments[0] in self.refuse_gpu:
                raise pynvml.NVMLError(self.refuse_gpu[arguments[0]])
            device = arguments and name.startswith("nvmlDevice")
            if device and name not in IDENTITY and arguments[0] in self.only_identity:
                raise pynvml.NVMLError(self.only_identity[arguments[0]])
            if arguments and arguments[0] in self.lost_after and name.startswith("nvmlDevice"):
                self._calls[arguments[0]] = self._calls.get(arguments[0], 0) + 1
                if self._calls[arguments[0]] > self.lost_after[arguments[0]]:
                    raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
            return self._answer(name, *arguments)

        return call

    @property
    def _driver(self) -> int:
        return int(self.answers["nvmlSystemGetDriverVersion"].partition(".")[0])

    @staticmethod
    def _refused(name: str, code: int) -> int:
        """As the binding does: of one call it returns the error, of two it hides that a driver lacks them."""
        missing = code == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
        if name == "nvmlSystemGetConfComputeSettings" and not missing:
            return code
        if name.endswith("RunningProcesses") and missing:
            raise pynvml.NVMLLibraryMismatchError
        raise pynvml.NVMLError(code)

    def happens(self, gpu: int, code: int, instance: int = 0xFFFFFFFF) -> None:
        """An XID on a GPU, by NVML index; one before the registration is never delivered."""
        data = SimpleNamespace(
            device=gpu, eventType=pynvml.nvmlEventTypeXidCriticalError, eventData=code,
            gpuInstanceId=instance, computeInstanceId=instance,
        )  # fmt: skip
        for each, queued in self.event_sets.items():
            if (gpu, each) in self._registered:
                queued.append(data)

    def _event(self, name: str, *arguments: Any) -> Any:
        if name == "nvmlEventSetCreate":
            made = f"event set {len(self.event_sets)}"  # no GPU's handle
            self.event_sets[made] = []
            return made
        if name == "nvmlDeviceRegisterEvents":
            gpu, kinds, into = arguments
            if kinds & ~pynvml.nvmlEventTypeXidCriticalError or into not in self.event_sets:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
            self._registered.add((gpu, into))
            return None
        if name == "nvmlEventSetFree":
            del self.event_sets[arguments[0]]
            return None
        queued = self.event_sets[arguments[0]]
        if not queued:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        return queued.pop(0)

    def _answer(self, name: str, *arguments: Any) -> Any:
        if name.startswith("nvmlEventSet") or name == "nvmlDeviceRegisterEvents":
            return self._event(name, *arguments)
        if name == "nvmlDeviceGetCount":
            return self.count
        if name == "nvmlDeviceGetHandleByIndex":
            return arguments[0]
        if name == "nvmlDeviceGetModuleId":
            return self.module_ids[arguments[0]]
        if name == "nvmlDeviceGetNvLinkState":
            if arguments[1] >= self.links:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
            return int(arguments[1] != 17 and arguments not in self.links_down)
        if name == "nvmlDeviceGetFieldValues":
            return [self._field(identifier) for identifier in arguments[1]]
        if name == "nvmlDeviceGetGpuFabricInfoV":
            return self._fabric(arguments[1]._obj)
        if name == "nvmlDeviceGetGpuFabricInfo":
            return self._fabric(arguments[1]._obj)
        if name == "nvmlSystemGetConfComputeSettings":
            settings = arguments[0]._obj
            if settings.version != pynvml.nvmlSystemConfComputeSettings_v1:
                return pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
            settings.ccFeature, settings.multiGpuMode = self.encrypted
            return pynvml.NVML_SUCCESS
        if name == "nvmlDeviceGetSramEccErrorStatus":
            status = arguments[1]._obj
            if status.version != pynvml.nvmlEccSramErrorStatus_v1:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
            status.bThresholdExceeded = self.answers.get("sram_threshold", 0)
            return pynvml.NVML_SUCCESS
        answer = self.answers[name]
        return answer(*arguments) if callable(answer) else answer

    def _throttled(self, identifier: int) -> tuple[int, int]:
        driver = self.answers["nvmlSystemGetDriverVersion"]
        first = next(first for prefix, first in THROTTLE_FIELDS_FROM.items() if driver.startswith(prefix))
        if first is None or not 0 <= identifier - first < len(THROTTLED_NS):
            return pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, 0
        return pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, THROTTLED_NS[identifier - first]

    def _fabric(self, info: Any) -> int:
        state, status, summary = self.answers.get("fabric", (3, 0, 1))
        versions = {pynvml.nvmlGpuFabricInfo_v2: 2, pynvml.nvmlGpuFabricInfo_v3: 3}
        version = versions[info.version] if hasattr(info, "version") else 1
        if version > self.fabric_version:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        info.state, info.status = state, status
        uuid, clique = self.answers.get("domain", (bytes(16), 0))
        for place, byte in enumerate(uuid):
            info.clusterUuid[place] = byte
        info.cliqueId = clique
        if version == 3:
            info.healthSummary = summary
        if version >= 2:
            info.healthMask = self.answers.get("fabric_health_mask", 0)
        return int(pynvml.NVML_SUCCESS)

    def _field(self, wanted: int | tuple[int, int]) -> Any:
        identifier = wanted[0] if isinstance(wanted, tuple) else wanted
        if identifier in NOT_ON_HOPPER and identifier not in self.fields:
            return pynvml.c_nvmlFieldValue_t(nvmlReturn=pynvml.NVML_ERROR_NOT_SUPPORTED)
        if self._driver < FIELDS_SINCE.get(identifier, 0):
            return pynvml.c_nvmlFieldValue_t(nvmlReturn=pynvml.NVML_ERROR_INVALID_ARGUMENT)
        kind, value = self._throttled(identifier) if identifier in MOVED else {**FIELDS, **self.fields}[identifier]
        field = pynvml.c_nvmlFieldValue_t(valueType=kind, nvmlReturn=self.refuse.get(f"field {identifier}", 0))
        member = {1: "uiVal", 3: "ullVal", 5: "siVal"}[kind]
        setattr(field.value, member, value)
        return field


MOVED = {*range(251, 254), *range(269, 272)}
"""Fields of throttle time in some drivers, and of power smoothing (off: 0) in the others."""


class Hangs(Exception):
    """Raised by the stand-in where the real call would not return."""


def run_or_hang(worker: Any, call: Any, limit_s: float) -> Any:
    """What ``nvml._Worker.run`` does, at once."""
    try:
        return call()
    except Hangs:
        raise queue.Empty from None


def facts_of(gpus: NvidiaGpus) -> list[Fact]:
    return [*gpus.inventory(), *gpus.counters()]


def value_of(facts: list[Fact], name: str, device: str = "gpu0", **labels: str) -> Any:
    found = [f for f in facts if (f.name, f.device) == (name, device) and labels.items() <= f.labels.items()]
    assert found, name
    return found[0].text if found[0].value is None else found[0].value


def keyed(facts: list[Fact]) -> dict[Any, Fact]:
    """Facts by what they are about."""
    return {(fact.name, fact.device, tuple(fact.labels.items())): fact for fact in facts}
