# SPDX-License-Identifier: Apache-2.0
"""Instructions that capstone 4 does not know, from their bytes to the text that capstone 5 has for them.

Those are here that compilers and C libraries use. What capstone does not know it passes as `.byte`, of the length that
an instruction has (Principles of Operation, "Instruction Formats").
"""

from __future__ import annotations

from typing import Any, Final

#: The lengths of instructions by the first two bits.
_SIZES: Final = (2, 4, 4, 6)
#: Conditions by their mask; none are 0 and 15.
_CONDITIONS: Final = ("", "o", "h", "nle", "l", "nhe", "lh", "ne", "e", "nlh", "he", "nl", "le", "nh", "no", "")
_TWO_REGISTERS: Final = {0x04: "spm", 0x05: "balr", 0x06: "bctr", 0x0E: "mvcl", 0x0F: "clcl"}
_REGISTER_AND_STORAGE: Final = {0x44: "ex", 0x45: "bal", 0x46: "bct", 0x4D: "bas", 0x4E: "cvd", 0x4F: "cvb"}
_REGISTERS_AND_STORAGE: Final = {0x90: "stm", 0x98: "lm", 0xA8: "mvcle"}
_MASK_AND_STORAGE: Final = {0xBD: "clm", 0xBE: "stcm", 0xBF: "icm"}
_WITH_LENGTH: Final = {0xDC: "tr", 0xDD: "trt"}
_INDEX: Final = {0x84: "brxh", 0x85: "brxle"}
#: By the first byte, and the second or the last one.
_TWO_OF_B: Final = {
    (0xB3, 0x18): ("kdbr", "f"),
    (0xB3, 0x08): ("kebr", "f"),
    (0xB3, 0x48): ("kxbr", "f"),
    (0xB9, 0x17): ("llgtr", "r"),
    (0xB9, 0x46): ("bctgr", "r"),
    (0xB9, 0x60): ("cgrt", "r"),
    (0xB9, 0x61): ("clgrt", "r"),
    (0xB9, 0x72): ("crt", "r"),
    (0xB9, 0x73): ("clrt", "r"),
}
_LONG: Final = {
    (0xE3, 0x17): ("llgt", "r"),
    (0xE3, 0x1F): ("lrvh", "r"),
    (0xE3, 0x3F): ("strvh", "r"),
    (0xED, 0x08): ("keb", "f"),
    (0xED, 0x18): ("kdb", "f"),
}
_NUMBER_TO_STORAGE: Final = {(0xEB, 0x6E): "alsi", (0xEB, 0x7E): "algsi"}
_LONG_INDEX: Final = {(0xEC, 0x44): "brxhg", (0xEC, 0x45): "brxlg"}
_NUMBER_AND_BRANCH: Final = {(0xEC, 0xFC): "cgib", (0xEC, 0xFD): "clgib", (0xEC, 0xFE): "cib", (0xEC, 0xFF): "clib"}
_NUMBER_AND_TRAP: Final = {(0xEC, 0x70): "cgit", (0xEC, 0x71): "clgit", (0xEC, 0x72): "cit", (0xEC, 0x73): "clfit"}
_RISBGN: Final = (0xEC, 0x59)
_VECTOR: Final = 0xE7
_VECTOR_STORES: Final = {0x08: "vsteb", 0x09: "vsteh", 0x0A: "vsteg", 0x0B: "vstef", 0x0E: "vst"}
_VECTOR_RANGES: Final = {0x36: "vlm", 0x3E: "vstm"}
_VSTL: Final = 0x3F
#: VLGV and LCBB, whose first operand is a general register; scatters, which store to many places.
_TO_GENERAL: Final = {0x21: "vlgvg", 0x27: "lcbb"}
_SCATTERS: Final = (0x1A, 0x1B)


def skip(data: Any, _size: int, offset: int, _user: object) -> int:  # noqa: ANN401 - a ctypes pointer
    """Return the length of the instruction at an offset, for capstone, which does not know it."""
    byte = data[offset]
    return _SIZES[(byte[0] if isinstance(byte, bytes) else byte & 0xFF) >> 6]


def read(address: int, operands: str) -> tuple[str, str] | None:
    """Return the mnemonic and the operands of the instruction whose bytes these are; None for any other."""
    code = bytes(int(byte, 0) for byte in operands.split(", "))
    if len(code) != _SIZES[code[0] >> 6]:
        return None
    return {2: _read_2, 4: _read_4, 6: _read_6}[len(code)](address, code)


def _read_2(_address: int, code: bytes) -> tuple[str, str] | None:
    if code[0] == 0x0A:
        return "svc", str(code[1])
    name = _TWO_REGISTERS.get(code[0])
    return None if name is None else (name, f"%r{code[1] >> 4}, %r{code[1] & 0xF}")


def _read_4(address: int, code: bytes) -> tuple[str, str] | None:
    first, second = code[1] >> 4, code[1] & 0xF
    if code[0] == 0x47:
        return (f"b{_CONDITIONS[first]}" if first else "nop"), _storage(code, second)
    if code[0] in _REGISTER_AND_STORAGE:
        return _REGISTER_AND_STORAGE[code[0]], f"%r{first}, {_storage(code, second)}"
    if code[0] in _REGISTERS_AND_STORAGE:
        return _REGISTERS_AND_STORAGE[code[0]], f"%r{first}, %r{second}, {_storage(code)}"
    if code[0] in _MASK_AND_STORAGE:
        return _MASK_AND_STORAGE[code[0]], f"%r{first}, {second}, {_storage(code)}"
    if code[0] in _INDEX:
        return _INDEX[code[0]], f"%r{first}, %r{second}, {_target(address, code[2:4])}"
    if (code[0], code[1]) in _TWO_OF_B:
        name, kind = _TWO_OF_B[code[0], code[1]]
        return name, f"%{kind}{code[3] >> 4}, %{kind}{code[3] & 0xF}"
    return None


def _read_6(address: int, code: bytes) -> tuple[str, str] | None:
    first, second, key = code[1] >> 4, code[1] & 0xF, (code[0], code[5])
    if code[0] == _VECTOR:
        return _read_vector(code)
    if code[0] in _WITH_LENGTH:
        base = f",%r{code[2] >> 4}" if code[2] >> 4 else ""
        return _WITH_LENGTH[code[0]], f"{_displacement(code)}({code[1] + 1}{base}), 0"
    if code[0] == 0xC6 and second == 0:
        return "exrl", f"%r{first}, {_target(address, code[2:6])}"
    if key in _LONG:
        name, kind = _LONG[key]
        high = int.from_bytes(code[4:5], "big", signed=True) << 12 if code[0] == 0xE3 else 0
        return name, f"%{kind}{first}, {_storage(code, second, high)}"
    if key in _NUMBER_TO_STORAGE:
        return _NUMBER_TO_STORAGE[key], f"{_storage(code, 0, int.from_bytes(code[4:5], 'big', signed=True) << 12)}, 0"
    if key in _LONG_INDEX:
        return _LONG_INDEX[key], f"%r{first}, %r{second}, {_target(address, code[2:4])}"
    if key in _NUMBER_AND_TRAP:
        return _NUMBER_AND_TRAP[key], f"%r{first}"
    if key == _RISBGN:
        return "risbgn", f"%r{first}, %r{second}, {code[2]}, {code[3]}, {code[4]}"
    if key in _NUMBER_AND_BRANCH:
        name = _NUMBER_AND_BRANCH[key]
        number = int.from_bytes(code[4:5], "big", signed="l" not in name)
        return f"{name}{_CONDITIONS[second & 0xE]}", f"%r{first}, {number}, {_storage(code)}"
    return None


def _read_vector(code: bytes) -> tuple[str, str] | None:
    first, second, operation = code[1] >> 4, code[1] & 0xF, code[5]
    # The fifth byte has the highest bits of the numbers of vector registers.
    vector = f"%v{first | (code[4] & 8) << 1}"
    if operation in _VECTOR_STORES:
        return _VECTOR_STORES[operation], f"{vector}, {_storage(code, second)}"
    if operation in _VECTOR_RANGES:
        return _VECTOR_RANGES[operation], f"{vector}, %v{second | (code[4] & 4) << 2}, {_storage(code)}"
    if operation == _VSTL:
        return "vstl", f"{vector}, %r{second}, {_storage(code)}"
    if operation in _TO_GENERAL:
        return _TO_GENERAL[operation], f"%r{first}"
    return None if operation in _SCATTERS else ("v", vector)


def _displacement(code: bytes) -> int:
    return (code[2] & 0xF) << 8 | code[3]


def _storage(code: bytes, index: int = 0, high: int = 0) -> str:
    """Return the operand whose base and displacement are in the third and the fourth byte."""
    names = ",".join(f"%r{register}" for register in (index, code[2] >> 4) if register)
    offset = _displacement(code) + high
    return f"{offset}({names})" if names else str(offset)


def _target(address: int, distance: bytes) -> str:
    return str(address + 2 * int.from_bytes(distance, "big", signed=True))
