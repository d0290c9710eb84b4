"""Runs a program under the Khronos validation layer and collects the layer's messages."""

from __future__ import annotations

import collections
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LAYER = "VK_LAYER_KHRONOS_validation"

# Message id -> the reason why it is allowed.
_ITS_FAULT = "older layers lose timeline semaphores that the host signals, and say that it is a bug"
ALLOWED: dict[str, str] = {
    "UNASSIGNED-VkSemaphore-state-timeout": _ITS_FAULT,
    "UNASSIGNED-VkFence-state-timeout": _ITS_FAULT,
}

_SETTINGS = """\
khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG
khronos_validation.report_flags = error,warn,perf
khronos_validation.log_filename = {log}
khronos_validation.enable_message_limit = false
"""
# Synchronization validation. Layers of Vulkan 1.4 refuse a mix of old and new names.
_SYNCHRONIZATION = {
    False: "khronos_validation.enables = "
           "VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT\n",
    True: "khronos_validation.validate_sync = true\n"
          "khronos_validation.syncval_shader_accesses_heuristic = true\n",
}
# "<id>(ERROR / SPEC): ..." of older layers, "Validation Error: [ <id> ] ..." of newer ones
_MESSAGE = re.compile(
    r"(?:Validation [\w ]+: \[ )?([A-Za-z][\w.-]*)(?:\((?:ERROR|WARN|PERF)| \])", re.ASCII
)
# An empty buffer is an error. It shows that the layer is on and that its messages arrive.
_CANARY = """
import vulkan as vk
instance = vk.vkCreateInstance(vk.VkInstanceCreateInfo(pApplicationInfo=vk.VkApplicationInfo(
    apiVersion=vk.VK_MAKE_VERSION(1, 1, 0))), None)
queue = vk.VkDeviceQueueCreateInfo(queueFamilyIndex=0, queueCount=1, pQueuePriorities=[1.0])
device = vk.vkCreateDevice(vk.vkEnumeratePhysicalDevices(instance)[0],
    vk.VkDeviceCreateInfo(queueCreateInfoCount=1, pQueueCreateInfos=[queue]), None)
buffer = vk.vkCreateBuffer(device, vk.VkBufferCreateInfo(
    size=0, usage=vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT), None)
vk.vkDestroyBuffer(device, buffer, None)
vk.vkDestroyDevice(device, None)
vk.vkDestroyInstance(instance, None)
"""


@dataclass(frozen=True)
class Outcome:
    returncode: int
    #: All messages of the layer.
    log: str

    @property
    def messages(self) -> collections.Counter[str]:
        """{message id: how often}."""
        matches = map(_MESSAGE.match, self.log.splitlines())
        return collections.Counter(match[1] for match in matches if match)

    @property
    def faults(self) -> dict[str, int]:
        return {name: count for name, count in self.messages.items() if name not in ALLOWED}


def validated(command: Sequence[str], env: Mapping[str, str], cwd: Path) -> Outcome:
    """Runs the command and all its children with the layer on."""
    with tempfile.TemporaryDirectory(prefix="kompute-dml-validation-") as scratch:
        # Each instance truncates its log, so a file would keep the messages of one only. A pipe
        # keeps all.
        pipe = Path(scratch) / "log"
        os.mkfifo(pipe)
        settings = Path(scratch) / "vk_layer_settings.txt"
        settings.write_text(_SETTINGS.format(log=pipe) + _SYNCHRONIZATION[_is_of_vulkan_1_4()])
        layered = {
            **env,
            "VK_INSTANCE_LAYERS": LAYER,
            "VK_LAYER_SETTINGS_PATH": str(settings),
        }
        # Open for reading and writing: it must neither wait for a writer nor end with the last one.
        end = os.open(pipe, os.O_RDWR)
        chunks: list[bytes] = []
        reader = threading.Thread(target=_drain, args=(end, chunks))
        reader.start()
        try:
            returncode = subprocess.run(command, env=layered, cwd=cwd).returncode
        finally:
            os.write(end, _END)
            reader.join()
            os.close(end)
    return Outcome(returncode, b"".join(chunks).removesuffix(_END).decode("utf-8", "replace"))


def _is_of_vulkan_1_4() -> bool:
    import vulkan as vk

    version: int = vk.VK_MAKE_VERSION(1, 4, 0)
    return any(layer.layerName == LAYER and layer.specVersion >= version
               for layer in vk.vkEnumerateInstanceLayerProperties())


_END = b"\0"


def _drain(end: int, chunks: list[bytes]) -> None:
    while True:
        chunks.append(os.read(end, 1 << 16))
        if chunks[-1].endswith(_END):
            return


def canary(python: str, env: Mapping[str, str], cwd: Path) -> bool:
    """Whether the layer reports a known fault. Otherwise its silence would mean nothing."""
    outcome = validated([python, "-c", _CANARY], env, cwd)
    return any(name.startswith("VUID-VkBufferCreateInfo-size") for name in outcome.messages)
