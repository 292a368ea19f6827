"""8-bit floats (e4m3) by shifts, which every card can do: sm_80 knows none, and AMD's first ones were others."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def half_of_e4m3(bits):
    """2^-8 of the values, exactly, in fp16: e4m3 counts its exponent from 7 and fp16 from 15, subnormals too."""
    wide = bits.to(tl.uint16)
    return (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).to(tl.float16, bitcast=True)


@triton.jit
def e4m3_of(value):
    """The bits of fp32 values of at most 448, to the nearest and to even; not a number stays none."""
    bits = value.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
    # Added to 2^14, a value below the least normal one is rounded to multiples of 2^-9: the subnormals' own step.
    small = (tl.abs(value) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    code = tl.where(size < 0x3C800000, small, normal)
    code = tl.where(size > 0x7F800000, 0x7F, code)
    return (((bits >> 24) & 0x80) | code).to(tl.uint8)
