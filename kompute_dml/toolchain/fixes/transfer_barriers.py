"""Operations that transfer record the barriers around their transfers.

OpMemoryBarrier orders dispatches.
"""

from ..edits import Edit, after, replace

REPAIRS = (
    "each dispatch put a barrier on each tensor, yet none ordered a shader's write after a copy, "
    "a copy after a shader's read, or the host's read after a copy"
)

_HELPER = """
namespace kp {
constexpr uint32_t kShader = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT;
constexpr uint32_t kTransfer = VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;

/// Orders all that was recorded before with the transfers that follow.
inline void
barrierBeforeTransfers(const vk::CommandBuffer& commandBuffer)
{
    commandBuffer.pipelineBarrier(
      vk::PipelineStageFlagBits::eComputeShader | vk::PipelineStageFlagBits::eTransfer,
      vk::PipelineStageFlagBits::eTransfer,
      vk::DependencyFlags(),
      vk::MemoryBarrier(vk::AccessFlags(kShader | kTransfer), vk::AccessFlags(kTransfer)),
      nullptr,
      nullptr);
}

/// Orders the transfers that were recorded before with all that follows, the host included.
inline void
barrierAfterTransfers(const vk::CommandBuffer& commandBuffer)
{
    commandBuffer.pipelineBarrier(
      vk::PipelineStageFlagBits::eTransfer,
      vk::PipelineStageFlagBits::eComputeShader | vk::PipelineStageFlagBits::eTransfer |
        vk::PipelineStageFlagBits::eHost,
      vk::DependencyFlags(),
      vk::MemoryBarrier(vk::AccessFlags(kTransfer),
                        vk::AccessFlags(kShader | kTransfer | VK_ACCESS_HOST_READ_BIT)),
      nullptr,
      nullptr);
}
}
"""

_RECORD = 'KP_LOG_DEBUG("Kompute {} record called");\n'
_DISPATCH_LOOP = """\
    // Barrier to ensure the data is finished writing to buffer memory
    for (const std::shared_ptr<Tensor>& tensor :
         this->mAlgorithm->getTensors()) {
        tensor->recordPrimaryBufferMemoryBarrier(
          commandBuffer,
          vk::AccessFlagBits::eTransferWrite,
          vk::AccessFlagBits::eShaderRead,
          vk::PipelineStageFlagBits::eTransfer,
          vk::PipelineStageFlagBits::eComputeShader);
    }
"""
_LOCAL_LAST = """\
              vk::AccessFlagBits::eHostRead,
              vk::PipelineStageFlagBits::eTransfer,
              vk::PipelineStageFlagBits::eHost);
        }
    }
"""


def _bracketed(operation: str, last: str) -> list[Edit]:
    file = f"src/{operation}.cpp"
    return [
        after(file, _RECORD.format(operation), "    barrierBeforeTransfers(commandBuffer);\n"),
        after(file, last, "    barrierAfterTransfers(commandBuffer);\n"),
    ]


EDITS = [
    after("src/include/kompute/Core.hpp", "typedef std::vector<float> Constants;\n}\n", _HELPER),
    *_bracketed(
        "OpTensorSyncDevice", "recordCopyFromStagingToDevice(commandBuffer);\n        }\n    }\n"
    ),
    *_bracketed("OpTensorSyncLocal", _LOCAL_LAST),
    *_bracketed("OpTensorCopy", "recordCopyFrom(commandBuffer, this->mTensors[0]);\n    }\n"),
    replace("src/OpAlgoDispatch.cpp", _DISPATCH_LOOP, ""),
]
