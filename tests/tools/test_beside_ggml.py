"""``benchmarks/beside_ggml.py``, with machine code made here."""

from __future__ import annotations

import pytest

from beside_ggml import Code, IntelCode

LOOP = """
BB0:
\tv_mul_f32_e32 v0, v1, v2                                    ; 10000501
BB1:
\tds_read_b64 v[4:5], v0                                      ; d9d80000
\ts_waitcnt lgkmcnt(0)                                        ; bf8cc07f
\tv_fmac_f32_e32 v6, v4, v5                                   ; 560c0b04
\tv_fma_mix_f32 v6, v4, v5, v6                                ; cc200006
\tv_exp_f32_e32 v7, v6                                        ; 7e0e4b06
\ts_cbranch_scc0 BB1                                          ; bf840000
\ts_endpgm                                                    ; bf810000
"""
NESTED = """
BB0:
\ts_nop 0                                                     ; bf800000
BB1:
\tv_mul_f32_e32 v0, v1, v2                                    ; 10000501
BB2:
\tv_fmac_f32_e32 v6, v4, v5                                   ; 560c0b04
\tv_fmac_f32_e32 v7, v4, v5                                   ; 560c0b04
\ts_cbranch_scc0 BB2                                          ; bf840000
\ts_cbranch_scc0 BB1                                          ; bf840000
"""


@pytest.mark.parametrize(("lanes", "generation", "cycles"), [
    (64, 10, 8 / 2),  # the transcendental unit: 8 cycles for 2 products
    (32, 10, 2 * 4 / 2),  # twice as many waves
    (64, 12, 8 / 2),
])
def test_the_busiest_unit_counts(lanes: int, generation: int, cycles: float) -> None:
    assert Code(LOOP).busiest(lanes, generation) == cycles


@pytest.mark.parametrize(("lanes", "generation", "cycles"), [
    (64, 10, 2 + 2), (64, 12, 1 + 2),  # only the one with halves takes two turns
    (32, 12, 2 * (1 + 1)),
])
def test_operations_that_are_issued_in_pairs(lanes: int, generation: int, cycles: int) -> None:
    code = Code(LOOP.replace("v_exp_f32_e32 v7, v6", "s_nop 0"))
    assert code.busiest(lanes, generation) == cycles / 2


@pytest.mark.parametrize(("passes", "cycles"), [((), 2 * 2 / 2), ((8,), 2 * (1 + 8 * 2) / 16)])
def test_loops_in_the_hot_loop_run_several_times(passes: tuple[int, ...], cycles: float) -> None:
    assert Code(NESTED).busiest(64, 10, passes) == cycles


def test_matrix_units_and_instructions_of_two_operations() -> None:
    code = Code("""
BB0:
\tv_wmma_f32_16x16x16_f16 v[0:7], v[8:11], v[12:15], v[0:7]   ; cc400000
\tv_dual_fmac_f32 v1, v2, v3 :: v_dual_mov_b32 v4, 0          ; c8100503
\ts_cbranch_scc0 BB0                                          ; bf840000
""")
    assert code.products(0, 2, 32) == 16**3 // 32 + 1
    assert code.busiest(32, 12) == 2 * (32 + 1) / (16**3 // 32 + 1)


INTEL = """
Native code for unnamed compute shader (null)
(W)     mov (1)                   r45           0x00000bc0                        {Compacted}
L0:
(W)     mad (8)                   r43           3008:uw           r43:uw            4:uw
(W)     send.ugm (1)              r16     r17    null:0  a0.4        0x4210D500   {ExBSO}
(f0.0)  break (16)                            jip:L1              uip:L1
        mad (16)                  r62:f         r83:f             r52:f             r51:f {F@4}
        mad (16)                  r63:hf        r83:hf            r52:hf            r51:hf
        math.exp (16)             r38:f         r37<0>:f          null            {F@1}
L1:
        while (16)                            L0
        mov (16)                  r119          r0.1<0>                           {Compacted}
"""


@pytest.mark.parametrize(("width", "cycles"), [(32, 1 + 2 + 1 + 8), (64, 1 + 1 + 1 + 4)])
def test_arithmetic_of_intel_takes_as_long_as_its_bytes(width: int, cycles: float) -> None:
    code = IntelCode(INTEL)
    assert code.loops == [(1, 8)] and code.products(1, 8, 16) == 2  # not of addresses
    assert code.busiest(16, width) == 4 * cycles / 2


def test_products_of_intels_matrix_units() -> None:
    code = IntelCode("""
Native code for
L2:
        dpas.8x8 (16)             r22:f         r22:f             r59:hf            r47.0:hf
        while (16)                            L2
""")
    assert code.products(0, 2, 16) == 8 * 16
    assert code.busiest(16, 64) == 4 * 8 / (8 * 16)
