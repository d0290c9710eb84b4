"""If a constructor throws, no destructor runs, so the constructor must free its parts."""

from ..edits import Edit, after, before, replace

REPAIRS = "a tensor, algorithm, sequence or manager that could not be made leaked its parts"

_ALGORITHM = "src/include/kompute/Algorithm.hpp"


def _flag_first(kind: str, handle: str) -> list[Edit]:
    """Destroying a null handle is valid, so ownership may be claimed before the call."""
    pointer = f"this->m{kind} = std::make_shared<vk::{handle}>();\n"
    return [after("src/Tensor.cpp", pointer, f"    this->mFree{kind} = true;\n")]


EDITS = [
    *_flag_first("PrimaryBuffer", "Buffer"),
    *_flag_first("PrimaryMemory", "DeviceMemory"),
    *_flag_first("StagingBuffer", "Buffer"),
    *_flag_first("StagingMemory", "DeviceMemory"),
    replace(
        "src/Tensor.cpp",
        "    this->rebuild(data, elementTotalCount, elementMemorySize);\n",
        "    try {\n"
        "        this->rebuild(data, elementTotalCount, elementMemorySize);\n"
        "    } catch (...) {\n"
        "        this->destroy();\n"
        "        throw;\n"
        "    }\n",
    ),
    before(_ALGORITHM, "            this->rebuild(tensors,\n", "            try {\n"),
    after(
        _ALGORITHM,
        "                          specializationConstants,\n"
        "                          pushConstants);\n",
        "            } catch (...) {\n"
        "                this->destroy();\n"
        "                free(this->mPushConstantsData);\n"
        "                free(this->mSpecializationConstantsData);\n"
        "                throw;\n"
        "            }\n",
    ),
    before(
        "src/Sequence.cpp",
        "    this->createCommandPool();\n",
        "    try {\n",
    ),
    after(
        "src/Sequence.cpp",
        "1); //+1 for the first one\n",
        "    } catch (...) {\n        this->destroy();\n        throw;\n    }\n",
    ),
    replace(
        "src/Manager.cpp",
        "    this->createDevice(\n"
        "      familyQueueIndices, physicalDeviceIndex, desiredExtensions);\n",
        "    try {\n"
        "        this->createDevice(\n"
        "          familyQueueIndices, physicalDeviceIndex, desiredExtensions);\n"
        "    } catch (...) {\n"
        "        this->mInstance->destroy();\n"
        "        throw;\n"
        "    }\n",
    ),
]
