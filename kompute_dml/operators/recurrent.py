"""RNN, GRU and LSTM: one product for the inputs of all steps, then one dispatch for each step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..attributes import RecurrentNetworkDirection as Direction
from ..dtypes import DataType
from ..errors import expect
from ..layout import Ints, extent
from ..lowering import measured
from ..lowering.activation import activation
from ..lowering.builder import PlanBuilder
from ..lowering.elementwise import float_bits
from ..lowering.plan import UNUSED, Operand
from ..lowering.walk import Walk
from ..spec import FeatureLevel
from .base import OperatorDesc, Output, check_field, operator

if TYPE_CHECKING:
    from ..desc import TensorDesc

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_ACTIVATIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
"""Activations for each direction."""
_TILE = 64
"""Rows, and columns, for each workgroup of the projection."""
_BLOCK = 16
"""Units, and sequences, for each workgroup of a step."""
_SHADERS = ("recurrent_step", "recurrent_steps", "recurrent_project", "recurrent_copy")
_LANES = 8
"""Invocations that multiply a row of R, if one workgroup computes all steps of a sequence."""
_KEEPING = 512
"""Invocations of such a workgroup whose registers keep R: each has more than with 1,024."""
_OTHER_REGISTERS = 32
"""Registers of an invocation that hold other things than R."""


class Network:
    """A description of a recurrent network."""

    def __init__(self, desc: OperatorDesc) -> None:
        self.desc, self.name = desc, desc.operator.name
        self.kind = desc.operator.short_name
        self.gates = _GATES[self.kind]
        _, self.steps, self.batches, self.inputs = desc.input_tensor.sizes
        self.units = desc.recurrence_tensor.sizes[3]
        self.directions = 2 if desc.direction == Direction.BIDIRECTIONAL else 1

    def inputs_have(self) -> Mapping[str, Ints]:
        """The sizes that inputs must have, by field."""
        rows, d = self.gates * self.units, self.directions
        state = (1, d, self.batches, self.units)
        return {
            "InputTensor": (1, self.steps, self.batches, self.inputs),
            "WeightTensor": (1, d, rows, self.inputs),
            "RecurrenceTensor": (1, d, rows, self.units),
            "BiasTensor": (1, 1, d, 2 * rows),
            "HiddenInitTensor": state, "CellMemInitTensor": state,
            "SequenceLengthsTensor": (1, 1, 1, self.batches),
            "PeepholeTensor": (1, 1, d, 3 * self.units),
        }

    def check(self) -> None:
        """Make the checks that the specification table does not have."""
        desc, fields = self.desc, {f.name: f for f in self.desc.operator.spec.inputs}
        for name, sizes in self.inputs_have().items():
            t = getattr(desc, fields[name].snake) if name in fields else None
            if t is not None:
                expect(t.sizes == sizes, self.name, f"{name}.Sizes", f"be {list(sizes)}",
                       list(t.sizes))
        outputs = desc.operator.spec.outputs
        expect(any(getattr(desc, f.snake) is not None for f in outputs), self.name,
               outputs[0].name, f"be given, or another of {', '.join(f.name for f in outputs)}",
               None)
        count = _ACTIVATIONS[self.kind] * self.directions
        expect(len(desc.activation_descs) == count, self.name, "ActivationDescs",
               f"hold {count} activations", len(desc.activation_descs))
        for i, a in enumerate(desc.activation_descs):
            field, entry = f"ActivationDescs[{i}]", a.operator.spec
            expect(entry.fusable, self.name, field, "be an activation that can be fused",
                   entry.name)
            for f in entry.fields:
                if f.is_tensor:
                    expect(getattr(a, f.snake) is None, self.name, f"{field}.{f.name}", "be None",
                           getattr(a, f.snake))
                else:
                    check_field(entry.name, f, getattr(a, f.snake), entry)


def _infer(desc: OperatorDesc) -> Mapping[str, Output | list[Output]]:
    network, kind = Network(desc), desc.input_tensor.data_type
    state = Output((1, network.directions, network.batches, network.units), kind)
    sequence = Output((network.steps, *state.sizes[1:]), kind)
    return {f.snake: sequence if f.name == "OutputSequenceTensor" else state
            for f in desc.operator.spec.outputs}


def _check(desc: OperatorDesc, strict: bool) -> None:
    Network(desc).check()


def _newer(desc: OperatorDesc) -> Iterator[tuple[FeatureLevel, str, str, Any]]:
    for i, a in enumerate(desc.activation_descs):
        yield (a.operator.spec.introduced, f"ActivationDescs[{i}]",
               "be an activation that exists", a.operator.name)


class _RecurrentLowering(Network):
    def __init__(self, desc: OperatorDesc, p: PlanBuilder) -> None:
        super().__init__(desc)
        self.p = p
        self.type = desc.input_tensor.data_type
        self.local_size = min(256, p.device.max_invocations)
        self.resets_first = self.kind == "GRU" and not desc.linear_before_reset

    def lower(self) -> None:
        projected = self._project()
        for direction in range(self.directions):
            self._run(direction, projected)

    def _tensor(self, field: str, axis: int, direction: int, sizes: Ints, first: int = 0,
                writes: bool = False) -> tuple[Operand, Ints]:
        """The part of a tensor for a direction, from element ``first`` of the last dimension on,
        and the strides of its last dimensions."""
        t = getattr(self.desc, field, None)
        if t is None:
            return UNUSED, (0,) * len(sizes)
        strides = t.strides[-len(sizes):]
        at = direction * t.strides[axis] + first * t.strides[-1]
        make = self.p.write if writes else self.p.read
        return make(field, at, extent(sizes, strides)), strides

    def _vectors(self, t: TensorDesc) -> bool:
        return (self.type is DataType.FLOAT32 and t.strides[-1] == 1
                and not any(n % 4 for n in (*t.strides[:-1], t.sizes[-1])))

    def _project(self) -> Operand:
        p, d = self.p, self.desc
        x, w, bias = d.input_tensor, d.weight_tensor, d.bias_tensor
        rows, columns = self.steps * self.batches, self.gates * self.units
        projected = p.temporary(4, self.directions * rows * columns)
        by = bias.strides[2:] if bias is not None else (0, 0)
        # A GRU with LinearBeforeReset multiplies the last gate's second bias by the reset gate.
        kept = self.kind == "GRU" and d.linear_before_reset
        p.dispatch(
            "recurrent_project", self.directions * -(-rows // _TILE) * -(-columns // _TILE),
            x=p.read("input_tensor"), w=p.read("weight_tensor"), bias=p.read("bias_tensor"),
            y=projected, params=[*x.strides[1:], *w.strides[1:], *by],
            push={"directions": self.directions, "batches": self.batches, "rows": rows,
                  "columns": columns, "inputs": self.inputs,
                  "biased": columns - self.units if kept else columns},
            spec={"LOCAL_SIZE": 256, "TYPE": self.type.code, "BIAS": bias is not None,
                  "VECTORS": self._vectors(x) and self._vectors(w)},
        )
        return projected.reading()

    def _copy(self, sizes: Ints, x: tuple[Operand, Ints], y: tuple[Operand, Ints],
              types: tuple[DataType, DataType], lengths: bool = False) -> None:
        p, t = self.p, self.desc.sequence_lengths_tensor
        lengths = lengths and t is not None
        walk = Walk(sizes, x[1], y[1], (t.strides[3], 0) if lengths else (0,) * len(sizes))
        p.dispatch(
            "recurrent_copy", -(-walk.count // self.local_size), x=x[0],
            lengths=p.read("sequence_lengths_tensor") if lengths else UNUSED, y=y[0],
            params=walk.words, push={"count": walk.count},
            spec={"LOCAL_SIZE": self.local_size, "FROM": types[0].code, "TO": types[1].code,
                  "GIVEN": x[0] is not UNUSED, "LENGTHS": lengths})

    def _run(self, direction: int, projected: Operand) -> None:
        p, d, n, float32 = self.p, self.desc, self.batches * self.units, DataType.FLOAT32
        sizes, packed = (self.batches, self.units), (self.units, 1)
        state = p.temporary(4, 4 * n + 3 * self.units)
        old, new, cell, reset, extra = (i * n for i in range(5))

        def start(field: str, to: int) -> None:
            self._copy(sizes, self._tensor(field, 1, direction, sizes),
                       (state.part(to, n), packed), (self.type, float32))

        start("hidden_init_tensor", old)
        if self.kind == "LSTM":
            start("cell_mem_init_tensor", cell)
            vector = (3 * self.units,)
            self._copy(vector, self._tensor("peephole_tensor", 2, direction, vector),
                       (state.part(extra, *vector), (1,)), (self.type, float32))
        elif self.kind == "GRU" and not self.resets_first:
            vector = (self.units,)
            bias = self._tensor("bias_tensor", 2, direction, vector, 5 * self.units)
            self._copy(vector, bias, (state.part(extra, *vector), (1,)), (self.type, float32))

        kinds = ["gru_gates", "gru_new"] if self.resets_first else [self.kind.lower()]
        params, spec = self._step_words(direction)
        rows = self.gates * self.units
        r, _ = self._tensor("recurrence_tensor", 1, direction, (rows, self.units))
        backward = direction == 1 or d.direction == Direction.BACKWARD
        if (teams := self._teams()):
            lines, of_line = -(-rows // teams), self.units // _LANES
            free = p.device.registers // (_LANES * teams) - _OTHER_REGISTERS
            p.dispatch(
                f"recurrent_steps.{kinds[0]}", self.batches, projected=projected, r=r,
                state=state, lengths=p.read("sequence_lengths_tensor"),
                y=p.write("output_sequence_tensor"), params=params,
                push={"direction": direction, "steps": self.steps, "batches": self.batches,
                      "before": old, "cell": cell, "extra": extra,
                      "threshold": float_bits(getattr(d, "clip_threshold", 0.0))},
                spec={**{k: v for k, v in spec.items() if k != "VECTORS"},
                      "LOCAL_SIZE": _LANES * teams, "TEAMS": teams, "UNITS": self.units,
                      "BACKWARD": backward, "KEPT": max(min(free // of_line, lines), 0)})
        for step in range(0 if teams else self.steps):
            for kind in kinds:
                p.dispatch(
                    f"recurrent_step.{kind}",
                    -(-self.units // _BLOCK) * -(-self.batches // _BLOCK),
                    projected=projected, r=r, state=state,
                    lengths=p.read("sequence_lengths_tensor"),
                    y=p.write("output_sequence_tensor"), params=params,
                    push={"time": self.steps - 1 - step if backward else step,
                          "direction": direction, "steps": self.steps, "batches": self.batches,
                          "units": self.units, "pitch": self.units, "before": old, "after": new,
                          "cell": cell, "reset": reset, "extra": extra,
                          "threshold": float_bits(getattr(d, "clip_threshold", 0.0))},
                    spec=spec)
            old, new = new, old
        for field, at in (("output_single_tensor", old), ("output_cell_single_tensor", cell)):
            if getattr(d, field, None) is not None:
                self._copy(sizes, (state.reading().part(at, n), packed),
                           self._tensor(field, 1, direction, sizes, writes=True),
                           (float32, self.type), lengths=True)

    def _teams(self) -> int:
        """Teams of a workgroup that computes all steps of a sequence; 0 for a dispatch per step.
        One multiprocessor then reads R in each step, which is fast for few sequences and a small
        R."""
        few = measured.figure(self.p.device, "recurrent_steps", "sequences")
        p, rows = self.p, self.gates * self.units
        invocations = _KEEPING if p.device.registers else 1024
        teams = min(p.device.max_invocations, invocations) // _LANES
        lines = -(-rows // teams)
        shared = 4 * (self.units + lines * teams * (_LANES + 1))
        serves = (not self.resets_first and self.units % 32 == 0 and self.batches <= few
                  and self._vectors(self.desc.recurrence_tensor)
                  and self.desc.recurrence_tensor.base_alignment % 16 == 0
                  and rows * self.units <= 1 << 16 and shared <= p.device.max_shared_memory)
        if self.steps * (lines * (self.units // 32 + 1) + 20) > p.device.max_loop_passes:
            return 0
        return teams if serves else 0

    def _step_words(self, direction: int) -> tuple[list[int], dict[str, int]]:
        """Strides of R, of the lengths and of the output, then the activations' attributes."""
        d, each = self.desc, _ACTIVATIONS[self.kind]
        lengths, y = d.sequence_lengths_tensor, d.output_sequence_tensor
        fused = [activation(a) for a in d.activation_descs[each * direction :][:each]]
        params = [*d.recurrence_tensor.strides[2:], lengths.strides[3] if lengths else 0,
                  *(y.strides if y is not None else (0,) * 4)]
        at = len(params) + 2 + len(fused[0].words)
        params += [at, at + (len(fused[1].words) if each > 1 else 0)]
        spec = {"LOCAL_SIZE": 256, "TYPE": self.type.code, "LENGTHS": lengths is not None,
                "VECTORS": self._vectors(d.recurrence_tensor), "SEQUENCE": y is not None,
                "CLIP": bool(getattr(d, "use_clip_threshold", False)),
                "COUPLE": bool(getattr(d, "couple_input_forget", False))}
        for name, one in zip("FGH", fused):
            params += one.words
            spec[name] = one.code
        return params, spec


@operator("RNN", output=_infer, shaders=_SHADERS, check=_check, newer=_newer, in_place=False,
          owned=False, direction=Direction.FORWARD)
def RnnOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    _RecurrentLowering(d, p).lower()


@operator("GRU", output=_infer, shaders=_SHADERS, check=_check, newer=_newer, in_place=False,
          owned=False, direction=Direction.FORWARD, linear_before_reset=False)
def GruOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    _RecurrentLowering(d, p).lower()


@operator("LSTM", output=_infer, shaders=_SHADERS, check=_check, newer=_newer, in_place=False,
          owned=False, direction=Direction.FORWARD, clip_threshold=0.0, use_clip_threshold=False,
          couple_input_forget=False)
def LstmOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    _RecurrentLowering(d, p).lower()
