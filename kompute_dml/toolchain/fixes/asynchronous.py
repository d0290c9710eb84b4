"""Other Python threads run during waits and submits."""

from ..edits import after, before, replace

REPAIRS = (
    "eval held the GIL, eval_async() without an operation was synchronous, "
    "and eval_await could wait 4.3 s at most"
)

_MAIN = "python/src/main.cpp"
_RELEASE = "py::call_guard<py::gil_scoped_release>(),\n        "

EDITS = [
    replace(
        _MAIN,
        '"eval_async",\n        [](kp::Sequence& self) { return self.eval(); },',
        '"eval_async",\n        [](kp::Sequence& self) { return self.evalAsync(); },',
    ),
    replace(_MAIN, "uint32_t wait) {", "uint64_t wait) {"),
    before(_MAIN, "DOC(kp, Sequence, eval))", _RELEASE),
    before(_MAIN, "DOC(kp, Sequence, eval_2))", _RELEASE),
    before(_MAIN, "DOC(kp, Sequence, evalAsync))", _RELEASE),
    # eval_async() and both forms of eval_await
    before(_MAIN, "DOC(kp, Sequence, evalAwait))", _RELEASE, times=3),
    # Vulkan requires the caller to serialize submits to a queue. The GIL did that.
    after("src/Sequence.cpp", '#include "kompute/Sequence.hpp"\n', "#include <mutex>\n"),
    before(
        "src/Sequence.cpp",
        "this->mComputeQueue->submit(1, &submitInfo, this->mFence);",
        "static std::mutex queueMutex;\n"
        "    const std::lock_guard<std::mutex> queueLock(queueMutex);\n    ",
    ),
]
