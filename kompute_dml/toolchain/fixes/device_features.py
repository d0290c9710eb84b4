"""Features are enabled for extensions that are requested and that the device has."""

from ..edits import after, before, replace

REPAIRS = "no device feature was enabled, so shaders with 8-, 16- or 64-bit types were invalid"

_STRUCT = """
/// VkPhysicalDeviceCooperativeMatrixFeaturesKHR, which older headers lack.
struct CooperativeMatrixFeatures
{
    VkStructureType sType = static_cast<VkStructureType>(1000506000);
    void* pNext = nullptr;
    VkBool32 cooperativeMatrix = VK_FALSE;
    VkBool32 cooperativeMatrixRobustBufferAccess = VK_FALSE;
};

/// VkPhysicalDevicePipelineRobustnessFeaturesEXT, likewise.
struct PipelineRobustnessFeatures
{
    VkStructureType sType = static_cast<VkStructureType>(1000068001);
    void* pNext = nullptr;
    VkBool32 pipelineRobustness = VK_FALSE;
};
"""

_CHAIN = """\
    vk::PhysicalDeviceFeatures2 features;
    vk::PhysicalDevice8BitStorageFeatures storage8;
    vk::PhysicalDevice16BitStorageFeatures storage16;
    vk::PhysicalDeviceShaderFloat16Int8Features float16Int8;
    vk::PhysicalDeviceShaderAtomicInt64Features atomicInt64;
    vk::PhysicalDeviceShaderIntegerDotProductFeatures dotProduct;
    vk::PhysicalDeviceVulkanMemoryModelFeatures memoryModel;
    vk::PhysicalDeviceSubgroupSizeControlFeatures subgroupSize;
    vk::PhysicalDeviceTimelineSemaphoreFeatures timeline;
    CooperativeMatrixFeatures cooperativeMatrix;
    PipelineRobustnessFeatures robustness;

    void** tail = &features.pNext;
    std::vector<std::pair<const char*, const VkBool32*>> readable;
    const auto chain =
      [&](const char* extension,
          auto& block,
          std::vector<std::pair<const char*, const VkBool32*>> members) {
          const auto same = [&](const char* valid) {
              return std::string(valid) == extension;
          };
          if (std::any_of(validExtensions.begin(), validExtensions.end(), same)) {
              *tail = &block;
              tail = &block.pNext;
              readable.insert(readable.end(), members.begin(), members.end());
          }
      };
#define KP_FEATURE(block, member) { #member, &block.member }
    chain("VK_KHR_8bit_storage",
          storage8,
          { KP_FEATURE(storage8, storageBuffer8BitAccess),
            KP_FEATURE(storage8, uniformAndStorageBuffer8BitAccess),
            KP_FEATURE(storage8, storagePushConstant8) });
    chain("VK_KHR_16bit_storage",
          storage16,
          { KP_FEATURE(storage16, storageBuffer16BitAccess),
            KP_FEATURE(storage16, uniformAndStorageBuffer16BitAccess),
            KP_FEATURE(storage16, storagePushConstant16) });
    chain("VK_KHR_shader_float16_int8",
          float16Int8,
          { KP_FEATURE(float16Int8, shaderFloat16),
            KP_FEATURE(float16Int8, shaderInt8) });
    chain("VK_KHR_shader_atomic_int64",
          atomicInt64,
          { KP_FEATURE(atomicInt64, shaderBufferInt64Atomics) });
    chain("VK_KHR_shader_integer_dot_product",
          dotProduct,
          { KP_FEATURE(dotProduct, shaderIntegerDotProduct) });
    chain("VK_KHR_vulkan_memory_model",
          memoryModel,
          { KP_FEATURE(memoryModel, vulkanMemoryModel),
            KP_FEATURE(memoryModel, vulkanMemoryModelDeviceScope) });
    chain("VK_EXT_subgroup_size_control",
          subgroupSize,
          { KP_FEATURE(subgroupSize, subgroupSizeControl),
            KP_FEATURE(subgroupSize, computeFullSubgroups) });
    chain("VK_KHR_timeline_semaphore",
          timeline,
          { KP_FEATURE(timeline, timelineSemaphore) });
    chain("VK_KHR_cooperative_matrix",
          cooperativeMatrix,
          { KP_FEATURE(cooperativeMatrix, cooperativeMatrix) });
    chain("VK_EXT_pipeline_robustness",
          robustness,
          { KP_FEATURE(robustness, pipelineRobustness) });

    physicalDevice.getFeatures2(&features);
    // Of the rest, only what widens types: bounds checks and the like cost time.
    const vk::PhysicalDeviceFeatures available = features.features;
    features.features = vk::PhysicalDeviceFeatures();
    features.features.shaderInt16 = available.shaderInt16;
    features.features.shaderInt64 = available.shaderInt64;
    features.features.shaderFloat64 = available.shaderFloat64;
    cooperativeMatrix.cooperativeMatrixRobustBufferAccess = VK_FALSE;
    readable.insert(readable.end(),
                    { KP_FEATURE(features.features, shaderInt16),
                      KP_FEATURE(features.features, shaderInt64),
                      KP_FEATURE(features.features, shaderFloat64) });
#undef KP_FEATURE
    for (const auto& feature : readable) {
        if (*feature.second) {
            this->mEnabledFeatures.push_back(feature.first);
        }
    }

"""

_READ = """\
    /** Names of the Vulkan features that the device was created with. */
    const std::vector<std::string>& enabledFeatures() const
    {
        return this->mEnabledFeatures;
    }

"""

EDITS = [
    after("src/Manager.cpp", "#include <string>\n", "#include <algorithm>\n#include <utility>\n"),
    after("src/Manager.cpp", "namespace kp {\n", _STRUCT),
    before("src/Manager.cpp", "    vk::DeviceCreateInfo deviceCreateInfo(", _CHAIN),
    replace(
        "src/Manager.cpp",
        "validExtensions.data());\n\n    this->mDevice",
        "validExtensions.data());\n    deviceCreateInfo.pNext = &features;\n\n    this->mDevice",
    ),
    before(
        "src/include/kompute/Manager.hpp",
        "  private:\n    // -------------- OPTIONALLY OWNED",
        _READ,
    ),
    after(
        "src/include/kompute/Manager.hpp",
        "    bool mManageResources = false;\n",
        "    std::vector<std::string> mEnabledFeatures;\n",
    ),
    before(
        "python/src/main.cpp",
        '      .def(\n        "list_devices",',
        '      .def("enabled_features",\n           &kp::Manager::enabledFeatures,\n'
        '           "Names of the Vulkan features that the device was created with")\n',
    ),
]
