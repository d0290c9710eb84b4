"""A pipeline is made apart from its buffers, by any thread, and for one cache of the device."""

from ..edits import after, before

REPAIRS = (
    "each algorithm compiled its shader anew, with an empty pipeline cache, while no other Python "
    "thread could run"
)

_MANAGER, _ALGORITHM = "src/include/kompute/Manager.hpp", "src/include/kompute/Algorithm.hpp"

_PIPELINE = """
/// VkPipelineRobustnessCreateInfoEXT, which older headers lack.
struct PipelineRobustness
{
    VkStructureType sType = static_cast<VkStructureType>(1000068000);
    const void* pNext = nullptr;
    uint32_t storageBuffers;
    uint32_t uniformBuffers = 0;
    uint32_t vertexInputs = 0;
    uint32_t images = 0;
};

/** What an algorithm has besides its tensors: any number of algorithms may share it. */
class Pipeline
{
  public:
    /** Compiles a shader. `constants` are its specialization constants, by id. `robustness` is a
     * VkPipelineRobustnessBufferBehavior for storage buffers: 1 for no bounds checks, 2 for
     * checks. It takes the feature pipelineRobustness unless it is 0. */
    Pipeline(std::shared_ptr<vk::Device> device,
             vk::PipelineCache cache,
             const std::string& spirv,
             uint32_t bindings,
             const std::vector<uint32_t>& constants,
             uint32_t pushWords,
             uint32_t robustness);
    ~Pipeline() { this->destroy(); }

    void destroy();

    std::shared_ptr<vk::Device> device;
    vk::ShaderModule module;
    vk::DescriptorSetLayout set;
    vk::PipelineLayout layout;
    vk::Pipeline pipeline;
    uint32_t pushWords;
};

"""

_PIPELINE_BODIES = """\
Pipeline::Pipeline(std::shared_ptr<vk::Device> device,
                   vk::PipelineCache cache,
                   const std::string& spirv,
                   uint32_t bindings,
                   const std::vector<uint32_t>& constants,
                   uint32_t pushWords,
                   uint32_t robustness)
  : device(device)
  , pushWords(pushWords)
{
    try {
        const std::vector<uint32_t> words(
          reinterpret_cast<const uint32_t*>(spirv.data()),
          reinterpret_cast<const uint32_t*>(spirv.data()) + spirv.size() / 4);
        const vk::ShaderModuleCreateInfo moduleInfo(
          vk::ShaderModuleCreateFlags(), 4 * words.size(), words.data());
        check(device->createShaderModule(&moduleInfo, nullptr, &this->module),
              "vkCreateShaderModule");

        std::vector<vk::DescriptorSetLayoutBinding> setBindings;
        for (uint32_t i = 0; i < bindings; i++) {
            setBindings.push_back(
              vk::DescriptorSetLayoutBinding(i,
                                             vk::DescriptorType::eStorageBuffer,
                                             1,
                                             vk::ShaderStageFlagBits::eCompute));
        }
        const vk::DescriptorSetLayoutCreateInfo setInfo(
          vk::DescriptorSetLayoutCreateFlags(), bindings, setBindings.data());
        check(device->createDescriptorSetLayout(&setInfo, nullptr, &this->set),
              "vkCreateDescriptorSetLayout");

        const vk::PushConstantRange pushRange(
          vk::ShaderStageFlagBits::eCompute, 0, 4 * pushWords);
        const vk::PipelineLayoutCreateInfo layoutInfo(
          vk::PipelineLayoutCreateFlags(), 1, &this->set, pushWords ? 1 : 0, &pushRange);
        check(device->createPipelineLayout(&layoutInfo, nullptr, &this->layout),
              "vkCreatePipelineLayout");

        std::vector<vk::SpecializationMapEntry> entries;
        for (uint32_t i = 0; i < constants.size(); i++) {
            entries.push_back(vk::SpecializationMapEntry(i, 4 * i, 4));
        }
        const vk::SpecializationInfo specialization(static_cast<uint32_t>(entries.size()),
                                                    entries.data(),
                                                    4 * constants.size(),
                                                    constants.data());
        const vk::PipelineShaderStageCreateInfo stage(vk::PipelineShaderStageCreateFlags(),
                                                      vk::ShaderStageFlagBits::eCompute,
                                                      this->module,
                                                      "main",
                                                      &specialization);
        vk::ComputePipelineCreateInfo info(
          vk::PipelineCreateFlags(), stage, this->layout, vk::Pipeline(), 0);
        PipelineRobustness checks;
        checks.storageBuffers = robustness;
        if (robustness) {
            info.pNext = &checks;
        }
        check(device->createComputePipelines(cache, 1, &info, nullptr, &this->pipeline),
              "vkCreateComputePipelines");
    } catch (...) {
        this->destroy();
        throw;
    }
}

void
Pipeline::destroy()
{
    if (!this->device) {
        return;
    }
    this->device->destroyPipeline(this->pipeline);
    this->device->destroyPipelineLayout(this->layout);
    this->device->destroyDescriptorSetLayout(this->set);
    this->device->destroyShaderModule(this->module);
    this->device = nullptr;
}

"""

_SHARING = """
    /** Uses a pipeline that others may use, too. */
    Algorithm(std::shared_ptr<Pipeline> pipeline,
              const std::vector<std::shared_ptr<Tensor>>& tensors,
              const Workgroup& workgroup)
    {
        if (!pipeline->device || tensors.empty()) {
            throw std::runtime_error("Kompute Pipeline was destroyed, or there are no tensors");
        }
        this->mDevice = pipeline->device;
        this->mShared = pipeline;
        this->mTensors = tensors;
        this->mPushConstantsDataTypeMemorySize = sizeof(uint32_t);
        this->mPushConstantsSize = pipeline->pushWords;
        this->mPushConstantsData = calloc(pipeline->pushWords + 1, sizeof(uint32_t));
        this->setWorkgroup(workgroup, 1);
        this->mShaderModule = std::make_shared<vk::ShaderModule>(pipeline->module);
        this->mDescriptorSetLayout = std::make_shared<vk::DescriptorSetLayout>(pipeline->set);
        this->mPipelineLayout = std::make_shared<vk::PipelineLayout>(pipeline->layout);
        this->mPipelineCache = std::make_shared<vk::PipelineCache>();
        this->mPipeline = std::make_shared<vk::Pipeline>(pipeline->pipeline);
        try {
            this->createParameters();
        } catch (...) {
            this->destroy();
            free(this->mPushConstantsData);
            throw;
        }
    }

"""

_MEMBERS = """
    /** Lets all pipelines from now on share a cache, which begins with what pipelineData()
     * returned. */
    void sharePipelines(const std::string& data);

    /** What the shared cache holds, and what is in `more`, which pipelineData() returned. */
    std::string pipelineData(const std::string& more = "") const;

    /** Compiles a pipeline, in any thread. */
    std::shared_ptr<Pipeline> pipeline(const std::string& spirv,
                                       uint32_t bindings,
                                       const std::vector<uint32_t>& constants,
                                       uint32_t pushWords,
                                       uint32_t robustness);

    /** An algorithm of a pipeline that others may use, too. */
    std::shared_ptr<Algorithm> algorithm(std::shared_ptr<Pipeline> pipeline,
                                         const std::vector<std::shared_ptr<Tensor>>& tensors,
                                         const Workgroup& workgroup);
"""

_BODIES = """\
static vk::PipelineCache
newPipelineCache(const vk::Device& device, const std::string& data)
{
    const vk::PipelineCacheCreateInfo info(
      vk::PipelineCacheCreateFlags(), data.size(), data.data());
    vk::PipelineCache cache;
    check(device.createPipelineCache(&info, nullptr, &cache), "vkCreatePipelineCache");
    return cache;
}

static std::string
dataOf(const vk::Device& device, vk::PipelineCache cache)
{
    size_t size = 0;
    check(device.getPipelineCacheData(cache, &size, nullptr), "vkGetPipelineCacheData");
    // Another thread may add to it meanwhile. Then the driver leaves out what has no room.
    std::string data(size, 0);
    const vk::Result result = device.getPipelineCacheData(cache, &size, &data[0]);
    if (result != vk::Result::eIncomplete) {
        check(result, "vkGetPipelineCacheData");
    }
    data.resize(size);
    return data;
}

void
Manager::sharePipelines(const std::string& data)
{
    if (!this->mDevice) {
        throw std::runtime_error("Kompute Manager was destroyed");
    }
    if (this->mPipelineCache) {
        throw std::runtime_error("Kompute Manager shares pipelines already");
    }
    this->mPipelineCache = newPipelineCache(*this->mDevice, data);
}

std::string
Manager::pipelineData(const std::string& more) const
{
    if (!this->mDevice || !this->mPipelineCache) {
        throw std::runtime_error("Kompute Manager shares no pipelines");
    }
    const vk::Device& device = *this->mDevice;
    if (more.empty()) {
        return dataOf(device, this->mPipelineCache);
    }
    // A merge writes its target, which no other thread may use meanwhile.
    const vk::PipelineCache all = newPipelineCache(device, more);
    try {
        check(device.mergePipelineCaches(all, 1, &this->mPipelineCache),
              "vkMergePipelineCaches");
        const std::string data = dataOf(device, all);
        device.destroyPipelineCache(all);
        return data;
    } catch (...) {
        device.destroyPipelineCache(all);
        throw;
    }
}

std::shared_ptr<Pipeline>
Manager::pipeline(const std::string& spirv,
                  uint32_t bindings,
                  const std::vector<uint32_t>& constants,
                  uint32_t pushWords,
                  uint32_t robustness)
{
    if (!this->mDevice) {
        throw std::runtime_error("Kompute Manager was destroyed");
    }
    auto made = std::make_shared<Pipeline>(
      this->mDevice, this->mPipelineCache, spirv, bindings, constants, pushWords, robustness);
    const std::lock_guard<std::mutex> lock(this->mPipelinesMutex);
    this->mManagedPipelines.erase(
      std::remove_if(this->mManagedPipelines.begin(),
                     this->mManagedPipelines.end(),
                     [](const std::weak_ptr<Pipeline>& p) { return p.expired(); }),
      this->mManagedPipelines.end());
    this->mManagedPipelines.push_back(made);
    return made;
}

std::shared_ptr<Algorithm>
Manager::algorithm(std::shared_ptr<Pipeline> pipeline,
                   const std::vector<std::shared_ptr<Tensor>>& tensors,
                   const Workgroup& workgroup)
{
    if (!this->mDevice) {
        throw std::runtime_error("Kompute Manager was destroyed");
    }
    auto made = std::make_shared<Algorithm>(pipeline, tensors, workgroup);
    this->mManagedAlgorithms.push_back(made);
    return made;
}

"""

_DESTROY = """\
    for (const std::weak_ptr<Pipeline>& weak : this->mManagedPipelines) {
        if (std::shared_ptr<Pipeline> pipeline = weak.lock()) {
            pipeline->destroy();
        }
    }
    this->mManagedPipelines.clear();
    this->mDevice->destroyPipelineCache(this->mPipelineCache);
    this->mPipelineCache = nullptr;

"""

_BINDINGS = """\
      .def("share_pipelines",
           [](kp::Manager& self, const py::bytes& data) { self.sharePipelines(data); },
           "Let pipelines share a cache, which begins with what pipeline_data() returned",
           py::arg("data") = py::bytes())
      .def("pipeline_data",
           [](const kp::Manager& self, const py::bytes& more) {
               const std::string known = more;
               std::string found;
               {
                   py::gil_scoped_release release;
                   found = self.pipelineData(known);
               }
               return py::bytes(found);
           },
           "What the shared cache holds, and what is in more, which pipeline_data() returned",
           py::arg("more") = py::bytes())
      .def("pipeline",
           [](kp::Manager& self,
              const py::bytes& spirv,
              uint32_t bindings,
              const std::vector<uint32_t>& constants,
              uint32_t push_words,
              uint32_t robustness) {
               const std::string code = spirv;
               py::gil_scoped_release release;
               return self.pipeline(code, bindings, constants, push_words, robustness);
           },
           "Compile a pipeline, in any thread; robustness: a VkPipelineRobustnessBufferBehavior",
           py::arg("spirv"), py::arg("bindings"), py::arg("constants"), py::arg("push_words"),
           py::arg("robustness") = 0)
      .def("algorithm",
           [](kp::Manager& self,
              const std::shared_ptr<kp::Pipeline>& pipeline,
              const std::vector<std::shared_ptr<kp::Tensor>>& tensors,
              const kp::Workgroup& workgroup) {
               return self.algorithm(pipeline, tensors, workgroup);
           },
           "An algorithm of a pipeline that others may use, too",
           py::arg("pipeline"), py::arg("tensors"), py::arg("workgroup"))
"""

EDITS = [
    # Algorithm
    before(
        _ALGORITHM,
        "/**\n    Abstraction for compute shaders that are run on top of tensors grouped via\n",
        _PIPELINE.lstrip(),
    ),
    before(
        _ALGORITHM,
        "    /**\n     *  Rebuild function to reconstruct algorithm with configuration",
        _SHARING.lstrip(),
    ),
    after(_ALGORITHM, "    std::vector<std::shared_ptr<Tensor>> mTensors;\n",
          "    std::shared_ptr<Pipeline> mShared;\n"),
    before("src/Algorithm.cpp", "Algorithm::~Algorithm()\n", _PIPELINE_BODIES),
    before("src/Algorithm.cpp", "    std::vector<vk::DescriptorSetLayoutBinding> descriptorSetB",
           "    if (!this->mShared) {\n"),
    after("src/Algorithm.cpp", "    this->mFreeDescriptorSetLayout = true;\n", "    }\n"),
    # Manager
    after(
        _MANAGER,
        "    std::vector<vk::PhysicalDevice> listDevices() const;\n",
        _MEMBERS,
    ),
    after(
        _MANAGER,
        "    std::vector<std::weak_ptr<Algorithm>> mManagedAlgorithms;\n",
        "    std::vector<std::weak_ptr<Pipeline>> mManagedPipelines;\n"
        "    std::mutex mPipelinesMutex;\n"
        "    vk::PipelineCache mPipelineCache;\n",
    ),
    after(_MANAGER, '#include "kompute/Sequence.hpp"\n', "#include <mutex>\n"),
    before("src/Manager.cpp", "void\nManager::clear()\n", _BODIES),
    before(
        "src/Manager.cpp",
        '    if (this->mFreeDevice) {\n        KP_LOG_INFO("Destroying device");\n',
        _DESTROY,
    ),
    # Bindings
    before(
        "python/src/main.cpp",
        "    py::class_<kp::Algorithm, std::shared_ptr<kp::Algorithm>>(\n",
        "    py::class_<kp::Pipeline, std::shared_ptr<kp::Pipeline>>(m, \"Pipeline\");\n\n",
    ),
    before("python/src/main.cpp", '      .def("destroy", &kp::Manager::destroy,', _BINDINGS),
]
