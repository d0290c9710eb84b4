"""One helper, `kp::check`, and its calls."""

from ..edits import Edit, after, before, replace

REPAIRS = "results of Vulkan calls were dropped; a failure raises '<vkCall>: <VK_RESULT>'"

_HELPER = """
#include <algorithm>
#include <cctype>
#include <stdexcept>
#include <string>

namespace kp {
/// Throws "<call>: <VK_RESULT_NAME>" unless the call succeeded.
inline void
check(vk::Result result, const char* call)
{
    if (result == vk::Result::eSuccess) {
        return;
    }
    std::string name = "VK";
    char last = 'a';
    for (char c : vk::to_string(result)) {
        if (std::isupper(c) && !std::isupper(last)) {
            name += '_';
        }
        name += static_cast<char>(std::toupper(c));
        last = c;
    }
    throw std::runtime_error(std::string(call) + ": " + name);
}
}
"""


def _wrapped(file: str, call: str, name: str) -> Edit:
    """Checks a statement that drops its result; `call` is its text up to `);`."""
    return replace(file, f"{call});", f'check({call}), "{name}");')


_MANAGER, _SEQUENCE = "src/Manager.cpp", "src/Sequence.cpp"
_ALGORITHM, _TENSOR = "src/Algorithm.cpp", "src/Tensor.cpp"

EDITS = [
    after("src/include/kompute/Core.hpp", "#include <vulkan/vulkan.hpp>\n", _HELPER),
    # Manager
    _wrapped(
        _MANAGER,
        "vk::createInstance(\n      &computeInstanceCreateInfo, nullptr, this->mInstance.get()",
        "vkCreateInstance",
    ),
    _wrapped(
        _MANAGER,
        "physicalDevice.createDevice(\n      &deviceCreateInfo, nullptr, this->mDevice.get()",
        "vkCreateDevice",
    ),
    # Tensor
    _wrapped(
        _TENSOR,
        "this->mDevice->createBuffer(&bufferInfo, nullptr, buffer.get()",
        "vkCreateBuffer",
    ),
    _wrapped(
        _TENSOR,
        "this->mDevice->allocateMemory(&memoryAllocateInfo, nullptr, memory.get()",
        "vkAllocateMemory",
    ),
    replace(
        _TENSOR,
        "this->mDevice->bindBufferMemory(*buffer, *memory, 0);",
        "check(static_cast<vk::Result>(vkBindBufferMemory(*this->mDevice, *buffer, *memory, 0)),\n"
        '          "vkBindBufferMemory");',
    ),
    replace(
        _TENSOR,
        "this->mRawData = this->mDevice->mapMemory(\n"
        "      *hostVisibleMemory, 0, bufferSize, vk::MemoryMapFlags());",
        "check(this->mDevice->mapMemory(*hostVisibleMemory, 0, bufferSize, vk::MemoryMapFlags(),\n"
        '                                   &this->mRawData), "vkMapMemory");',
    ),
    # Algorithm
    _wrapped(
        _ALGORITHM,
        "this->mDevice->createDescriptorPool(\n"
        "      &descriptorPoolInfo, nullptr, this->mDescriptorPool.get()",
        "vkCreateDescriptorPool",
    ),
    _wrapped(
        _ALGORITHM,
        "this->mDevice->createDescriptorSetLayout(\n"
        "      &descriptorSetLayoutInfo, nullptr, this->mDescriptorSetLayout.get()",
        "vkCreateDescriptorSetLayout",
    ),
    before(_ALGORITHM, "this->mDevice->allocateDescriptorSets(", "check("),
    replace(
        _ALGORITHM,
        "(&descriptorSetAllocateInfo,\n"
        "                                          this->mDescriptorSet.get());",
        "(&descriptorSetAllocateInfo,\n"
        "                                                this->mDescriptorSet.get()),\n"
        '          "vkAllocateDescriptorSets");',
    ),
    _wrapped(
        _ALGORITHM,
        "this->mDevice->createShaderModule(\n"
        "      &shaderModuleInfo, nullptr, this->mShaderModule.get()",
        "vkCreateShaderModule",
    ),
    _wrapped(
        _ALGORITHM,
        "this->mDevice->createPipelineLayout(\n"
        "      &pipelineLayoutInfo, nullptr, this->mPipelineLayout.get()",
        "vkCreatePipelineLayout",
    ),
    _wrapped(
        _ALGORITHM,
        "this->mDevice->createPipelineCache(\n"
        "      &pipelineCacheInfo, nullptr, this->mPipelineCache.get()",
        "vkCreatePipelineCache",
    ),
    replace(
        _ALGORITHM,
        "vk::Pipeline pipeline =\n"
        "      this->mDevice->createComputePipeline(*this->mPipelineCache, pipelineInfo)\n"
        "        .value;",
        "vk::Pipeline pipeline;\n"
        "    check(this->mDevice->createComputePipelines(*this->mPipelineCache, 1, &pipelineInfo,\n"
        "                                                nullptr, &pipeline), "
        '"vkCreateComputePipelines");',
    ),
    # Sequence
    _wrapped(
        _SEQUENCE,
        "this->mDevice->createCommandPool(\n"
        "      &commandPoolInfo, nullptr, this->mCommandPool.get()",
        "vkCreateCommandPool",
    ),
    before(_SEQUENCE, "this->mDevice->allocateCommandBuffers(", "check("),
    replace(
        _SEQUENCE,
        "                                          this->mCommandBuffer.get());",
        "                                          this->mCommandBuffer.get()),\n"
        '          "vkAllocateCommandBuffers");',
    ),
    replace(
        _SEQUENCE,
        "this->mCommandBuffer->begin(vk::CommandBufferBeginInfo());",
        "vk::CommandBufferBeginInfo beginInfo;\n"
        '    check(this->mCommandBuffer->begin(&beginInfo), "vkBeginCommandBuffer");',
    ),
    replace(
        _SEQUENCE,
        "this->mCommandBuffer->end();\n        this->mRecording = false;",
        "this->mRecording = false;\n"
        "        check(static_cast<vk::Result>(vkEndCommandBuffer(*this->mCommandBuffer)),\n"
        '              "vkEndCommandBuffer");',
    ),
    replace(
        _SEQUENCE,
        "std::make_shared<vk::QueryPool>(\n"
        "          this->mDevice->createQueryPool(queryPoolInfo));",
        "std::make_shared<vk::QueryPool>();\n"
        "        check(this->mDevice->createQueryPool(&queryPoolInfo, nullptr,\n"
        "                                             this->timestampQueryPool.get()),\n"
        '              "vkCreateQueryPool");',
    ),
    # A sequence whose submit failed is not running and owns no fence.
    replace(_SEQUENCE, "\n    this->mIsRunning = true;\n", ""),
    replace(
        _SEQUENCE,
        "this->mComputeQueue->submit(1, &submitInfo, this->mFence);",
        "const vk::Result submitted =\n"
        "      this->mComputeQueue->submit(1, &submitInfo, this->mFence);\n"
        "    if (submitted != vk::Result::eSuccess) {\n"
        "        this->mDevice->destroy(this->mFence);\n"
        "        this->mFence = nullptr;\n"
        "    }\n"
        '    check(submitted, "vkQueueSubmit");\n'
        "    this->mIsRunning = true;",
    ),
    after(
        _SEQUENCE,
        "    this->mIsRunning = false;\n\n",
        "    if (result != vk::Result::eTimeout) {\n"
        '        check(result, "vkWaitForFences");\n'
        "    }\n\n",
    ),
]
