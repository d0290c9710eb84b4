"""Other interfaces, such as CUDA, share memory and semaphores of the device by its handles."""

from ..edits import after, before

REPAIRS = "the Vulkan handles of a device, its queue and a tensor's memory could not be read"

EDITS = [
    after(
        "src/include/kompute/Manager.hpp",
        "    std::shared_ptr<vk::Instance> getVkInstance() const;\n",
        "\n    /** The VkDevice and its first VkQueue. */\n"
        "    std::pair<uint64_t, uint64_t> handles() const\n"
        "    {\n"
        "        if (!this->mDevice) {\n"
        '            throw std::runtime_error("Kompute Manager was destroyed");\n'
        "        }\n"
        "        return { (uint64_t)(VkDevice)*this->mDevice,\n"
        "                 (uint64_t)(VkQueue)*this->mComputeQueues.at(0) };\n"
        "    }\n",
    ),
    after(
        "src/include/kompute/Tensor.hpp",
        "    void* rawData();\n",
        "\n    /** The VkBuffer and its VkDeviceMemory, which begins with it. */\n"
        "    std::pair<uint64_t, uint64_t> handles() const\n"
        "    {\n"
        "        if (!this->mPrimaryBuffer || !this->mPrimaryMemory) {\n"
        '            throw std::runtime_error("Kompute Tensor was destroyed");\n'
        "        }\n"
        "        return { (uint64_t)(VkBuffer)*this->mPrimaryBuffer,\n"
        "                 (uint64_t)(VkDeviceMemory)*this->mPrimaryMemory };\n"
        "    }\n",
    ),
    before(
        "python/src/main.cpp",
        '      .def("destroy", &kp::Manager::destroy,',
        '      .def("handles", &kp::Manager::handles, "The VkDevice and its first VkQueue")\n',
    ),
    before(
        "python/src/main.cpp",
        '      .def("is_init", &kp::Tensor::isInit,',
        '      .def("handles", &kp::Tensor::handles, "The VkBuffer and its VkDeviceMemory")\n',
    ),
]
