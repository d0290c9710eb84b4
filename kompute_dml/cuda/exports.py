"""Vulkan's side of sharing: memory and timeline semaphores as file descriptors."""

from __future__ import annotations

from typing import Any

import vulkan as vk

from ..errors import UnsupportedError
from ..runtime.kp_engine import translate

_ffi, _lib = vk.ffi, vk.lib
_OPAQUE_FD = 1  # VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT, and the same of semaphores
_RESULTS: dict[int, str] = _ffi.typeof("VkResult").elements


def _check(name: str, result: int) -> None:
    if result:
        raise translate(RuntimeError(_RESULTS.get(result, str(result))), name)


class Exporter:
    """Calls on the logical device that kp made. Callers hold the device's lock."""

    def __init__(self, device: int, queue: int) -> None:
        self.device = _ffi.cast("VkDevice", device)
        self._queue = _ffi.cast("VkQueue", queue)

    def memory(self, buffer: int, memory: int) -> tuple[int, int]:
        """A new file descriptor of a buffer's memory, and the bytes of the memory."""
        requirements = _ffi.new("VkMemoryRequirements *")
        _lib.vkGetBufferMemoryRequirements(
            self.device, _ffi.cast("VkBuffer", buffer), requirements)
        fd = self._fd("vkGetMemoryFdKHR", _ffi.new("VkMemoryGetFdInfoKHR *", {
            "sType": vk.VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR,
            "memory": _ffi.cast("VkDeviceMemory", memory), "handleType": _OPAQUE_FD,
        }))
        return fd, int(requirements.size)

    def _fd(self, name: str, info: object) -> int:
        address = _lib.vkGetDeviceProcAddr(self.device, name.encode())
        if address == _ffi.NULL:
            raise UnsupportedError(f"kompute_dml.cuda: Vulkan's driver has no {name}")
        fd = _ffi.new("int *")
        _check(name, _ffi.cast(f"PFN_{name}", address)(self.device, info, fd))
        return int(fd[0])

    def timeline(self) -> Any:
        """A timeline semaphore at 0 that can be exported."""
        kind = _ffi.new("VkSemaphoreTypeCreateInfo *", {
            "sType": vk.VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
            "semaphoreType": vk.VK_SEMAPHORE_TYPE_TIMELINE,
        })
        exported = _ffi.new("VkExportSemaphoreCreateInfo *", {
            "sType": vk.VK_STRUCTURE_TYPE_EXPORT_SEMAPHORE_CREATE_INFO, "pNext": kind,
            "handleTypes": _OPAQUE_FD,
        })
        return self.create(exported)

    def create(self, chain: object) -> Any:
        info = _ffi.new("VkSemaphoreCreateInfo *", {
            "sType": vk.VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, "pNext": chain})
        semaphore = _ffi.new("VkSemaphore *")
        _check("vkCreateSemaphore",
               _lib.vkCreateSemaphore(self.device, info, _ffi.NULL, semaphore))
        return semaphore[0]

    def semaphore_fd(self, semaphore: object) -> int:
        """A new file descriptor of a semaphore."""
        return self._fd("vkGetSemaphoreFdKHR", _ffi.new("VkSemaphoreGetFdInfoKHR *", {
            "sType": vk.VK_STRUCTURE_TYPE_SEMAPHORE_GET_FD_INFO_KHR,
            "semaphore": semaphore, "handleType": _OPAQUE_FD,
        }))

    def destroy(self, *semaphores: object) -> None:
        """Wait for the queue, and destroy them."""
        _lib.vkDeviceWaitIdle(self.device)
        for semaphore in semaphores:
            _lib.vkDestroySemaphore(self.device, semaphore, _ffi.NULL)

    def submit(self, batch: ExportBatch) -> None:
        _check("vkQueueSubmit", _lib.vkQueueSubmit(self._queue, 1, batch.info, _ffi.NULL))


class ExportBatch:
    """A submit without commands. It signals or awaits ``value`` of a timeline semaphore.

    A signal comes after all that the queue was given before, and its memory is visible then. What
    the queue is given after a wait comes after it.
    """

    def __init__(self, semaphore: object, waits: bool) -> None:
        kind = "wait" if waits else "signal"
        self._value = _ffi.new("uint64_t *")
        self._semaphores = _ffi.new("VkSemaphore[]", [semaphore])
        self._stages = _ffi.new("VkPipelineStageFlags[]", [vk.VK_PIPELINE_STAGE_ALL_COMMANDS_BIT])
        self._timeline = _ffi.new("VkTimelineSemaphoreSubmitInfo *", {
            "sType": vk.VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
            f"{kind}SemaphoreValueCount": 1, f"p{kind.title()}SemaphoreValues": self._value,
        })
        self.info = _ffi.new("VkSubmitInfo *", {
            "sType": vk.VK_STRUCTURE_TYPE_SUBMIT_INFO, "pNext": self._timeline,
            f"{kind}SemaphoreCount": 1, f"p{kind.title()}Semaphores": self._semaphores,
        })
        if waits:
            self.info.pWaitDstStageMask = self._stages

    @property
    def value(self) -> int:
        return int(self._value[0])

    @value.setter
    def value(self, value: int) -> None:
        self._value[0] = value
