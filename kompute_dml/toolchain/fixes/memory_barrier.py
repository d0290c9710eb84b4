"""The masks are plain integers, so that bits can be combined."""

from ..edits import before

REPAIRS = (
    "OpMemoryBarrier was not bound to Python, so dispatches of a sequence could not be ordered"
)

_BINDING = """\
    py::class_<kp::OpMemoryBarrier,
               kp::OpBase,
               std::shared_ptr<kp::OpMemoryBarrier>>(
      m, "OpMemoryBarrier", "Orders accesses to the primary buffers of tensors")
      .def(py::init([](const std::vector<std::shared_ptr<kp::Tensor>>& tensors,
                       uint32_t srcAccess,
                       uint32_t dstAccess,
                       uint32_t srcStage,
                       uint32_t dstStage) {
               return std::make_shared<kp::OpMemoryBarrier>(
                 tensors,
                 static_cast<vk::AccessFlagBits>(srcAccess),
                 static_cast<vk::AccessFlagBits>(dstAccess),
                 static_cast<vk::PipelineStageFlagBits>(srcStage),
                 static_cast<vk::PipelineStageFlagBits>(dstStage));
           }),
           py::arg("tensors"),
           py::arg("src_access"),
           py::arg("dst_access"),
           py::arg("src_stage"),
           py::arg("dst_stage"));

"""

EDITS = [
    before(
        "python/src/main.cpp",
        "    py::class_<kp::OpAlgoDispatch,\n",
        _BINDING,
    )
]
