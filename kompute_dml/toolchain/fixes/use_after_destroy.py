"""Python may hold objects after they, or their manager, are destroyed."""

from ..edits import after, before, replace

REPAIRS = "using a destroyed tensor, algorithm, sequence or manager crashed the process"


def _guard(condition: str, what: str) -> str:
    return (
        f"    if ({condition}) {{\n"
        f'        throw std::runtime_error("Kompute {what} was destroyed");\n'
        "    }\n"
    )


_TENSOR, _MANAGER = "src/Tensor.cpp", "src/Manager.cpp"
_PRIMARY = _guard("!this->mPrimaryBuffer", "Tensor")
_STAGING = _guard("!this->mPrimaryBuffer || !this->mStagingBuffer", "Tensor")

EDITS = [
    after(
        _TENSOR,
        'KP_LOG_DEBUG("Kompute Tensor recording PRIMARY buffer memory barrier");\n',
        _PRIMARY,
    ),
    after(
        _TENSOR,
        'KP_LOG_DEBUG("Kompute Tensor recording STAGING buffer memory barrier");\n',
        _STAGING,
    ),
    before(_TENSOR, '    KP_LOG_DEBUG("Kompute Tensor construct descriptor buffer info', _PRIMARY),
    after(
        _TENSOR,
        'KP_LOG_DEBUG("Kompute Tensor recordCopyFrom data size {}.", bufferSize);\n',
        _guard("!this->mPrimaryBuffer || !copyFromTensor->mPrimaryBuffer", "Tensor"),
    ),
    # To the device and from it
    after(
        _TENSOR,
        'KP_LOG_DEBUG("Kompute Tensor copying data size {}.", bufferSize);\n',
        _STAGING,
        times=2,
    ),
    after(
        "src/Algorithm.cpp",
        'KP_LOG_DEBUG("Kompute Algorithm binding pipeline");\n',
        _guard("!this->isInit()", "Algorithm"),
    ),
    after(
        "src/Sequence.cpp",
        'KP_LOG_DEBUG("Kompute sequence called BEGIN");\n',
        _guard("!this->isInit()", "Sequence"),
    ),
    before(
        "src/include/kompute/Manager.hpp",
        "        std::shared_ptr<Algorithm> algorithm{ new kp::Algorithm(",
        _guard("!this->mDevice", "Manager"),
    ),
    after(
        _MANAGER,
        'KP_LOG_DEBUG("Kompute Manager sequence() with queueIndex: {}", queueIndex);\n',
        _guard("!this->mDevice", "Manager"),
    ),
    replace(_MANAGER, "this->mComputeQueues[queueIndex],", "this->mComputeQueues.at(queueIndex),"),
    before(
        _MANAGER,
        "    return this->mPhysicalDevice->getProperties();",
        _guard("!this->mInstance", "Manager"),
    ),
    before(
        _MANAGER,
        "    return this->mInstance->enumeratePhysicalDevices();",
        _guard("!this->mInstance", "Manager"),
    ),
]
